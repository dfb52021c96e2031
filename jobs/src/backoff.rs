//! How long a job waits before it is tried again.

use std::time::Duration;

/// After so many attempts the wait stays the same: six hours, about.
const LAST_STEP: u16 = 10;

/// The wait before the attempt after `attempts` that failed: e to the power of their number, in seconds, up to six hours;
/// a quarter less or more by chance, so that jobs that failed together don't come back together.
#[must_use]
pub(crate) fn delay(attempts: u16) -> Duration {
    delay_by(attempts, fastrand::f64())
}

/// `chance` is in 0..1.
fn delay_by(attempts: u16, chance: f64) -> Duration {
    let seconds = f64::from(attempts.min(LAST_STEP)).exp();
    Duration::from_secs_f64(seconds * (0.75 + chance / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_a_bound_and_never_repeats_itself() {
        let middle = |attempts| delay_by(attempts, 0.5).as_secs();
        assert_eq!([1, 2, 5, 10, 11, u16::MAX].map(middle), [2, 7, 148, 22_026, 22_026, 22_026]);
        assert_eq!((delay_by(3, 0.0).as_secs(), delay_by(3, 1.0).as_secs()), (15, 25));
        assert_ne!(delay(5), delay(5));
    }
}
