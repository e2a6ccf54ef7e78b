//! Studies: questions answered by simulated worlds ([`crate::sim::world`]): what a scenario does,
//! which replicas a demand needs, whether the gateway costs throughput.

pub mod no_harm;
pub mod plan;
pub mod scenario;
