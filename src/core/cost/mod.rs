//! What work costs: replicas' time by who used it, and its price.

pub mod account;
pub mod bill;
pub mod meter;
