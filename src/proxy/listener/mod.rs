//! Client listener: HTTP/1.1, HTTP/1.0 and HTTP/2, plain or over TLS, with strict checks of every
//! message.
//!
//! hyper parses and writes the messages. `http1::strict_io` stands in front of hyper's HTTP/1. It frames
//! the client's bytes itself (`http1::framing`, `http1::head`: pure) and passes on nothing that two
//! parsers could read differently; `http2` checks what hyper parsed from HTTP/2. `accept` takes
//! connections, `client_address` finds whose they are, `open_connections` says which end for new ones
//! (by `proxy::body::progress`: how fast their bodies arrive), `workers` are the threads that serve them, and `connection` runs hyper on one of them. `clock` bounds
//! every wait, and `answer` stands between hyper and the service.

mod accept;
mod answer;
mod client_address;
mod clock;
mod conn_state;
mod connection;
mod http1;
mod http2;
mod open_connections;
mod rejected;
mod socket;
pub(super) mod workers;

pub use accept::{ClientConnection, listen, serve};
#[cfg(any(test, fuzzing))]
pub(crate) use http1::framing::fuzz_head;
pub use open_connections::ListenerShutdown;
pub use rejected::RequestRejected;
pub use workers::Workers;
