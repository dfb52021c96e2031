//! What the activities need of the engine and of the configuration.

use std::fmt;

use engine::config::export::ExportConfig;
use engine::error::Result;
use engine::run::{Engine, RunContext, RunIdentity, RunReport};
use futures::future::BoxFuture;
use workflows::payload::S3ExportInput;

/// Runs one attempt of an export to its end. The engine does; tests put something else in its place.
pub trait Exporter: Send + Sync + fmt::Debug {
    /// See [`Engine::run`].
    fn run<'a>(
        &'a self,
        export: &'a ExportConfig,
        identity: &'a RunIdentity,
        context: &'a RunContext,
    ) -> BoxFuture<'a, Result<RunReport>>;
}

impl Exporter for Engine {
    fn run<'a>(
        &'a self,
        export: &'a ExportConfig,
        identity: &'a RunIdentity,
        context: &'a RunContext,
    ) -> BoxFuture<'a, Result<RunReport>> {
        Box::pin(self.run(export, identity, context))
    }
}

/// Makes a validated export of an input, with this worker's connections.
pub trait Resolver: Send + Sync + fmt::Debug {
    /// Resolves it.
    ///
    /// # Errors
    /// Every fault as a sentence, without secrets.
    fn resolve(&self, input: &S3ExportInput) -> Result<ExportConfig, Vec<String>>;
}
