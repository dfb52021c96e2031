//! Which jobs become rows: what keys say about jobs that wait already.

use std::collections::HashMap;

use crate::job::{Job, JobKey, KeyMode};

/// The key of a job's row: its own, or its id.
pub(super) fn row_key(job: &Job) -> String {
    match &job.key {
        Some(JobKey { key, .. }) => format!("key:{key}"),
        None => format!("id:{}", job.id),
    }
}

/// The jobs to write, one for each row, beside `held`, which wait already.
pub(super) fn admit(jobs: &[Job], held: Vec<Job>) -> Vec<Job> {
    let mut waiting = held.into_iter().map(|job| (row_key(&job), job)).collect::<HashMap<_, _>>();
    // In the order of their first mention: jobs of one queue that are due at once keep the order in which they came.
    let mut order = Vec::new();
    let mut admitted = HashMap::new();
    for job in jobs {
        let key = row_key(job);
        let mut job = job.clone();
        if let Some(earlier) = waiting.get(&key) {
            match job.key.as_ref().map(|key| key.mode) {
                // The same job came again.
                _ if earlier.id == job.id => continue,
                None | Some(KeyMode::Skip) => continue,
                Some(KeyMode::KeepRunTime) => job.run_at = earlier.run_at,
                Some(KeyMode::Replace) => {}
            }
        }
        waiting.insert(key.clone(), job.clone());
        if admitted.insert(key.clone(), job).is_none() {
            order.push(key);
        }
    }
    order.iter().filter_map(|key| admitted.remove(key)).collect()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::json;

    use super::*;

    fn job(payload: u32) -> Job {
        Job::new("any", json!(payload)).expect("a job")
    }

    fn keyed(payload: u32, mode: KeyMode) -> Job {
        let later = job(payload);
        let run_at = later.run_at + SignedDuration::from_secs(payload.into());
        later.run_at(run_at).with_key("k", mode).expect("a key")
    }

    fn payloads(jobs: &[Job]) -> Vec<u64> {
        jobs.iter().filter_map(|job| job.payload.as_u64()).collect()
    }

    #[test]
    fn jobs_without_keys_come_once_and_in_order() {
        let (one, two) = (job(1), job(2));
        assert_eq!(payloads(&admit(&[two.clone(), one.clone(), two, one], Vec::new())), [2, 1]);
    }

    #[test]
    fn keys_make_one_job_of_those_that_wait_and_those_that_come() {
        let held = || vec![keyed(1, KeyMode::Skip)];
        assert_eq!(payloads(&admit(&[keyed(2, KeyMode::Skip)], held())), [0_u64; 0]);
        assert_eq!(payloads(&admit(&[keyed(2, KeyMode::Skip), keyed(3, KeyMode::Skip)], Vec::new())), [2]);
        assert_eq!(payloads(&admit(&[keyed(2, KeyMode::Replace), keyed(3, KeyMode::Replace)], held())), [3]);
        let held = held();
        let kept = admit(&[keyed(2, KeyMode::KeepRunTime), keyed(3, KeyMode::KeepRunTime)], held.clone());
        assert_eq!((payloads(&kept), kept[0].run_at), (vec![3], held[0].run_at));
    }

    #[test]
    fn a_job_that_waits_already_is_left_alone() {
        let waits = keyed(1, KeyMode::Replace);
        assert!(admit(std::slice::from_ref(&waits), vec![waits.clone()]).is_empty());
    }
}
