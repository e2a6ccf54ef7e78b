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
mod metrics;
mod progress;
mod rejected;
mod shutdown;
mod socket;

pub use accept::{listen, serve};
pub use rejected::RequestRejected;
pub use shutdown::ListenerShutdown;
