//! Which jobs become rows: what keys say about jobs that wait already.

use std::collections::{HashMap, HashSet};

use super::row::row_key;
use crate::job::{Job, KeyMode};

/// The jobs to write, one for each row, beside `held`, which wait already. Of two with one key the one that was made later
/// decides, in whatever order they come: a job may have been elsewhere meanwhile.
pub(super) fn admit(jobs: &[Job], held: Vec<Job>) -> Vec<Job> {
    let mut waiting = held.into_iter().map(|job| (row_key(&job), job)).collect::<HashMap<_, _>>();
    // In the order of their first mention: jobs of one queue that are due at once keep the order in which they came.
    let mut order = Vec::new();
    let mut admitted = HashSet::new();
    for job in jobs {
        let key = row_key(job);
        let stays = match waiting.get(&key) {
            None => job.clone(),
            // The same job came again.
            Some(other) if other.id == job.id => continue,
            Some(other) if other.id < job.id => resolve(other, job),
            Some(other) => resolve(job, other),
        };
        if waiting.get(&key) == Some(&stays) {
            continue;
        }
        waiting.insert(key.clone(), stays);
        if admitted.insert(key.clone()) {
            order.push(key);
        }
    }
    order.iter().filter_map(|key| waiting.remove(key)).collect()
}

/// Which of two jobs with one key runs, as the later one wants it.
fn resolve(earlier: &Job, later: &Job) -> Job {
    match later.key.as_ref().map(|key| key.mode) {
        None | Some(KeyMode::Skip) => earlier.clone(),
        Some(KeyMode::Replace) => later.clone(),
        Some(KeyMode::KeepRunTime) => later.clone().run_at(earlier.run_at),
    }
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
        let held = vec![keyed(1, KeyMode::Skip)];
        assert_eq!(payloads(&admit(&[keyed(2, KeyMode::Skip)], held.clone())), [0_u64; 0]);
        assert_eq!(payloads(&admit(&[keyed(2, KeyMode::Skip), keyed(3, KeyMode::Skip)], Vec::new())), [2]);
        assert_eq!(payloads(&admit(&[keyed(2, KeyMode::Replace), keyed(3, KeyMode::Replace)], held.clone())), [3]);
        let kept = admit(&[keyed(2, KeyMode::KeepRunTime), keyed(3, KeyMode::KeepRunTime)], held.clone());
        assert_eq!((payloads(&kept), kept[0].run_at), (vec![3], held[0].run_at));
    }

    /// It was with another provider, and is brought back.
    #[test]
    fn a_job_that_comes_late_does_not_replace_a_newer_one() {
        for mode in [KeyMode::Replace, KeyMode::KeepRunTime, KeyMode::Skip] {
            let (older, newer) = (keyed(1, mode), keyed(2, mode));
            let [in_order, late] = [(&older, &newer), (&newer, &older)].map(|(held, comes)| {
                let written = admit(std::slice::from_ref(comes), vec![held.clone()]);
                written.into_iter().next().unwrap_or_else(|| held.clone())
            });
            assert_eq!(in_order, late, "{mode:?}");
        }
    }

    #[test]
    fn a_job_that_waits_already_is_left_alone() {
        let waits = keyed(1, KeyMode::Replace);
        assert!(admit(std::slice::from_ref(&waits), vec![waits.clone()]).is_empty());
    }
}
