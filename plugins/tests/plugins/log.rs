//! What plugins write to the log.

use std::io::{self, Write};
use std::sync::{LazyLock, Mutex, PoisonError};

use serde_json::Value;

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// One subscriber for all tests of this process, since plugins' threads have none of their own.
static SUBSCRIBER: LazyLock<()> = LazyLock::new(|| {
    tracing_subscriber::fmt().json().with_max_level(tracing::Level::DEBUG).with_writer(|| Writer).init();
});

struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins to note what is written.
pub(crate) fn listen() {
    LazyLock::force(&SUBSCRIBER);
}

/// The lines of a plugin so far: level and text.
pub(crate) fn lines(plugin: &str) -> Vec<(String, String)> {
    let bytes = LINES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let lines = String::from_utf8(bytes).expect("UTF-8");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mine =
        lines.filter(|line| line["fields"]["plugin"] == plugin || line.to_string().contains(&format!("`{plugin}`")));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    mine.map(|line| (text(&line["level"]), line["fields"].to_string())).collect()
}

/// Whether a plugin has written a line with this level and text.
pub(crate) fn has(plugin: &str, level: &str, text: &str) -> bool {
    lines(plugin).iter().any(|(at, line)| at == level && line.contains(text))
}
