//! Of jobs with one key, the one that is to run.

use std::collections::BTreeMap;

use jiff::Timestamp;
use uuid::Uuid;

use super::table::Head;
use crate::job::{JobId, KeyMode};

/// What becomes of waiting jobs with keys.
#[derive(Debug, Default)]
pub(super) struct Merged {
    /// Those that stay.
    pub(super) stay: Vec<Head>,
    /// Those that stay and have to run at another time.
    pub(super) moved: Vec<(Head, Timestamp)>,
    /// The entries of those that don't.
    pub(super) gone: Vec<(JobId, Uuid)>,
}

/// Does what keys say, in the order in which the jobs were made.
pub(super) fn merge(heads: Vec<Head>) -> Merged {
    let mut by_key: BTreeMap<String, Vec<Head>> = BTreeMap::new();
    for head in heads {
        let key = head.job.key.as_ref().map(|key| key.key.clone()).unwrap_or_default();
        by_key.entry(key).or_default().push(head);
    }
    let mut merged = Merged::default();
    for mut heads in by_key.into_values() {
        heads.sort_unstable_by_key(|head| head.job.id);
        let mut heads = heads.into_iter();
        let Some(mut winner) = heads.next() else { continue };
        let mut run_at = winner.job.run_at;
        for later in heads {
            let mode = later.job.key.as_ref().map_or(KeyMode::Replace, |key| key.mode);
            let loser = if mode == KeyMode::Skip { later } else { std::mem::replace(&mut winner, later) };
            merged.gone.extend(loser.entries.iter().map(|entry| (loser.job.id, *entry)));
            if mode == KeyMode::Replace {
                run_at = winner.job.run_at;
            }
        }
        if run_at == winner.job.run_at {
            merged.stay.push(winner);
        } else {
            merged.moved.push((winner, run_at));
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::job::Job;

    fn head(second: i64, mode: KeyMode) -> Head {
        let job = Job::new("any", json!(null)).and_then(|job| job.with_key("k", mode)).expect("a job");
        Head { job: job.run_at(Timestamp::from_second(second).expect("a time")), entries: vec![Uuid::new_v4()] }
    }

    #[test]
    fn several_of_one_key_are_taken_in_turn() {
        let heads = [
            head(9, KeyMode::Replace),
            head(5, KeyMode::Replace),
            head(8, KeyMode::Skip),
            head(7, KeyMode::KeepRunTime),
            head(6, KeyMode::KeepRunTime),
        ];
        let mut shuffled = heads.to_vec();
        shuffled.reverse();
        let merged = merge(shuffled);
        let [(winner, run_at)] = merged.moved.as_slice() else { panic!("one stays: {merged:?}") };
        assert_eq!((winner.job.id, run_at.as_second()), (heads[4].job.id, 5));
        let mut gone = merged.gone.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        gone.sort_unstable();
        assert_eq!(gone, heads[..4].iter().map(|head| head.job.id).collect::<Vec<_>>());
        assert!(merged.stay.is_empty());
    }

    #[test]
    fn other_keys_are_other_jobs() {
        let mut other = head(1, KeyMode::Replace);
        other.job = other.job.with_key("other", KeyMode::Replace).expect("a key");
        let merged = merge(vec![head(2, KeyMode::Replace), other]);
        assert_eq!((merged.stay.len(), merged.moved.len(), merged.gone.len()), (2, 0, 0));
    }
}
