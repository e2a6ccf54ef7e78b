//! Peer exchange: reports to the other gateways, and reports from them. The rules are the core's
//! ([`crate::core::autoscale::peers`]). The clock and the two transports are here: streams over connections
//! between the gateways, and the store of `cluster`.

mod dial;
mod exchange;
mod members;
mod serve;
mod store;
mod wire;

pub(super) use self::dial::listen;
pub(super) use self::serve::service;

pub use self::dial::PeerRules;
pub(super) use self::exchange::{PeerExchange, PeerState, shown};
#[cfg(any(test, fuzzing))]
pub(crate) use self::wire::fuzz_report;

#[cfg(test)]
mod tests;
