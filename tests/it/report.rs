//! What the rigs have found, for docs/reliability.md: `make chaos` collects it.

use std::path::PathBuf;

use serde_json::Value;

/// Leaves figures in the folder that `BATCH_EXPORT_RELIABILITY` names, if it is set.
pub(crate) fn report(rig: &str, figures: &Value) {
    if let Some(folder) = std::env::var_os("BATCH_EXPORT_RELIABILITY").map(PathBuf::from) {
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join(format!("{rig}.json")), format!("{figures:#}\n")).expect("a file");
    }
}
