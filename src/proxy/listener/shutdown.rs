//! Listener shutdown: the two signals that end the listener.

use tokio_util::sync::CancellationToken;

/// The two signals that end [`serve`](super::serve). Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ListenerShutdown {
    /// Accept no new connections, close idle connections, and let running requests finish.
    pub drain: CancellationToken,
    /// End all connections now.
    pub abort: CancellationToken,
}
