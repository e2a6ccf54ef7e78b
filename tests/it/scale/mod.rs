//! Replicas and pools that come, go and sleep, and the scale signal.

pub(crate) mod cold_start;
pub(crate) mod demand;
pub(crate) mod discovery;
pub(crate) mod fleet;
pub(crate) mod keda;
pub(crate) mod kubernetes;
pub(crate) mod objectives;
pub(crate) mod sleep;
