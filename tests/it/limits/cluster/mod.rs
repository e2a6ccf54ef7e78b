//! Limits, overrides, demand reports and fair shares that several gateways share.

mod failover;
mod fairness;
mod fleet;
mod gateways;
mod load;
mod losses;
mod overrides;
mod reports;
mod requests;
mod service;
