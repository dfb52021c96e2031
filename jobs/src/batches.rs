//! Many jobs in parts, each of which a provider can take within the deadline of one request.

use crate::job::Job;

/// How many jobs are sent at once, and how many bytes of them: a bucket that takes a third of a second for each request has
/// them in time.
const MAX_JOBS: usize = 50;
const MAX_BYTES: usize = 2 * 1024 * 1024;

/// The first jobs that are sent together: at least one, unless there is none.
#[must_use]
pub fn first_batch(jobs: &[Job]) -> &[Job] {
    let mut num_bytes = 0;
    let fits = |job: &&Job| {
        num_bytes += job.num_bytes();
        num_bytes <= MAX_BYTES
    };
    let num_jobs = jobs.iter().take(MAX_JOBS).take_while(fits).count();
    &jobs[..num_jobs.max(1).min(jobs.len())]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sizes(jobs: &[Job]) -> Vec<usize> {
        let mut rest = jobs;
        let mut sizes = Vec::new();
        while !rest.is_empty() {
            let batch = first_batch(rest).len();
            sizes.push(batch);
            rest = &rest[batch..];
        }
        sizes
    }

    #[test]
    fn batches_are_bounded_by_jobs_and_bytes() {
        let small = (0..125).map(|number| Job::new("any", json!(number)).expect("a job")).collect::<Vec<_>>();
        assert_eq!(sizes(&small), [50, 50, 25]);
        let large = vec![Job::new("any", json!("x".repeat(900_000))).expect("a job"); 5];
        assert_eq!(sizes(&large), [2, 2, 1]);
        assert!(first_batch(&[]).is_empty());
    }
}
