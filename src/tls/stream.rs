//! Byte stream of a TCP connection, plain or TLS.

use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// The byte stream of one connection: plain TCP on the left, TLS on the right. `T` is the TLS stream,
/// that of a server or of a client.
pub type MaybeTlsStream<T = TlsStream<TcpStream>> = Either<TcpStream, Box<T>>;
