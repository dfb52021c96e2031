//! The names of plugins' jobs in the queue.

/// The name of jobs that a plugin's job does.
#[must_use]
pub fn job(plugin: &str, job: &str) -> String {
    format!("plugin:{plugin}:{job}")
}

/// The name of jobs that a plugin's `onRetry` does. Apart from [`job`], so that no job's name is taken.
#[must_use]
pub fn retry(plugin: &str) -> String {
    format!("plugin-retry:{plugin}")
}

/// What of a plugin does jobs with a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// A job of it.
    Job(&'a str),
    /// Its `onRetry`.
    Retry,
}

/// What of `plugin` does jobs named `name`; `None` for other names.
pub(crate) fn target<'a>(plugin: &str, name: &'a str) -> Option<Target<'a>> {
    if name.strip_prefix("plugin-retry:") == Some(plugin) {
        return Some(Target::Retry);
    }
    name.strip_prefix("plugin:")?.strip_prefix(plugin)?.strip_prefix(':').map(Target::Job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        assert_eq!(target("a.b", &job("a.b", "send:mail")), Some(Target::Job("send:mail")));
        assert_eq!(target("a", &retry("a")), Some(Target::Retry));
        assert_eq!(target("a", &job("a", "onRetry")), Some(Target::Job("onRetry")));
        for name in [job("ab", "x"), retry("ab"), "plugin:a".to_owned(), "a".to_owned()] {
            assert_eq!(target("a", &name), None, "{name}");
        }
    }
}
