//! JSON into JavaScript and back, without the loss that JavaScript's own JSON has.
//!
//! # Shape
//! Integers that a JavaScript number can't hold exactly (beyond 2^53 - 1 either way) are `BigInt`s there and integers again
//! on the way back, up to what 64 bits hold. Numbers without a fraction come back as integers: `5.0` as `5`. `NaN` and the
//! infinities are errors, never `null`: a row's value must not vanish unseen. What JSON has no place for is left out of
//! objects and `null` in arrays, and `toJSON` is called, both as `JSON.stringify` does. Half of a surrogate pair becomes U+FFFD.

use rquickjs::function::This;
use rquickjs::object::{Filter, Property};
use rquickjs::{Array, Atom, BigInt, Coerced, Ctx, Function, Object, String as Text, Value};
use serde_json::{Map, Number, Value as Json};

/// The largest integer, either way, of which a JavaScript number holds all smaller ones too.
const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// How deep values may be nested; JSON readers have the same limit.
const MAX_DEPTH: usize = 128;

/// Why a value doesn't go over.
#[derive(Debug)]
pub(crate) enum JsonFault {
    /// It has no place in JSON.
    NotJson { path: String, what: String },
    /// It takes more than it may.
    TooLarge,
    /// JavaScript failed, or code of the plugin that reading the value calls.
    Engine(rquickjs::Error),
}

impl From<rquickjs::Error> for JsonFault {
    fn from(error: rquickjs::Error) -> Self {
        Self::Engine(error)
    }
}

impl JsonFault {
    fn not_json(what: impl Into<String>) -> Self {
        Self::NotJson { path: String::new(), what: what.into() }
    }

    /// The same, seen from what holds the value.
    fn within(self, step: &str) -> Self {
        match self {
            Self::NotJson { path, what } => {
                let dot = if path.is_empty() || path.starts_with('[') { "" } else { "." };
                Self::NotJson { path: format!("{step}{dot}{path}"), what }
            }
            other => other,
        }
    }
}

/// What values may still take in memory, about. Unit: bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    pub(crate) fn new(num_bytes: usize) -> Self {
        Self { left: num_bytes }
    }

    pub(crate) fn left(&self) -> usize {
        self.left
    }

    fn take(&mut self, text_bytes: usize) -> Result<(), JsonFault> {
        let left = self.left.checked_sub(size_of::<Json>() + text_bytes);
        self.left = left.ok_or(JsonFault::TooLarge)?;
        Ok(())
    }
}

/// A JSON value as JavaScript has it.
pub(crate) fn to_js<'js>(ctx: &Ctx<'js>, json: &Json, budget: &mut Budget) -> Result<Value<'js>, JsonFault> {
    write(ctx, json, budget, MAX_DEPTH)
}

fn write<'js>(ctx: &Ctx<'js>, json: &Json, budget: &mut Budget, depth: usize) -> Result<Value<'js>, JsonFault> {
    let deeper = || depth.checked_sub(1).ok_or_else(too_deep);
    budget.take(0)?;
    Ok(match json {
        Json::Null => Value::new_null(ctx.clone()),
        Json::Bool(value) => Value::new_bool(ctx.clone(), *value),
        Json::Number(number) => write_number(ctx, number)?,
        Json::String(text) => {
            budget.take(text.len())?;
            Text::from_str(ctx.clone(), text)?.into_value()
        }
        Json::Array(items) => {
            let (array, depth) = (Array::new(ctx.clone())?, deeper()?);
            for (index, item) in items.iter().enumerate() {
                array.set(index, write(ctx, item, budget, depth)?)?;
            }
            array.into_value()
        }
        Json::Object(members) => {
            let (object, depth) = (Object::new(ctx.clone())?, deeper()?);
            for (key, member) in members {
                budget.take(key.len())?;
                let member = write(ctx, member, budget, depth)?;
                // Defined, not assigned: assigning to `__proto__` would do something else.
                object.prop(key.as_str(), Property::from(member).writable().enumerable().configurable())?;
            }
            object.into_value()
        }
    })
}

fn write_number<'js>(ctx: &Ctx<'js>, number: &Number) -> Result<Value<'js>, JsonFault> {
    Ok(if let Some(integer) = number.as_i64() {
        if let Ok(small) = i32::try_from(integer) {
            Value::new_int(ctx.clone(), small)
        } else if integer.unsigned_abs() <= MAX_SAFE_INTEGER.unsigned_abs() {
            Value::new_float(ctx.clone(), integer as f64)
        } else {
            BigInt::from_i64(ctx.clone(), integer)?.into_value()
        }
    } else if let Some(integer) = number.as_u64() {
        BigInt::from_u64(ctx.clone(), integer)?.into_value()
    } else {
        Value::new_float(ctx.clone(), number.as_f64().ok_or_else(|| JsonFault::not_json("a number without a value"))?)
    })
}

/// A JavaScript value as JSON; `None` for what JSON has no place for.
pub(crate) fn from_js(value: &Value<'_>, budget: &mut Budget) -> Result<Option<Json>, JsonFault> {
    Reader { budget, is_lenient: false }.read(value, MAX_DEPTH)
}

/// The same for human eyes: never fails, and leaves out what there is no room for.
pub(crate) fn show(value: &Value<'_>, num_bytes: usize) -> Json {
    let budget = &mut Budget::new(num_bytes);
    let shown = Reader { budget, is_lenient: true }.read(value, MAX_DEPTH);
    shown.ok().flatten().unwrap_or_else(|| {
        // Nobody else looks at what was thrown.
        value.ctx().catch();
        Json::from("…")
    })
}

struct Reader<'a> {
    budget: &'a mut Budget,
    is_lenient: bool,
}

impl Reader<'_> {
    fn read(&mut self, value: &Value<'_>, depth: usize) -> Result<Option<Json>, JsonFault> {
        self.budget.take(0)?;
        Ok(Some(if let Some(integer) = value.as_int() {
            Json::from(integer)
        } else if let Some(text) = value.as_string() {
            let text = text_of(text)?;
            self.budget.take(text.len())?;
            Json::String(text)
        } else if let Some(number) = value.as_float() {
            match read_number(number) {
                Some(number) => Json::Number(number),
                None if self.is_lenient => Json::String(number.to_string()),
                None => return Err(JsonFault::not_json(number.to_string())),
            }
        } else if let Some(flag) = value.as_bool() {
            Json::Bool(flag)
        } else if value.is_null() {
            Json::Null
        } else if value.is_big_int() {
            self.read_big_int(value)?
        } else if let Some(object) = value.as_object().filter(|_| !value.is_function()) {
            return self.read_object(object, depth);
        } else {
            return Ok(None);
        }))
    }

    fn read_big_int(&self, value: &Value<'_>) -> Result<Json, JsonFault> {
        let digits = value.get::<Coerced<String>>()?.0;
        match digits.parse::<i64>().map(Json::from).or_else(|_| digits.parse::<u64>().map(Json::from)) {
            Ok(integer) => Ok(integer),
            Err(_) if self.is_lenient => Ok(Json::String(digits)),
            Err(_) => Err(JsonFault::not_json("a BigInt of more than 64 bits")),
        }
    }

    fn read_object(&mut self, object: &Object<'_>, depth: usize) -> Result<Option<Json>, JsonFault> {
        let depth = match depth.checked_sub(1) {
            Some(depth) => depth,
            None if self.is_lenient => return Ok(Some(Json::from("…"))),
            None => return Err(too_deep()),
        };
        let to_json = object.get::<_, Value<'_>>("toJSON")?;
        if let Some(to_json) = to_json.as_function() {
            let value = to_json.call::<_, Value<'_>>((This(object.clone()),))?;
            return self.read(&value, depth);
        }
        if let Some(array) = object.as_array() {
            return self.read_array(array, depth).map(Some);
        }
        let mut map = Map::new();
        for named in members(object) {
            let (name, key) = named?;
            let member = object.get::<_, Value<'_>>(key)?;
            match self.budget.take(name.len()).and_then(|()| self.read(&member, depth)) {
                Ok(Some(json)) => drop(map.insert(name, json)),
                Ok(None) => {}
                Err(JsonFault::TooLarge) if self.is_lenient => {
                    map.insert(name, Json::from("…"));
                    break;
                }
                Err(fault) => return Err(fault.within(&name)),
            }
        }
        Ok(Some(Json::Object(map)))
    }

    fn read_array(&mut self, array: &Array<'_>, depth: usize) -> Result<Json, JsonFault> {
        let mut items = Vec::new();
        // The library's own length is of 31 bits, and panics beyond.
        let length = array.as_object().get::<_, f64>("length")?;
        for index in (0..).take_while(|index| f64::from(*index) < length) {
            match self.read(&array.as_object().get(index)?, depth) {
                Ok(item) => items.push(item.unwrap_or(Json::Null)),
                Err(JsonFault::TooLarge) if self.is_lenient => {
                    items.push(Json::from("…"));
                    break;
                }
                Err(fault) => return Err(fault.within(&format!("[{index}]"))),
            }
        }
        Ok(Json::Array(items))
    }
}

fn too_deep() -> JsonFault {
    JsonFault::not_json(format!("a value nested deeper than {MAX_DEPTH}"))
}

/// `None` for what isn't finite.
fn read_number(number: f64) -> Option<Number> {
    let is_integer = number.fract() == 0.0 && number.abs() <= MAX_SAFE_INTEGER as f64;
    // Minus zero is no integer.
    if is_integer && (number != 0.0 || number.is_sign_positive()) {
        Some(Number::from(number as i64))
    } else {
        Number::from_f64(number)
    }
}

/// The names and keys of an object's own members that JSON would have.
pub(crate) fn members<'js>(object: &Object<'js>) -> impl Iterator<Item = rquickjs::Result<(String, Atom<'js>)>> {
    let keys = object.own_keys::<Atom<'js>>(Filter::new().string().enum_only());
    keys.map(|key| {
        let key = key?;
        // Not by way of the library's own text of a key: it takes for granted that there are no halves of surrogate pairs.
        Ok((text_of(&key.to_js_string()?)?, key))
    })
}

/// A text, with U+FFFD for halves of surrogate pairs.
pub(crate) fn text_of(text: &Text<'_>) -> rquickjs::Result<String> {
    match text.to_string() {
        Err(rquickjs::Error::Utf8(_)) => {
            let prototype = text.ctx().globals().get::<_, Object<'_>>("String")?.get::<_, Object<'_>>("prototype")?;
            let repair = prototype.get::<_, Function<'_>>("toWellFormed")?;
            repair.call::<_, Text<'_>>((This(text.clone()),))?.to_string()
        }
        outcome => outcome,
    }
}
