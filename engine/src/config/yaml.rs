//! YAML with places: a tree of values that remembers where each one stands.
//!
//! Owns `${NAME}` and the paths of fields. Does not own what fields mean: see [`super::raw`].

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::fault::{Fault, Position, sounds_secret};

/// A value of a file. It has no `Debug`, since it may hold secrets.
pub(super) struct Node {
    pub(super) position: Position,
    pub(super) value: Value,
}

pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text { text: String, origin: Origin },
    Sequence(Vec<Node>),
    Mapping(Vec<(Key, Node)>),
}

/// Where a text comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It stands in the file.
    File,
    /// A part of it comes from the environment.
    Mixed,
    /// It is a variable of the environment, nothing else.
    Reference,
}

pub(super) struct Key {
    pub(super) name: String,
    pub(super) position: Position,
}

/// Reads a file's text into a tree.
///
/// # Errors
/// The one fault that keeps the text from being YAML.
pub(super) fn parse(text: &str) -> Result<Node, Fault> {
    match serde_saphyr::from_str::<Spanned<Parsed>>(text) {
        Ok(root) => Ok(node(root)),
        Err(error) => Err(syntax_fault(text, &error)),
    }
}

fn syntax_fault(text: &str, error: &serde_saphyr::Error) -> Fault {
    let position = error.location().map(position);
    let line = position.and_then(|position| text.lines().nth(position.line.saturating_sub(1)));
    // A password that starts with a character of YAML's own would stand in the parser's message.
    let message = if line.is_some_and(sounds_secret) {
        "this isn't valid YAML; put the value in quotes, or refer to it as ${NAME}".to_owned()
    } else {
        let formatter = serde_saphyr::UserMessageFormatter;
        let plain = error.render_with_options(serde_saphyr::render_options! {
            formatter: &formatter,
            snippets: serde_saphyr::SnippetMode::Off,
        });
        let plain = plain.split(" at line ").next().unwrap_or(&plain).to_owned();
        format!("this isn't valid YAML: {plain}")
    };
    Fault { path: String::new(), message, position }
}

fn position(location: Location) -> Position {
    let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    Position {
        line: number(location.line()).max(1),
        column: number(location.column()).max(1),
        width: number(location.span().len()).max(1),
    }
}

fn node(parsed: Spanned<Parsed>) -> Node {
    let value = match parsed.value {
        Parsed::Scalar(value) => value,
        Parsed::Sequence(items) => Value::Sequence(items.into_iter().map(node).collect()),
        Parsed::Mapping(entries) => Value::Mapping(
            entries
                .into_iter()
                .map(|(key, value)| (Key { name: key.value, position: position(key.referenced) }, node(value)))
                .collect(),
        ),
    };
    Node { position: position(parsed.referenced), value }
}

/// What serde hands over, before it becomes a tree.
enum Parsed {
    Scalar(Value),
    Sequence(Vec<Spanned<Self>>),
    Mapping(Vec<(Spanned<String>, Spanned<Self>)>),
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ParsedVisitor)
    }
}

struct ParsedVisitor;

impl<'de> Visitor<'de> for ParsedVisitor {
    type Value = Parsed;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Integer(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Integer(value.into())))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Integer(value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Parsed, E> {
        Ok(Parsed::Scalar(Value::Text { text: value.to_owned(), origin: Origin::File }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Parsed, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Parsed::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Parsed, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Parsed::Mapping(entries))
    }
}

/// The path of a field below `parent`.
pub(super) fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// The path of an item below `parent`.
pub(super) fn join_index(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}

impl Node {
    /// Puts variables in the place of `${NAME}`, everywhere but in the fields `verbatim`. `$${` stands for `${`.
    pub(super) fn interpolate(&mut self, variables: &BTreeMap<String, String>, verbatim: &[&str]) -> Vec<Fault> {
        let mut faults = Vec::new();
        self.interpolate_at("", variables, verbatim, &mut faults);
        faults
    }

    fn interpolate_at(
        &mut self,
        path: &str,
        variables: &BTreeMap<String, String>,
        verbatim: &[&str],
        faults: &mut Vec<Fault>,
    ) {
        if verbatim.contains(&path) {
            return;
        }
        match &mut self.value {
            Value::Text { text, origin } => match interpolated(text, variables) {
                Ok(None) => {}
                Ok(Some((value, found))) => {
                    *text = value;
                    *origin = found;
                }
                Err(message) => {
                    faults.push(Fault { path: path.to_owned(), message, position: Some(self.position) });
                }
            },
            Value::Sequence(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    item.interpolate_at(&join_index(path, index), variables, verbatim, faults);
                }
            }
            Value::Mapping(entries) => {
                for (key, value) in entries {
                    value.interpolate_at(&join(path, &key.name), variables, verbatim, faults);
                }
            }
            Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) => {}
        }
    }

    /// The places of all fields: of its value for a simple one, of its name for others.
    pub(super) fn positions(&self) -> BTreeMap<String, Position> {
        let mut found = BTreeMap::from([(String::new(), self.position)]);
        self.positions_at("", &mut found);
        found
    }

    fn positions_at(&self, path: &str, found: &mut BTreeMap<String, Position>) {
        match &self.value {
            Value::Sequence(items) => {
                for (index, item) in items.iter().enumerate() {
                    let path = join_index(path, index);
                    found.insert(path.clone(), item.position);
                    item.positions_at(&path, found);
                }
            }
            Value::Mapping(entries) => {
                for (key, value) in entries {
                    let path = join(path, &key.name);
                    let is_simple = !matches!(value.value, Value::Mapping(_) | Value::Sequence(_) | Value::Null);
                    found.insert(path.clone(), if is_simple { value.position } else { key.position });
                    value.positions_at(&path, found);
                }
            }
            _ => {}
        }
    }
}

/// A text with its variables put in, and where it then comes from; `None` when there are none.
fn interpolated(text: &str, variables: &BTreeMap<String, String>) -> Result<Option<(String, Origin)>, String> {
    let mut value = String::new();
    let mut rest = text;
    let mut origin = Origin::File;
    let mut changed = false;
    while let Some(start) = rest.find("${") {
        changed = true;
        if rest[..start].ends_with('$') {
            value.push_str(&rest[..start - 1]);
            value.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        let Some(length) = rest[start..].find('}') else {
            return Err("${ has no }; write $${ for a literal ${".to_owned());
        };
        let inner = &rest[start + 2..start + length];
        let (name, default) = inner.split_once(":-").map_or((inner, None), |(name, default)| (name, Some(default)));
        let is_name = !name.is_empty()
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
        if !is_name {
            return Err("${…} must hold the name of an environment variable: letters, digits and _".to_owned());
        }
        let found = variables.get(name).map(String::as_str).filter(|value| default.is_none() || !value.is_empty());
        let Some(found) = found.or(default) else {
            return Err(format!("the environment variable {name} is not set; set it, or write ${{{name}:-default}}"));
        };
        value.push_str(&rest[..start]);
        value.push_str(found);
        rest = &rest[start + length + 1..];
        let is_whole = start == 0 && rest.is_empty() && value.len() == found.len() && default.is_none();
        origin = if is_whole { Origin::Reference } else { Origin::Mixed };
    }
    value.push_str(rest);
    Ok(changed.then_some((value, origin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> BTreeMap<String, String> {
        BTreeMap::from([("A".to_owned(), "1".to_owned()), ("EMPTY".to_owned(), String::new())])
    }

    #[test]
    fn variables_are_put_in() {
        let cases = [
            ("${A}", "1", Origin::Reference),
            ("x${A}", "x1", Origin::Mixed),
            ("${A}${A}", "11", Origin::Mixed),
            ("${B:-2}", "2", Origin::Mixed),
            ("${EMPTY:-2}", "2", Origin::Mixed),
            ("${EMPTY}", "", Origin::Reference),
            ("$${A}", "${A}", Origin::File),
            ("${EMPTY}x", "x", Origin::Mixed),
        ];
        for (text, value, origin) in cases {
            assert_eq!(interpolated(text, &variables()), Ok(Some((value.to_owned(), origin))), "{text}");
        }
        for text in ["a", "$A", "{year}", "$"] {
            assert_eq!(interpolated(text, &variables()), Ok(None), "{text}");
        }
        assert!(interpolated("${NOPE}", &variables()).expect_err("unset").contains("NOPE is not set"));
        assert!(interpolated("${A", &variables()).is_err());
        assert!(interpolated("${A B}", &variables()).is_err());
        assert!(interpolated("${}", &variables()).is_err());
    }

    #[test]
    fn fields_know_their_places() {
        let mut tree =
            parse("a: 1\nb:\n  c: ${A}\n  d: [x, \"${B}\"]\nq: ${B}\n").unwrap_or_else(|fault| panic!("{fault}"));
        let positions = tree.positions();
        assert_eq!(positions["a"], Position { line: 1, column: 4, width: 1 });
        assert_eq!(positions["b"], Position { line: 2, column: 1, width: 1 });
        assert_eq!(positions["b.c"], Position { line: 3, column: 6, width: 4 });
        let faults = tree.interpolate(&variables(), &["q"]);
        assert_eq!(faults.iter().map(|fault| fault.path.as_str()).collect::<Vec<_>>(), ["b.d[1]"]);
    }

    #[test]
    fn what_is_no_yaml_says_so_without_secrets() {
        let Err(fault) = parse("a: 1\n b: [\n") else { panic!("no YAML") };
        assert!(fault.message.starts_with("this isn't valid YAML: "), "{fault}");
        assert!(fault.position.is_some());
        for text in ["password: *hunter2\n", "x:\n  password: \"hunter2\n", "secret_access_key: !hunter2 [\n"] {
            if let Err(fault) = parse(text) {
                assert!(!fault.to_string().contains("hunter2"), "{fault}");
            }
        }
        let Err(fault) = parse("a: 1\na: 2\n") else { panic!("a duplicate") };
        assert!(fault.message.contains("duplicate"), "{fault}");
    }
}
