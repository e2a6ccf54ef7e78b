//! The client listener: HTTP/1.1, HTTP/1.0 and HTTP/2, plain or over TLS,
//! strict about what it lets in.
//!
//! hyper parses and writes the messages. In front of its HTTP/1 stands
//! `strict_io`, which frames the client's bytes itself (`framing`, `head`,
//! `chunk`: pure) and passes on nothing that two parsers could read in two
//! ways. `clock` bounds every wait, `answer` stands between hyper and the
//! service, and `accept` keeps the connections.

mod accept;
mod answer;
mod clock;
mod conn_state;
mod connection;
mod http1;
mod http2;
mod progress;
mod rejected;
mod socket;

use std::io;

use tokio_util::sync::CancellationToken;

use crate::tls::HandshakeError;

pub use accept::{listen, serve};
pub use rejected::RequestRejected;

/// Any error, as hyper takes it from a body.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The two signals that end [`serve`]. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ListenerShutdown {
    /// Take no new connections, close the idle ones, let requests finish.
    pub drain: CancellationToken,
    /// End everything now.
    pub abort: CancellationToken,
}

/// What happens at the door, for metrics and logs. Called from the
/// connections' tasks: it must be quick.
pub trait ListenerEvents: Send + Sync + 'static {
    /// A connection was accepted.
    fn accepted(&self) {}
    /// An accepted connection has ended, for whatever reason.
    fn closed(&self) {}
    /// A message was refused, or given up because it did not come.
    fn refused(&self, _why: RequestRejected) {}
    /// A client took its answer too slowly, and the answer was cut off.
    fn cut_off(&self) {}
    /// A client that came was lost in the TLS handshake.
    fn handshake_failed(&self, _why: HandshakeError) {}
    /// The operating system gave no connection; mostly for want of file
    /// descriptors. Accepting goes on after a pause.
    fn accept_failed(&self, _error: &io::Error) {}
}

/// For those who do not want to know.
impl ListenerEvents for () {}
