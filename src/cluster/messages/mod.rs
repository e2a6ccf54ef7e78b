//! Messages between gateways: an operator asks any of them for a request, and one that starts asks what tenants have
//! used.

mod past_use;
mod questions;
pub(super) mod share;

pub(in crate::cluster) use questions::Questions;
pub use questions::{FleetAnswer, RequestFinder};
