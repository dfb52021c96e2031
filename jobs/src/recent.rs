//! What was seen lately.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// The latest values, up to a number.
#[derive(Debug)]
pub(crate) struct Recent<T> {
    values: HashSet<T>,
    order: VecDeque<T>,
    capacity: usize,
}

impl<T: Copy + Eq + Hash> Recent<T> {
    /// Remembers the latest `capacity` values.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { values: HashSet::new(), order: VecDeque::new(), capacity }
    }

    /// Remembers `value`, and forgets the oldest if there are too many.
    pub(crate) fn insert(&mut self, value: T) {
        if self.values.insert(value) {
            self.order.push_back(value);
        }
        while self.order.len() > self.capacity {
            if let Some(oldest) = self.order.pop_front() {
                self.values.remove(&oldest);
            }
        }
    }

    /// Whether `value` is remembered.
    pub(crate) fn contains(&self, value: &T) -> bool {
        self.values.contains(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut recent = Recent::new(2);
        [1, 2, 2, 3].into_iter().for_each(|value| recent.insert(value));
        assert_eq!([1, 2, 3].map(|value| recent.contains(&value)), [false, true, true]);
    }
}
