//! Billing: replicas' time by the job that used it, and its price.

pub mod bill;
pub mod meter;
pub mod pool_account;
