//! Messages between gateways: an operator asks any of them for a request.

mod questions;
pub(super) mod share;

pub(in crate::cluster) use questions::Questions;
pub use questions::{FleetAnswer, RequestFinder};
