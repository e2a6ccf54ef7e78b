//! Events of replicas and pools: discovery, starts, faults, probes and sleep.

pub(super) mod discovery;
pub(super) mod pool;
pub(super) mod replica;
pub(super) mod sleep;
