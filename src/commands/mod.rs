//! One file per command.

pub(crate) mod check;
pub(crate) mod jobs;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod start;
pub(crate) mod worker;
