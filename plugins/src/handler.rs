//! Jobs of the queue that a plugin does.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jobs::handler::{Failure, Handler};
use jobs::job::Job;
use serde_json::Value;

use crate::error::PluginError;
use crate::name::{self, Target};
use crate::plugin::Plugin;

/// Does the jobs of one plugin.
#[derive(Debug, Clone)]
pub struct PluginJobs {
    plugin: Plugin,
}

impl PluginJobs {
    /// Does the jobs of `plugin`.
    #[must_use]
    pub fn new(plugin: Plugin) -> Self {
        Self { plugin }
    }

    /// The names of all jobs that it does: this is to be the handler of each.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let (plugin, offer) = (self.plugin.name(), self.plugin.offer());
        let retry = offer.on_retry.then(|| name::retry(plugin));
        offer.jobs.iter().map(|job| name::job(plugin, job)).chain(retry).collect()
    }

    async fn attempt(&self, job: &Job) -> Result<(), Failure> {
        let outcome = match name::target(self.plugin.name(), &job.name) {
            Some(Target::Job(name)) => self.plugin.run_job(name, job.payload.clone()).await,
            Some(Target::Retry) => {
                let (kind, payload) = (&job.payload["type"], &job.payload["payload"]);
                let Value::String(kind) = kind else {
                    return Err(Failure::fatal(format!("the payload of `{}` names no type; remove the job", job.name)));
                };
                self.plugin.retry(kind, payload.clone()).await
            }
            None => {
                let plugin = self.plugin.name();
                return Err(Failure::fatal(format!("jobs named `{}` are not those of plugin `{plugin}`", job.name)));
            }
        };
        outcome.map_err(|error| failure(&error))
    }
}

/// What isn't there doesn't come by trying again; all else may pass.
fn failure(error: &PluginError) -> Failure {
    match error {
        PluginError::UnknownJob { .. } | PluginError::Missing { .. } | PluginError::TooLarge { .. } => {
            Failure::fatal(error.to_string())
        }
        _ => Failure::new(error.to_string()),
    }
}

impl Handler for PluginJobs {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<(), Failure>> {
        self.attempt(job).boxed()
    }
}
