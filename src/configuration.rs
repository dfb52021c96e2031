//! Files on disk to validated configuration.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use engine::config::connections::{Connections, Surroundings};
use engine::config::fault::Faults;
use engine::config::load;
use engine::config::validate::Export;

use crate::cli::{ConnectionsArgs, ExportArgs};
use crate::exit::{Exit, Failure};

/// The file of connections that is taken unasked when it lies beside the export.
const CONNECTIONS_FILE: &str = "connections.yaml";

/// Reads an export and the connections that it names.
pub(crate) fn load_export(arguments: &ExportArgs, variables: &BTreeMap<String, String>) -> Result<Export, Failure> {
    let text = read(&arguments.export)?;
    let connections = load_connections(&arguments.connections, arguments.export.parent(), variables)?;
    let read_file = reader_beside(&arguments.export);
    let surroundings = Surroundings { variables, read_file: &read_file };
    let file = arguments.export.display().to_string();
    Ok(load::export(&file, &text, &connections, cpus(), surroundings)?)
}

/// Reads the connections: the named file, or the one in `folder`, or the environment's alone.
pub(crate) fn load_connections(
    arguments: &ConnectionsArgs,
    folder: Option<&Path>,
    variables: &BTreeMap<String, String>,
) -> Result<Connections, Failure> {
    let beside = || folder.map(|folder| folder.join(CONNECTIONS_FILE)).filter(|path| path.exists());
    let Some(path) = arguments.connections.clone().or_else(beside) else {
        return Connections::from_environment(variables)
            .map_err(|faults| Faults::new("the environment", "", faults).into());
    };
    let text = read(&path)?;
    let read_file = reader_beside(&path);
    let surroundings = Surroundings { variables, read_file: &read_file };
    Ok(load::connections(&path.display().to_string(), &text, surroundings)?)
}

/// How many CPUs this process may use.
pub(crate) fn cpus() -> u32 {
    std::thread::available_parallelism().ok().and_then(|cpus| u32::try_from(cpus.get()).ok()).unwrap_or(1)
}

pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::not_found(format!("there is no file {}", path.display())),
        _ => Failure::from(anyhow::anyhow!("read {}: {error}", path.display())),
    })
}

/// Reads what is given on stdin; `what` names it for messages.
pub(crate) fn read_stdin(what: &str, max_bytes: usize) -> Result<String, Failure> {
    let mut text = String::new();
    // One byte more than may be tells that it is too much.
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    let read = io::stdin().take(limit).read_to_string(&mut text);
    read.map_err(|error| Failure::from(anyhow::anyhow!("read the {what} from stdin: {error}")))?;
    if text.len() > max_bytes {
        let message = format!("the {what} on stdin has more than {max_bytes} bytes; make it shorter");
        return Err(Failure::new(Exit::Usage, "Usage", message));
    }
    Ok(text)
}

/// Reads files that `path` names: relative to it.
pub(crate) fn reader_beside(path: &Path) -> impl Fn(&Path) -> io::Result<String> {
    let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    move |file| std::fs::read_to_string(folder.join(file))
}
