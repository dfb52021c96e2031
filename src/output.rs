//! Data on stdout: text for people, JSON for machines.
//!
//! Owns the rule that nothing but data goes to stdout. A machine reads one document there, whatever happens: with
//! `json` and `jsonl` a failure is that document, `{"error": …}`; as text it goes to stderr.

use std::ffi::OsString;
use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::exit::{Failure, FailureReport};

/// The version of the shape of all JSON documents.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// How data is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// One JSON document per line, as soon as there is one.
    Jsonl,
}

/// Where data goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    format: Format,
}

/// A document with its version.
#[derive(Serialize)]
struct Versioned<'a, T> {
    schema_version: u32,
    #[serde(flatten)]
    document: &'a T,
}

#[derive(Serialize)]
struct ErrorDocument<'a> {
    error: &'a FailureReport,
}

impl Output {
    pub(crate) const fn new(format: Format) -> Self {
        Self { format }
    }

    pub(crate) const fn is_text(self) -> bool {
        matches!(self.format, Format::Text)
    }

    /// Whether there is a document for each event, not only for the result.
    pub(crate) const fn is_stream(self) -> bool {
        matches!(self.format, Format::Jsonl)
    }

    /// Writes a document; `text` makes what people read.
    pub(crate) fn document<T: Serialize>(self, document: &T, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        let written = match self.format {
            Format::Text => text(),
            Format::Json => serde_json::to_string_pretty(&Versioned { schema_version: SCHEMA_VERSION, document })?,
            Format::Jsonl => serde_json::to_string(&Versioned { schema_version: SCHEMA_VERSION, document })?,
        };
        if written.is_empty() {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        match writeln!(stdout, "{written}").and_then(|()| stdout.flush()) {
            // Whoever read it has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => Ok(result?),
        }
    }

    /// Writes why a command failed.
    pub(crate) fn failure(self, failure: &Failure) {
        let document = ErrorDocument { error: failure.report() };
        let is_written = failure.is_written() || self.document(&document, String::new).is_ok();
        if self.is_text() || !is_written {
            // There is nowhere left to say that stderr is closed.
            drop(writeln!(io::stderr(), "error: {failure}"));
        }
    }
}

/// Rows under their headings as people read them, without lines or trailing blanks.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table.to_string().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// The format that arguments ask for which can't be parsed as a whole.
pub(crate) fn format_of(arguments: impl IntoIterator<Item = OsString>) -> Format {
    let mut is_value = false;
    for argument in arguments {
        let Some(text) = argument.to_str() else { continue };
        let value = match text.strip_prefix("--output=").or_else(|| text.strip_prefix("-o")) {
            Some("") | None if is_value => text,
            Some(value) => value.trim_start_matches('='),
            None => "",
        };
        if let Ok(format) = Format::from_str(value, false) {
            return format;
        }
        is_value = ["-o", "--output"].contains(&text);
    }
    Format::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_found_in_arguments_that_are_wrong() {
        let find = |arguments: &[&str]| format_of(arguments.iter().map(OsString::from));
        assert_eq!(find(&["run", "-o", "json", "--nope"]), Format::Json);
        assert_eq!(find(&["-ojsonl"]), Format::Jsonl);
        assert_eq!(find(&["--output=json"]), Format::Json);
        assert_eq!(find(&["--output", "jsonl", "x"]), Format::Jsonl);
        assert_eq!(find(&["run", "json"]), Format::Text);
        assert_eq!(find(&["-o", "xml"]), Format::Text);
    }
}
