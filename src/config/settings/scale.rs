//! The scale signal.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How the scale signal is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    /// Where KEDA connects; absent = nowhere. Takes effect only at a start.
    pub listen: Option<SocketAddr>,
    /// Streams that may be open at once. Takes effect only at a start.
    pub max_streams: usize,
    /// Subject alternative names, one of which a client's certificate must
    /// have; absent = none is asked for beyond TLS.
    pub names: Option<BTreeSet<String>>,
    /// Keeps the demand that was seen over a restart; absent = nothing does.
    /// Takes effect only at a start.
    pub state_file: Option<PathBuf>,
    /// Age at which what is known is not told any more.
    pub stale_after: Duration,
}
