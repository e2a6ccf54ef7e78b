//! Signals that end the listener.

use tokio_util::sync::CancellationToken;

/// The two signals that end [`serve`](super::serve). Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ListenerShutdown {
    /// Take no new connections, close the idle ones, let requests finish.
    pub drain: CancellationToken,
    /// End everything now.
    pub abort: CancellationToken,
}
