//! Billing: the time of replicas by the job that used it, idle time, and the cost of both.

pub mod bill;
pub mod meter;
pub mod pool_account;
