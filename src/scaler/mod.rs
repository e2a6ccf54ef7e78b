//! Scale signal at the edge: KEDA's external scaler over gRPC on a port of its own, and the same
//! numbers as JSON. The core decides what a pool needs. The scaler publishes the decision and
//! answers from memory alone. All gateways give the same answer.

mod answer;
mod follow;
mod history;
mod json;
mod peers;
mod pool_signal;
mod proto;
mod rpc;
mod server;
mod signal_cache;
mod source;
mod trigger;

pub use crate::scaler::follow::keep_fresh;
pub use crate::scaler::json::router;
pub use crate::scaler::peers::PeerRules;
#[cfg(any(test, fuzzing))]
pub(crate) use crate::scaler::peers::fuzz_report;
pub use crate::scaler::server::{ScalerHandle, ScalerListener, start};
pub use crate::scaler::signal_cache::{SignalCache, SignalView};
pub use crate::scaler::source::DemandSource;
pub use crate::scaler::trigger::DESIRED_METRIC;
#[cfg(any(test, fuzzing))]
pub(crate) use crate::scaler::trigger::fuzz_trigger;
