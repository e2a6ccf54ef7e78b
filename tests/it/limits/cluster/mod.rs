//! Limits, overrides and demand reports that several gateways share.

mod fleet;
mod gateways;
mod losses;
mod overrides;
mod reports;
