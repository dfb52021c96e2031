//! Processes whose clock is wrong.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Makes clocks wrong.
pub(crate) struct Clocks(TempDir);

impl Clocks {
    /// Compiles what is preloaded.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/clock.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(folder.path().join("clock.so")).arg(source);
        assert!(compiler.status().expect("a C compiler").success());
        Self(folder)
    }

    /// The variables of a process whose clock is so many seconds ahead, or behind.
    pub(crate) fn ahead(&self, seconds: i64) -> Vec<(&'static str, String)> {
        let library = self.0.path().join("clock.so").display().to_string();
        vec![("LD_PRELOAD", library), ("CLOCK_OFFSET", seconds.to_string())]
    }
}

#[test]
fn a_clock_is_as_wrong_as_it_should_be() {
    let clocks = Clocks::new();
    for seconds in [-3_600, 0, 3_600] {
        let output = Command::new("date").arg("+%s").envs(clocks.ahead(seconds)).output().expect("date");
        let told: i64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
        let difference = told - i64::try_from(now).expect("a time");
        assert!((difference - seconds).abs() <= 2, "{difference} instead of {seconds}");
    }
}
