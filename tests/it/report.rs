//! What the rigs have found, for docs/reliability.md: `make chaos` collects it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

/// Leaves figures in the folder that `BATCH_EXPORT_RELIABILITY` names, if it is set.
pub(crate) fn report(name: &str, figures: &Value) {
    if let Some(folder) = std::env::var_os("BATCH_EXPORT_RELIABILITY").map(PathBuf::from) {
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join(format!("{name}.json")), format!("{figures:#}\n")).expect("a file");
    }
}

/// How often each kind of fault was tried and survived. It is reported when it is dropped, also by a test that fails.
#[derive(Debug)]
pub(crate) struct Score {
    name: String,
    kinds: BTreeMap<String, [u64; 2]>,
}

impl Score {
    /// Of a rig's test; names that begin with the rig's are counted together.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), kinds: BTreeMap::new() }
    }

    /// Something is about to break.
    pub(crate) fn tried(&mut self, kind: &str) {
        self.kinds.entry(kind.to_owned()).or_default()[0] += 1;
    }

    /// It broke, and everything that must hold did.
    pub(crate) fn survived(&mut self, kind: &str) {
        self.kinds.entry(kind.to_owned()).or_default()[1] += 1;
    }
}

impl Drop for Score {
    fn drop(&mut self) {
        report(&self.name, &json!(self.kinds));
    }
}
