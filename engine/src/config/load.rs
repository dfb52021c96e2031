//! Files' texts to validated configuration.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::connections::{Connections, Surroundings};
use super::fault::{Fault, Faults, Position};
use super::lenient;
use super::raw::{RawConnections, RawExport};
use super::validate::Export;
use super::yaml;

/// The fields in which `${` is text: ClickHouse has heredocs, and a query isn't put together from the environment.
const VERBATIM: &[&str] = &["source.query"];

/// Reads the file of connections; `file` is its name for messages.
///
/// # Errors
/// All faults of the file.
pub fn connections(file: &str, text: &str, surroundings: Surroundings<'_>) -> Result<Connections, Faults> {
    self::file(file, text, surroundings, |raw: RawConnections| raw.validate(surroundings))
}

/// Reads a file of another shape by the same rules: every fault at once, each with its place, and `${NAME}` for variables.
/// `validate` makes of it what is used.
///
/// # Errors
/// All faults of the file.
pub fn file<T: DeserializeOwned, V>(
    file: &str,
    text: &str,
    surroundings: Surroundings<'_>,
    validate: impl FnOnce(T) -> Result<V, Vec<Fault>>,
) -> Result<V, Faults> {
    Reading::<T>::new(text, surroundings.variables).finish(file, text, validate)
}

/// Reads an export's file; `file` is its name for messages.
///
/// # Errors
/// All faults of the file.
pub fn export(
    file: &str,
    text: &str,
    connections: &Connections,
    cpus: u32,
    surroundings: Surroundings<'_>,
) -> Result<Export, Faults> {
    self::file(file, text, surroundings, |mut raw: RawExport| {
        raw.read_query_file(surroundings.read_file)?;
        raw.validate(connections, cpus)
    })
}

impl RawExport {
    /// Puts the text of `source.query_file` into `source.query`.
    ///
    /// # Errors
    /// The fault that keeps it from being read, or that there are two queries.
    pub fn read_query_file(&mut self, read_file: &dyn Fn(&Path) -> std::io::Result<String>) -> Result<(), Vec<Fault>> {
        let Some(file) = &self.source.query_file else { return Ok(()) };
        let fault = |message: String| Err(vec![Fault::new("source.query_file", message)]);
        if self.source.query.is_some() {
            return fault("stands beside source.query; keep one of the two".to_owned());
        }
        match read_file(Path::new(file)) {
            Ok(text) => {
                self.source.query = Some(text);
                Ok(())
            }
            Err(error) => fault(format!("can't read {file}: {error}")),
        }
    }
}

/// A file that was read as far as possible.
struct Reading<T> {
    raw: Option<T>,
    faults: Vec<Fault>,
    positions: BTreeMap<String, Position>,
}

impl<T: DeserializeOwned> Reading<T> {
    fn new(text: &str, variables: &BTreeMap<String, String>) -> Self {
        let mut root = match yaml::parse(text) {
            Ok(root) => root,
            Err(fault) => return Self { raw: None, faults: vec![fault], positions: BTreeMap::new() },
        };
        let mut faults = root.interpolate(variables, VERBATIM);
        let (raw, others) = lenient::read(&root);
        let (_, others) = split_known(others, &faults);
        faults.extend(others);
        Self { raw, faults, positions: root.positions() }
    }

    /// Validates what was read and gives each fault its place.
    fn finish<V>(
        mut self,
        file: &str,
        text: &str,
        validate: impl FnOnce(T) -> Result<V, Vec<Fault>>,
    ) -> Result<V, Faults> {
        let validated = self.raw.take().map(validate);
        match validated {
            Some(Ok(value)) if self.faults.is_empty() => return Ok(value),
            Some(Err(others)) => {
                // What could not be read is missing now; saying so again would mislead.
                let (_, others) = split_known(others, &self.faults);
                self.faults.extend(others);
            }
            Some(Ok(_)) | None => {}
        }
        for fault in &mut self.faults {
            fault.position = fault.position.or_else(|| nearest(&self.positions, &fault.path));
        }
        Err(Faults::new(file, text, self.faults))
    }
}

/// The faults at or below a field that has one already, and the others.
fn split_known(faults: Vec<Fault>, known: &[Fault]) -> (Vec<Fault>, Vec<Fault>) {
    faults.into_iter().partition(|fault| known.iter().any(|known| is_at_or_below(&fault.path, &known.path)))
}

fn is_at_or_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The place of a field, or of the nearest field around it that the file has; none for the file as a whole.
fn nearest(positions: &BTreeMap<String, Position>, path: &str) -> Option<Position> {
    let mut path = path;
    while !path.is_empty() {
        if let Some(position) = positions.get(path) {
            return Some(*position);
        }
        path = path.rfind(['.', '[']).map_or("", |end| &path[..end]);
    }
    None
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
