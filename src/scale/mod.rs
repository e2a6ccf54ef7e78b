//! The scale signal at the edge: KEDA's external scaler over gRPC on a port of
//! its own, and the same numbers as JSON. What a pool needs is decided by the
//! core; here it is published, and told to whoever asks, from memory alone. Of
//! several gateways each tells the same.

mod activity;
mod answer;
mod ask;
mod board;
mod follow;
mod json;
mod peers;
mod proto;
mod rpc;
mod server;

pub use crate::scale::answer::METRIC;
pub use crate::scale::board::{Board, View};
pub use crate::scale::follow::{Feed, follow};
pub use crate::scale::json::router;
pub use crate::scale::peers::{PeerRules, TlsSource};
pub use crate::scale::server::{Allows, ScaleHandle, ScaleListener, start};
