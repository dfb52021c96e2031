//! What a plugin remembers for a while.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde_json::Value;

/// What an entry takes besides its text, about. Unit: bytes.
const ENTRY_BYTES: usize = 128;

/// Values by key, each for a time or until there is no room.
///
/// # Invariants
/// Never holds more than its limits: those that were used longest ago go first.
#[derive(Debug)]
pub(crate) struct Cache {
    max_entries: usize,
    max_bytes: usize,
    entries: HashMap<String, Entry>,
    /// Keys by when they were last used.
    by_use: BTreeMap<u64, String>,
    uses: u64,
    num_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    value: Value,
    num_bytes: usize,
    expires_at: Option<Instant>,
    used: u64,
}

/// Why something isn't done.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CacheError {
    #[error("cache.set: `{key}` takes {num_bytes} bytes, more than the whole cache of {limit}; keep less in it")]
    TooLarge { key: String, num_bytes: usize, limit: usize },
    #[error("cache.incr: `{key}` holds no whole number of 64 bits; use another key")]
    NoInteger { key: String },
}

impl Cache {
    pub(crate) fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self { max_entries, max_bytes, entries: HashMap::new(), by_use: BTreeMap::new(), uses: 0, num_bytes: 0 }
    }

    pub(crate) fn get(&mut self, key: &str, now: Instant) -> Option<&Value> {
        self.live(key, now).map(|entry| &entry.value)
    }

    /// Sets a value that takes `value_bytes`, for a time or for good. What was there is gone, its time too.
    pub(crate) fn set(
        &mut self,
        key: String,
        value: Value,
        value_bytes: usize,
        time: Option<Duration>,
        now: Instant,
    ) -> Result<(), CacheError> {
        let num_bytes = ENTRY_BYTES + 2 * key.len() + value_bytes;
        if num_bytes > self.max_bytes || self.max_entries == 0 {
            return Err(CacheError::TooLarge { key, num_bytes, limit: self.max_bytes });
        }
        self.remove(&key);
        while self.entries.len() >= self.max_entries || self.num_bytes + num_bytes > self.max_bytes {
            let Some((_, oldest)) = self.by_use.first_key_value() else { break };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
        let expires_at = time.and_then(|time| now.checked_add(time));
        self.uses += 1;
        self.by_use.insert(self.uses, key.clone());
        self.num_bytes += num_bytes;
        self.entries.insert(key, Entry { value, num_bytes, expires_at, used: self.uses });
        Ok(())
    }

    /// Adds one, to nothing if need be; the time it stays doesn't change.
    pub(crate) fn incr(&mut self, key: &str, now: Instant) -> Result<i64, CacheError> {
        let Some(entry) = self.live(key, now) else {
            self.set(key.to_owned(), Value::from(1), size_of::<Value>(), None, now)?;
            return Ok(1);
        };
        let next = entry.value.as_i64().and_then(|value| value.checked_add(1));
        let next = next.ok_or_else(|| CacheError::NoInteger { key: key.to_owned() })?;
        entry.value = Value::from(next);
        Ok(next)
    }

    /// Lets a value go after a time; `false` when there is none.
    pub(crate) fn expire(&mut self, key: &str, time: Duration, now: Instant) -> bool {
        let expires_at = now.checked_add(time);
        self.live(key, now).map(|entry| entry.expires_at = expires_at).is_some()
    }

    /// The entry of a key, used now.
    fn live(&mut self, key: &str, now: Instant) -> Option<&mut Entry> {
        if self.entries.get(key)?.expires_at.is_some_and(|expires_at| expires_at <= now) {
            self.remove(key);
            return None;
        }
        self.uses += 1;
        let entry = self.entries.get_mut(key)?;
        if let Some(key) = self.by_use.remove(&entry.used) {
            self.by_use.insert(self.uses, key);
        }
        entry.used = self.uses;
        Some(entry)
    }

    fn remove(&mut self, key: &str) {
        if let Some(entry) = self.entries.remove(key) {
            self.by_use.remove(&entry.used);
            self.num_bytes -= entry.num_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn cache(max_entries: usize) -> (Cache, Instant) {
        (Cache::new(max_entries, 10_000), Instant::now())
    }

    fn set(cache: &mut Cache, key: &str, value: i64, now: Instant) {
        cache.set(key.to_owned(), Value::from(value), 32, None, now).expect("room");
    }

    #[test]
    fn values_go_when_their_time_is_over() {
        let (mut cache, now) = cache(10);
        cache.set("a".to_owned(), Value::from(1), 32, Some(SECOND), now).expect("room");
        assert_eq!(cache.get("a", now), Some(&Value::from(1)));
        assert_eq!(cache.incr("a", now + SECOND / 2), Ok(2), "counting leaves the time");
        assert_eq!(cache.get("a", now + SECOND), None);
        assert!(!cache.expire("a", SECOND, now + SECOND));
        assert_eq!(cache.incr("a", now + SECOND), Ok(1));
        assert!(cache.expire("a", SECOND, now + 10 * SECOND), "without a time it stays");
        set(&mut cache, "a", 7, now);
        assert_eq!(cache.get("a", now + 100 * SECOND), Some(&Value::from(7)), "setting forgets the time");
        assert!(cache.expire("a", Duration::MAX, now) && cache.get("a", now).is_some());
    }

    #[test]
    fn what_was_used_longest_ago_goes_when_there_is_no_room() {
        let (mut cache, now) = cache(2);
        set(&mut cache, "a", 1, now);
        set(&mut cache, "b", 2, now);
        assert!(cache.get("a", now).is_some());
        set(&mut cache, "c", 3, now);
        assert_eq!(["a", "b", "c"].map(|key| cache.get(key, now).is_some()), [true, false, true]);
        let mut bytes = Cache::new(100, 500);
        for index in 0..50 {
            set(&mut bytes, &format!("key {index}"), index, now);
            assert!(bytes.num_bytes <= 500 && bytes.entries.len() == bytes.by_use.len());
        }
        assert!(bytes.get("key 49", now).is_some() && bytes.entries.len() == 2);
        let refusal = bytes.set("big".to_owned(), Value::Null, 1_000, None, now).expect_err("too large").to_string();
        assert_eq!(refusal, "cache.set: `big` takes 1134 bytes, more than the whole cache of 500; keep less in it");
        assert!(bytes.get("key 49", now).is_some(), "what is refused costs nothing");
    }

    #[test]
    fn only_integers_are_counted() {
        let (mut cache, now) = cache(10);
        cache.set("text".to_owned(), Value::from("x"), 33, None, now).expect("room");
        set(&mut cache, "most", i64::MAX, now);
        for key in ["text", "most"] {
            assert_eq!(cache.incr(key, now), Err(CacheError::NoInteger { key: key.to_owned() }));
        }
    }
}
