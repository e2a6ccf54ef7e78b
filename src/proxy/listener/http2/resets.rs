//! Reset streams: the rate at which the client of one connection resets streams before their answers.

use std::time::Duration;

use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(10);

/// Streams of one connection in the current window. A window begins with a reset.
#[derive(Debug)]
pub(super) struct StreamResets {
    /// Most streams that a client may reset in a window, unless it lets as many run.
    most: usize,
    since: Option<Instant>,
    opened: usize,
    reset: usize,
}

impl StreamResets {
    /// Counts nothing yet. A client that cancels all streams that it may have open, which are
    /// `max_open`, opens as many again and cancels those is within the limit.
    pub(super) fn new(max_open: u32) -> Self {
        let most = usize::try_from(max_open).unwrap_or(usize::MAX).saturating_mul(2);
        Self { most, since: None, opened: 0, reset: 0 }
    }

    /// Notes how many streams were opened and how many were reset before their answers began.
    /// Returns whether these are too many: more than the limit in a window, and more than half of the
    /// streams opened in it. The next window then begins.
    pub(super) fn note(&mut self, opened: usize, reset: usize) -> bool {
        self.opened = self.opened.saturating_add(opened);
        if reset == 0 {
            return false;
        }
        let now = Instant::now();
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            *self = Self { since: Some(now), opened, reset: 0, most: self.most };
        }
        self.reset = self.reset.saturating_add(reset);
        let too_many = self.reset > self.most && self.reset > self.opened / 2;
        if too_many {
            self.since = None;
        }
        too_many
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const OPEN: usize = 256;

    fn resets() -> StreamResets {
        StreamResets::new(256)
    }

    #[tokio::test(start_paused = true)]
    async fn who_resets_nearly_all_streams_is_told_from_who_cancels_now_and_then() {
        let mut flood = resets();
        let calls = (1..).find(|_| flood.note(1, 1));
        assert_eq!(calls, Some(2 * OPEN + 1));
        assert!(!flood.note(1, 1), "a new window begins");

        // All streams that may be open, twice in a row.
        let mut cancels_all = resets();
        for _ in 0..2 {
            assert!(!cancels_all.note(OPEN, 0));
            assert!(!cancels_all.note(0, OPEN));
        }
        // Many users behind one proxy: a third of them stop early.
        let mut many_users = resets();
        assert!((0..20 * OPEN).all(|_| !many_users.note(3, 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn resets_are_forgotten_after_a_window() {
        let mut resets = resets();
        for _ in 0..10 {
            assert!(!resets.note(2 * OPEN, 2 * OPEN));
            advance(WINDOW).await;
        }
    }
}
