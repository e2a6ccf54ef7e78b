//! Contributions: what each replica adds to the counts of its pool.

/// Contribution of one replica to its pool's counts, or the sum over the pool's replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PoolCounts {
    pub(super) up: u32,
    /// Replicas whose engine answered "busy".
    pub(super) busy: u32,
    /// Ejected replicas.
    pub(super) out: u32,
    /// Replicas at which nothing answers, or that are about to leave.
    pub(super) away: u32,
    /// Replicas that sleep or wake.
    pub(super) sleepers: u32,
    /// Replicas that sleep and can be woken.
    pub(super) can_wake: u32,
    /// Replicas in service that are released now.
    pub(super) released: u32,
    /// Reserved replicas that prefill a long prompt of a background job now.
    pub(super) background_prefills: u32,
    /// Sequences that the replicas in service may have.
    pub(super) capacity: u64,
    /// Sequences that the waking replicas take at full size.
    pub(super) waking: u64,
}

impl PoolCounts {
    /// Replaces a replica's contribution `before` by `after`. The sum cannot fall below zero, since
    /// it holds `before`.
    pub(super) fn replace(&mut self, before: Self, after: Self) {
        let small = |sum: &mut u32, before: u32, after: u32| *sum = *sum + after - before;
        small(&mut self.up, before.up, after.up);
        small(&mut self.busy, before.busy, after.busy);
        small(&mut self.out, before.out, after.out);
        small(&mut self.away, before.away, after.away);
        small(&mut self.sleepers, before.sleepers, after.sleepers);
        small(&mut self.can_wake, before.can_wake, after.can_wake);
        small(&mut self.released, before.released, after.released);
        small(&mut self.background_prefills, before.background_prefills, after.background_prefills);
        self.capacity = self.capacity + after.capacity - before.capacity;
        self.waking = self.waking + after.waking - before.waking;
    }
}
