//! Limits and overrides that several gateways share.

mod fleet;
mod gateways;
mod losses;
mod overrides;
