//! Reads a JSON object field by field and collects every fault.
//!
//! Serde would stop at the first fault and quote the value in its message, which may be a secret that sits in the wrong
//! field. Here a fault names the field and what belongs into it, never what was found.

use std::cell::RefCell;
use std::time::Duration;

use serde_json::{Map, Value};

/// The faults found so far, one sentence each.
#[derive(Debug, Default)]
pub(crate) struct Faults(RefCell<Vec<String>>);

impl Faults {
    /// Adds a sentence.
    pub(crate) fn add(&self, sentence: impl Into<String>) {
        self.0.borrow_mut().push(sentence.into());
    }

    /// All sentences, in the order they were found.
    pub(crate) fn into_sentences(self) -> Vec<String> {
        self.0.into_inner()
    }
}

/// The fields of one object that haven't been read yet.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    path: String,
    known: Vec<&'static str>,
    rest: Map<String, Value>,
    faults: &'a Faults,
}

impl<'a> Fields<'a> {
    /// The fields of the outermost object.
    pub(crate) fn new(object: Map<String, Value>, faults: &'a Faults) -> Self {
        Self { path: String::new(), known: Vec::new(), rest: object, faults }
    }

    /// A field's full name.
    pub(crate) fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// Adds a fault of a field: `field` and the rest of the sentence.
    pub(crate) fn fault(&self, field: &str, what: &str) {
        self.faults.add(format!("`{}` {what}", self.name(field)));
    }

    /// Whether the field is given, without reading it.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.rest.get(field).is_some_and(|value| !value.is_null())
    }

    /// A text.
    pub(crate) fn text(&mut self, field: &'static str) -> Option<String> {
        self.read(field, "must be a text", |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    /// A text that has to be there and isn't empty.
    pub(crate) fn required_text(&mut self, field: &'static str) -> String {
        if !self.has(field) {
            self.take(field);
            self.fault(field, "is required");
            return String::new();
        }
        let text = self.text(field);
        if text.as_deref().is_some_and(|text| text.trim().is_empty()) {
            self.fault(field, "must not be empty");
        }
        text.unwrap_or_default()
    }

    /// One of several texts.
    pub(crate) fn choice(&mut self, field: &'static str, choices: &[&str]) -> Option<String> {
        let text = self.text(field)?;
        if choices.contains(&text.as_str()) {
            return Some(text);
        }
        self.fault(field, &format!("must be one of {}", choices.join(", ")));
        None
    }

    /// `true` or `false`.
    pub(crate) fn flag(&mut self, field: &'static str) -> Option<bool> {
        self.read(field, "must be true or false", |value| value.as_bool())
    }

    /// A whole number.
    pub(crate) fn integer(&mut self, field: &'static str) -> Option<i64> {
        self.read(field, "must be a whole number", |value| value.as_i64())
    }

    /// A whole number from 1.
    pub(crate) fn positive(&mut self, field: &'static str) -> Option<u32> {
        self.read(field, "must be a whole number from 1; zero never means unlimited", |value| {
            value.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0)
        })
    }

    /// A factor that never shrinks anything.
    pub(crate) fn coefficient(&mut self, field: &'static str) -> Option<f64> {
        self.read(field, "must be a number from 1", |value| value.as_f64().filter(|number| *number >= 1.0))
    }

    /// A list of texts.
    pub(crate) fn texts(&mut self, field: &'static str) -> Option<Vec<String>> {
        self.read(field, "must be a list of texts", |value| {
            let Value::Array(items) = value else { return None };
            items
                .into_iter()
                .map(|item| match item {
                    Value::String(text) => Some(text),
                    _ => None,
                })
                .collect()
        })
    }

    /// A span of time: a text such as `90s` or `2h 30m`, or a number of seconds.
    pub(crate) fn duration(&mut self, field: &'static str) -> Option<Duration> {
        self.read(field, "must be a span of time above zero, such as \"90s\" or \"2h\"", |value| {
            match value {
                Value::String(text) => humantime::parse_duration(&text).ok(),
                Value::Number(number) => number.as_u64().map(Duration::from_secs),
                _ => None,
            }
            .filter(|span| !span.is_zero())
        })
    }

    /// A size: a text such as `256MiB`, or a number of bytes. Its unit is checked where sizes are known.
    pub(crate) fn size(&mut self, field: &'static str) -> Option<String> {
        self.read(field, "must be a size, such as \"256MiB\" or a number of bytes", |value| match value {
            Value::String(text) if text.starts_with(|first: char| first.is_ascii_digit()) => Some(text),
            Value::Number(number) => number.as_u64().map(|bytes| bytes.to_string()),
            _ => None,
        })
    }

    /// The fields of an object inside this one; finish them, too.
    pub(crate) fn object(&mut self, field: &'static str) -> Option<Fields<'a>> {
        let object = self.read(field, "must be an object", |value| match value {
            Value::Object(object) => Some(object),
            _ => None,
        })?;
        Some(Fields { path: format!("{}.", self.name(field)), known: Vec::new(), rest: object, faults: self.faults })
    }

    /// A map from names to plain values, as texts.
    pub(crate) fn map(&mut self, field: &'static str) -> Option<Vec<(String, String)>> {
        self.read(field, "must be an object of texts, numbers and flags", |value| {
            let Value::Object(object) = value else { return None };
            object
                .into_iter()
                .map(|(name, value)| match value {
                    Value::String(text) => Some((name, text)),
                    Value::Number(number) => Some((name, number.to_string())),
                    Value::Bool(flag) => Some((name, u8::from(flag).to_string())),
                    _ => None,
                })
                .collect()
        })
    }

    /// A field that isn't implemented: any value but null is refused, with the way out.
    pub(crate) fn refuse(&mut self, field: &'static str, way_out: &str) {
        if self.take(field).is_some() {
            self.fault(field, &format!("is not supported yet; {way_out}"));
        }
    }

    /// A field that is supported only as long as it is empty.
    pub(crate) fn refuse_unless_empty(&mut self, field: &'static str, way_out: &str) {
        let empty = match self.take(field) {
            None | Some(Value::Bool(false)) => true,
            Some(Value::Array(items)) => items.is_empty(),
            Some(_) => false,
        };
        if !empty {
            self.fault(field, &format!("is not supported yet; {way_out}"));
        }
    }

    /// Refuses by name whatever nobody has read.
    pub(crate) fn finish(self) {
        for name in self.rest.keys() {
            let way_out = match nearest(name, &self.known) {
                Some(near) => format!("did you mean `{}{near}`?", self.path),
                None => "take it out".to_owned(),
            };
            self.faults.add(format!("`{}{name}` is not a known field; {way_out}", self.path));
        }
    }

    fn take(&mut self, field: &'static str) -> Option<Value> {
        self.known.push(field);
        self.rest.remove(field).filter(|value| !value.is_null())
    }

    fn read<T>(&mut self, field: &'static str, what: &str, read: impl FnOnce(Value) -> Option<T>) -> Option<T> {
        let value = read(self.take(field)?);
        if value.is_none() {
            self.fault(field, what);
        }
        value
    }
}

/// The known name that differs from this one by two letters at most, or else the first that holds it or is part of it.
fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let close = known.iter().map(|known| (distance(name, known), *known)).filter(|(distance, _)| *distance <= 2).min();
    close.map(|(_, near)| near).or_else(|| {
        let is_part = |known: &&&str| name.len() >= 4 && (known.contains(name) || name.contains(**known));
        known.iter().find(is_part).copied()
    })
}

/// How many letters have to be changed, added or taken out.
fn distance(left: &str, right: &str) -> usize {
    let right = right.chars().collect::<Vec<_>>();
    let mut row = (0..=right.len()).collect::<Vec<_>>();
    for (index, letter) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for column in 1..row.len() {
            let changed = diagonal + usize::from(letter != right[column - 1]);
            diagonal = row[column];
            row[column] = changed.min(row[column] + 1).min(row[column - 1] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(object) => object,
            _ => Map::new(),
        }
    }

    #[test]
    fn collects_every_fault_and_quotes_no_value() {
        let faults = Faults::default();
        let input = json!({"name": ["hunter2"], "count": "hunter2", "span": "hunter2", "inner": {"x": "hunter2"}, "odd": "hunter2", "nane": "hunter2"});
        let mut fields = Fields::new(object(input), &faults);
        fields.required_text("missing");
        fields.text("name");
        fields.positive("count");
        fields.duration("span");
        let mut inner = fields.object("inner").expect("an object");
        inner.flag("x");
        inner.finish();
        fields.finish();
        let sentences = faults.into_sentences();
        assert_eq!(
            sentences,
            [
                "`missing` is required",
                "`name` must be a text",
                "`count` must be a whole number from 1; zero never means unlimited",
                "`span` must be a span of time above zero, such as \"90s\" or \"2h\"",
                "`inner.x` must be true or false",
                "`nane` is not a known field; did you mean `name`?",
                "`odd` is not a known field; take it out",
            ]
        );
        assert!(!sentences.concat().contains("hunter2"));
    }

    #[test]
    fn null_is_the_same_as_missing() {
        let faults = Faults::default();
        let mut fields = Fields::new(object(json!({"a": null, "b": null, "c": []})), &faults);
        assert_eq!(fields.text("a"), None);
        fields.refuse("b", "leave it out");
        fields.refuse_unless_empty("c", "leave it out");
        fields.finish();
        assert!(faults.into_sentences().is_empty());
    }
}
