//! A budget of bytes that several tasks share.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The grain of the budget. Unit: bytes. A semaphore's single request is 32 bits wide: with bytes it would end at 4 GiB.
const GRAIN_BYTES: u64 = 1024;

/// So many bytes may be held at once, and no more; whoever wants some waits its turn, first come, first served.
#[derive(Debug, Clone)]
pub(crate) struct ByteBudget {
    semaphore: Arc<Semaphore>,
    capacity_grains: u32,
}

/// The right to hold bytes; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct BytePermit {
    permit: OwnedSemaphorePermit,
    num_bytes: u64,
}

impl BytePermit {
    /// The bytes that it stands for, rounded up to the grain.
    pub(crate) const fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    /// Gives back what is over so many bytes.
    pub(crate) fn shrink_to(&mut self, num_bytes: u64) {
        let grains = num_bytes.div_ceil(GRAIN_BYTES).min(self.num_bytes / GRAIN_BYTES);
        let over = self.num_bytes / GRAIN_BYTES - grains;
        // Of what it has, so there is as much to give back.
        drop(usize::try_from(over).ok().and_then(|over| self.permit.split(over)));
        self.num_bytes = grains * GRAIN_BYTES;
    }

    /// Takes what another one stands for: both are given back together.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.permit.merge(other.permit);
        self.num_bytes += other.num_bytes;
    }
}

impl ByteBudget {
    /// A budget of `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        let capacity_grains = u32::try_from(bytes / GRAIN_BYTES).unwrap_or(u32::MAX).max(1);
        Self { semaphore: Arc::new(Semaphore::new(capacity_grains as usize)), capacity_grains }
    }

    /// Everything it has when nobody holds any. Unit: bytes.
    pub(crate) fn capacity(&self) -> u64 {
        u64::from(self.capacity_grains) * GRAIN_BYTES
    }

    /// Held now. Unit: bytes.
    pub(crate) fn held(&self) -> u64 {
        self.capacity() - self.semaphore.available_permits() as u64 * GRAIN_BYTES
    }

    /// Whether `bytes` could be had while `held` are not given back.
    pub(crate) fn fits_beside(&self, held: u64, bytes: u64) -> bool {
        held.saturating_add(bytes.next_multiple_of(GRAIN_BYTES)) <= self.capacity()
    }

    /// Waits until `bytes` are free and takes them; `None` when the budget could never give as many.
    ///
    /// # Cancel safety
    /// Dropping the future takes nothing.
    pub(crate) async fn acquire(&self, bytes: u64) -> Option<BytePermit> {
        let grains =
            u32::try_from(bytes.div_ceil(GRAIN_BYTES)).ok().filter(|grains| *grains <= self.capacity_grains)?;
        // The semaphore is never closed, so the only error can't happen.
        let permit = Arc::clone(&self.semaphore).acquire_many_owned(grains).await.ok()?;
        Some(BytePermit { permit, num_bytes: u64::from(grains) * GRAIN_BYTES })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn gives_back_on_drop_and_refuses_the_impossible() {
        let budget = ByteBudget::new(10 * GRAIN_BYTES);
        let permit = budget.acquire(9 * GRAIN_BYTES + 1).await.expect("fits exactly");
        assert_eq!(permit.num_bytes(), budget.capacity());
        assert_eq!(budget.held(), budget.capacity());
        drop(permit);
        assert_eq!(budget.held(), 0);
        assert!(budget.acquire(10 * GRAIN_BYTES + 1).await.is_none());
        let mut permit = budget.acquire(8 * GRAIN_BYTES).await.expect("fits");
        for (bytes, grains) in [(9 * GRAIN_BYTES, 8), (2 * GRAIN_BYTES + 1, 3), (0, 0)] {
            permit.shrink_to(bytes);
            assert_eq!([permit.num_bytes(), budget.held()], [grains * GRAIN_BYTES; 2]);
        }
    }
}
