//! What work costs: replicas' time by who used it, and its price.

pub mod bill;
pub mod meter;
pub mod pool_account;
