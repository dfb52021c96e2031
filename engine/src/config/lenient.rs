//! A tree becomes raw structures, and every fault is found, not only the first.
//!
//! Owns the wording of faults about types, which never show a value. It reads again and again: what a fault stands at
//! is left out the next time, until the rest can be read. That works because every raw field may be missing.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::fault::{Fault, Position};
use super::raw::SECRET_MARKER;
use super::yaml::{Node, Origin, Value, join, join_index};

/// Reads `root`. It returns nothing when not even the rest can be read.
pub(super) fn read<T: DeserializeOwned>(root: &Node) -> (Option<T>, Vec<Fault>) {
    let context = Context::default();
    loop {
        let field = Field { node: root, path: String::new(), context: &context };
        match T::deserialize(field) {
            Ok(value) => return (Some(value), context.faults.into_inner()),
            Err(refused) => {
                let path = refused.path.unwrap_or_default();
                let is_new = context.skipped.borrow_mut().insert(path.clone());
                if is_new {
                    let position = refused.position.or(Some(root.position));
                    context.faults.borrow_mut().push(Fault { path: path.clone(), message: refused.message, position });
                }
                if !is_new || path.is_empty() {
                    return (None, context.faults.into_inner());
                }
            }
        }
    }
}

#[derive(Default)]
struct Context {
    /// The paths that are left out.
    skipped: RefCell<BTreeSet<String>>,
    faults: RefCell<Vec<Fault>>,
}

impl Context {
    fn is_skipped(&self, path: &str) -> bool {
        self.skipped.borrow().contains(path)
    }

    fn unknown(&self, path: &str, position: Position, known: &[&str]) {
        if !self.skipped.borrow_mut().insert(path.to_owned()) {
            return;
        }
        let message = match path.rsplit('.').next().and_then(|name| nearest(name, known)) {
            Some(near) => format!("unknown field; did you mean {near}?"),
            None => format!("unknown field; the fields here are {}", known.join(", ")),
        };
        let fault = Fault { path: path.to_owned(), message, position: Some(position) };
        self.faults.borrow_mut().push(fault);
    }
}

/// The known name that differs from `name` by one or two letters.
fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    known
        .iter()
        .copied()
        .map(|other| (distance(name, other), other))
        .filter(|(far, _)| *far <= 2)
        .min()
        .map(|near| near.1)
}

/// How many letters have to be changed, added or left out.
fn distance(left: &str, right: &str) -> usize {
    let right = right.chars().collect::<Vec<_>>();
    let mut row = (0..=right.len()).collect::<Vec<_>>();
    for (index, letter) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for column in 1..row.len() {
            let change = diagonal + usize::from(right[column - 1] != letter);
            diagonal = row[column];
            row[column] = change.min(row[column] + 1).min(row[column - 1] + 1);
        }
    }
    row[right.len()]
}

/// A value that can't be read, with its path once that is known.
#[derive(Debug)]
struct Refused {
    path: Option<String>,
    position: Option<Position>,
    message: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Refused {}

impl serde::de::Error for Refused {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { path: None, position: None, message: message.to_string() }
    }

    fn invalid_type(_: serde::de::Unexpected<'_>, expected: &dyn serde::de::Expected) -> Self {
        Self::custom(format_args!("must be {expected}"))
    }

    fn invalid_value(_: serde::de::Unexpected<'_>, expected: &dyn serde::de::Expected) -> Self {
        Self::custom(format_args!("must be {expected}"))
    }
}

/// A value at its path.
struct Field<'a> {
    node: &'a Node,
    path: String,
    context: &'a Context,
}

impl<'a> Field<'a> {
    /// Reads the value and gives an error its place.
    fn seeded<'de, S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Refused> {
        let (path, position) = (self.path.clone(), self.node.position);
        seed.deserialize(self).map_err(|refused| Refused {
            path: refused.path.or(Some(path)),
            position: refused.position.or(Some(position)),
            ..refused
        })
    }

    fn fields(self, known: Option<&'static [&'static str]>) -> Result<Fields<'a>, Refused> {
        let Value::Mapping(entries) = &self.node.value else {
            return Err(match known {
                Some(known) => Refused::custom(format_args!("must be a mapping with the fields {}", known.join(", "))),
                None => Refused::custom("must be a mapping of names to values"),
            });
        };
        let mut fields = Vec::with_capacity(entries.len());
        for (key, node) in entries {
            let path = join(&self.path, &key.name);
            if known.is_some_and(|known| !known.contains(&key.name.as_str())) {
                self.context.unknown(&path, key.position, known.unwrap_or_default());
            } else if !self.context.is_skipped(&path) && !matches!(node.value, Value::Null) {
                fields.push((key.name.as_str(), Field { node, path, context: self.context }));
            }
        }
        fields.reverse();
        Ok(Fields { fields, value: None })
    }

    /// The text of a value that the environment gave, for fields that aren't text.
    fn environment_text(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Text { text, origin } if *origin != Origin::File => Some(text.trim()),
            _ => None,
        }
    }

    fn integer(&self) -> Option<i128> {
        match self.node.value {
            Value::Integer(value) => Some(value),
            _ => self.environment_text()?.parse().ok(),
        }
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
            let (min, max) = (<$type>::MIN, <$type>::MAX);
            match self.integer().map(<$type>::try_from) {
                Some(Ok(value)) => visitor.$visit(value),
                Some(Err(_)) => Err(Refused::custom(format_args!("must be a whole number from {min} to {max}"))),
                None => Err(Refused::custom("must be a whole number")),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Field<'_> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Integer(value) => visitor.visit_i128(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text { text, .. } => visitor.visit_str(text),
            Value::Sequence(_) => self.deserialize_seq(visitor),
            Value::Mapping(_) => self.deserialize_map(visitor),
        }
    }

    integers! {
        deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
        deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let found = match self.node.value {
            Value::Float(value) => Some(value),
            #[expect(clippy::cast_precision_loss, reason = "such numbers are small")]
            Value::Integer(value) => Some(value as f64),
            _ => self.environment_text().and_then(|text| text.parse().ok()),
        };
        match found.filter(|value| value.is_finite()) {
            Some(value) => visitor.visit_f64(value),
            None => Err(Refused::custom("must be a number")),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match (&self.node.value, self.environment_text()) {
            (Value::Bool(value), _) => visitor.visit_bool(*value),
            (_, Some("true")) => visitor.visit_bool(true),
            (_, Some("false")) => visitor.visit_bool(false),
            _ => Err(Refused::custom("must be true or false")),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match &self.node.value {
            Value::Text { text, .. } => visitor.visit_str(text),
            Value::Sequence(_) | Value::Mapping(_) => Err(Refused::custom("must be text")),
            _ => Err(Refused::custom("must be text; put it in quotes")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        if matches!(self.node.value, Value::Null) { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Refused> {
        if name == SECRET_MARKER && !matches!(&self.node.value, Value::Text { origin: Origin::Reference, .. }) {
            let field = self.path.rsplit('.').next().unwrap_or_default();
            return Err(Refused::custom(format_args!(
                "a secret can't stand in the file; write ${{NAME}} for an environment variable, or use {field}_file"
            )));
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let Value::Sequence(items) = &self.node.value else {
            return Err(Refused::custom("must be a list"));
        };
        let mut fields = Vec::with_capacity(items.len());
        for (index, node) in items.iter().enumerate() {
            let path = join_index(&self.path, index);
            if !self.context.is_skipped(&path) {
                fields.push(Field { node, path, context: self.context });
            }
        }
        fields.reverse();
        visitor.visit_seq(Items { fields })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_map(self.fields(None)?)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_map(self.fields(Some(fields))?)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        match &self.node.value {
            Value::Text { text, .. } if variants.contains(&text.as_str()) => visitor.visit_enum(Name(text)),
            _ => Err(Refused::custom(format_args!("must be one of {}", variants.join(", ")))),
        }
    }

    forward_to_deserialize_any! {
        i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

/// The fields of a mapping, the last one first.
struct Fields<'a> {
    fields: Vec<(&'a str, Field<'a>)>,
    value: Option<Field<'a>>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refused> {
        let Some((name, value)) = self.fields.pop() else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        match self.value.take() {
            Some(field) => field.seeded(seed),
            None => Err(Refused::custom("a value was asked for before its name")),
        }
    }
}

/// The items of a list, the last one first.
struct Items<'a> {
    fields: Vec<Field<'a>>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Refused> {
        self.fields.pop().map(|field| field.seeded(seed)).transpose()
    }
}

/// The name of a variant.
struct Name<'a>(&'a str);

impl<'de> EnumAccess<'de> for Name<'_> {
    type Error = Refused;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Refused> {
        seed.deserialize(self.0.into_deserializer()).map(|variant| (variant, self))
    }
}

impl<'de> VariantAccess<'de> for Name<'_> {
    type Error = Refused;

    fn unit_variant(self) -> Result<(), Refused> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _seed: T) -> Result<T::Value, Refused> {
        Err(Refused::custom("takes no value"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _length: usize, _visitor: V) -> Result<V::Value, Refused> {
        Err(Refused::custom("takes no values"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Refused> {
        Err(Refused::custom("takes no fields"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found() {
        assert_eq!(nearest("buket", &["bucket", "prefix"]), Some("bucket"));
        assert_eq!(nearest("interval", &["interval"]), Some("interval"));
        assert_eq!(nearest("nothing", &["bucket", "prefix"]), None);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
