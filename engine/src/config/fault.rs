//! What is wrong with a configuration, all of it at once, with the place in the file.

use std::fmt;

use crate::error::Error;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The field, such as `destination.bucket`; empty for the file as a whole.
    pub path: String,
    /// One clause that says what is wrong and the way out.
    pub message: String,
    /// Where it is, if it stands in a file.
    pub position: Option<Position>,
}

/// A place in a file. Unit: lines and columns in characters, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
    /// How many characters are meant.
    pub width: usize,
}

impl Fault {
    /// A fault without a place.
    #[must_use]
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), position: None }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(formatter, "{}: ", self.path)?;
        }
        formatter.write_str(&self.message)
    }
}

/// All faults of one file.
///
/// `Display` shows each with its line and a caret; what looks like a secret in such a line is hidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// The file's name, as it is shown.
    pub file: String,
    /// The lines to show, by fault; kept instead of the file's text, which may hold secrets.
    lines: Vec<Option<String>>,
    faults: Vec<Fault>,
}

impl Faults {
    /// The faults of a file with the text `text`, in the order of the file.
    #[must_use]
    pub fn new(file: &str, text: &str, mut faults: Vec<Fault>) -> Self {
        faults.sort_by_key(|fault| fault.position.map_or((0, 0), |position| (position.line, position.column)));
        let lines = faults.iter().map(|fault| shown_line(text, fault)).collect();
        Self { file: file.to_owned(), lines, faults }
    }

    /// The faults, in the order of the file.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.faults.len();
        write!(formatter, "{} has {count} fault{}", self.file, if count == 1 { "" } else { "s" })?;
        for (fault, line) in self.faults.iter().zip(&self.lines) {
            write!(formatter, "\n\n{fault}")?;
            let (Some(position), Some(line)) = (fault.position, line) else { continue };
            let number = position.line.to_string();
            let margin = " ".repeat(number.len());
            write!(formatter, "\n{margin}--> {}:{number}:{}", self.file, position.column)?;
            write!(formatter, "\n{margin} |\n{number} | {line}\n{margin} | ")?;
            let indent = line.chars().take(position.column - 1);
            let indent = indent.map(|character| if character == '\t' { '\t' } else { ' ' }).collect::<String>();
            let room = line.chars().count().saturating_sub(position.column - 1);
            write!(formatter, "{indent}{}", "^".repeat(position.width.min(room).max(1)))?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

impl From<Faults> for Error {
    fn from(faults: Faults) -> Self {
        Self::config(faults.to_string()).with_source(faults)
    }
}

/// The words in the name of a field that holds a secret.
const SECRET_WORDS: [&str; 4] = ["password", "secret", "token", "key"];

/// What stands for what isn't shown.
const HIDDEN: &str = "<hidden>";

/// Whether a name or line sounds like a secret's.
pub(super) fn sounds_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| text.contains(word))
}

/// The line of a fault, without what may be secret in it.
fn shown_line(text: &str, fault: &Fault) -> Option<String> {
    let index = fault.position?.line.checked_sub(1)?;
    let line = text.lines().nth(index)?;
    // The value of a secret may go on below its name.
    let before = text.lines().take(index).filter(|line| !line.trim().is_empty()).last().unwrap_or_default();
    if !line.contains(':') && (sounds_secret(before) || sounds_secret(&fault.path)) {
        return Some(HIDDEN.to_owned());
    }
    Some(hide_secrets(line))
}

/// A line without the values of fields that sound secret, and without the user's part of a URL.
fn hide_secrets(line: &str) -> String {
    let line = hide_user(line);
    for (colon, _) in line.match_indices(':') {
        let before = line[..colon].trim_end_matches(['"', '\'', ' ']);
        let is_name = |character: char| character.is_alphanumeric() || ['_', '-'].contains(&character);
        let name = before.rsplit(|character| !is_name(character)).next().unwrap_or_default();
        if sounds_secret(name) && !name.ends_with("_file") && !line[colon + 1..].trim().is_empty() {
            return format!("{}: {HIDDEN}", &line[..colon]);
        }
    }
    line
}

fn hide_user(line: &str) -> String {
    match line.split_once("://").and_then(|(before, rest)| Some((before, rest.rsplit_once('@')?.1))) {
        Some((before, host)) => format!("{before}://{HIDDEN}@{host}"),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(path: &str, line: usize, column: usize, width: usize) -> Fault {
        Fault { position: Some(Position { line, column, width }), ..Fault::new(path, "is wrong") }
    }

    #[test]
    fn shows_every_fault_with_a_caret_in_the_order_of_the_file() {
        let text = "name: x\ndestination:\n  bucket: My Bucket\n";
        let faults = Faults::new(
            "a.yaml",
            text,
            vec![
                fault("destination.bucket", 3, 11, 9),
                Fault::new("source.model", "is missing"),
                fault("name", 1, 7, 1),
            ],
        );
        assert_eq!(
            faults.to_string(),
            "a.yaml has 3 faults

source.model: is missing

name: is wrong
 --> a.yaml:1:7
  |
1 | name: x
  |       ^

destination.bucket: is wrong
 --> a.yaml:3:11
  |
3 |   bucket: My Bucket
  |           ^^^^^^^^^"
        );
        let error = Error::from(faults);
        assert_eq!(error.kind(), crate::error::ErrorKind::Config);
    }

    #[test]
    fn lines_never_show_secrets() {
        for line in [
            "    password: hunter2",
            "secret_access_key: \"hunter2\"",
            "  url: https://me:hunter2@host:8443",
            "{session_token: hunter2, password: x}",
        ] {
            let faults = Faults::new("c.yaml", line, vec![fault("x", 1, 5, 3)]);
            assert!(!faults.to_string().contains("hunter2"), "{faults}");
            assert!(!format!("{faults:?}").contains("hunter2"));
        }
        assert_eq!(hide_secrets("password_file: /run/x"), "password_file: /run/x");
        assert_eq!(hide_secrets("{url: a, 'password' : x}"), "{url: a, 'password' : <hidden>}".trim_end_matches('}'));
        let faults = Faults::new("c.yaml", "password: |\n  hunter2", vec![fault("x", 2, 3, 3)]);
        assert!(!faults.to_string().contains("hunter2"), "{faults}");
    }

    #[test]
    fn a_caret_stays_on_its_line() {
        let faults = Faults::new("a.yaml", "ab", vec![fault("x", 1, 2, 50), fault("y", 9, 9, 1)]);
        assert!(faults.to_string().contains("1 | ab\n  |  ^\n"), "{faults}");
    }
}
