//! Reset streams: the rates at which the client of one connection, and the clients of one address,
//! reset streams before their answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::auth::throttle::{FailureRate, FailureThrottle};
use crate::dispatcher::clock::GatewayClock;
use crate::tls::address_group;

const WINDOW: Duration = Duration::from_secs(10);
/// Resets of one address that its answers do not make up for: four connections' worth in a window.
const ADDRESS_RATE: FailureRate = FailureRate { burst: 2048, per_minute: 12_288 };

/// Resets of a listener's clients, by address.
#[derive(Debug)]
pub(in crate::proxy::listener) struct AddressResets {
    clock: GatewayClock,
    throttle: Mutex<FailureThrottle>,
}

impl AddressResets {
    pub(in crate::proxy::listener) fn new() -> Arc<Self> {
        Arc::new(Self { clock: GatewayClock::start(), throttle: Mutex::default() })
    }

    /// The resets of one client. Without an address, as behind a load balancer, they count for the
    /// connection only.
    pub(in crate::proxy::listener) fn of(self: &Arc<Self>, client: Option<IpAddr>) -> ClientResets {
        ClientResets { all: Arc::clone(self), address: client.map(address_group) }
    }
}

/// Resets of one client's address.
#[derive(Debug)]
pub(in crate::proxy::listener) struct ClientResets {
    all: Arc<AddressResets>,
    address: Option<u128>,
}

impl ClientResets {
    /// Whether the address has reset too many streams.
    pub(in crate::proxy::listener) fn are_too_many(&self) -> bool {
        let now = self.all.clock.now();
        self.address.is_some_and(|who| self.all.throttle.lock().is_above_rate(who, now, ADDRESS_RATE))
    }

    /// Counts resets of the address. Returns whether they are too many now.
    pub(in crate::proxy::listener) fn count(&self, resets: usize) -> bool {
        let (now, count) = (self.all.clock.now(), u32::try_from(resets).unwrap_or(u32::MAX));
        self.address.is_some_and(|who| self.all.throttle.lock().charge(who, count, now, ADDRESS_RATE))
    }
}

/// Whose resets are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TooManyResets {
    /// Those of the connection.
    Connection,
    /// Those of all connections of its address.
    Address,
}

/// Streams of one connection in the current window. A window begins with a reset.
#[derive(Debug)]
pub(super) struct StreamResets {
    /// Most streams that a client may reset in a window, unless it lets as many run.
    most: usize,
    since: Option<Instant>,
    opened: usize,
    reset: usize,
    /// Resets of the window that were counted for the address.
    counted: usize,
    client: ClientResets,
}

impl StreamResets {
    /// Counts nothing yet. A client that cancels all streams that it may have open, which are
    /// `max_open`, opens as many again and cancels those is within the limit.
    pub(super) fn new(max_open: u32, client: ClientResets) -> Self {
        let most = usize::try_from(max_open).unwrap_or(usize::MAX).saturating_mul(2);
        Self { most, since: None, opened: 0, reset: 0, counted: 0, client }
    }

    /// Notes how many streams were opened and how many were reset before their answers began. Returns
    /// whether these are too many. Of a connection that is more than the limit in a window, and more
    /// than half of the streams opened in it; the next window then begins. Of an address it is more
    /// than its rate; resets of a connection count for it once they are more than half of the
    /// connection's streams.
    pub(super) fn note(&mut self, opened: usize, reset: usize) -> Option<TooManyResets> {
        self.opened = self.opened.saturating_add(opened);
        if reset == 0 {
            return None;
        }
        let now = Instant::now();
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            (self.since, self.opened, self.reset, self.counted) = (Some(now), opened, 0, 0);
        }
        self.reset = self.reset.saturating_add(reset);
        // Each stream that is not reset makes up for one that is.
        let excess = self.reset.saturating_mul(2).saturating_sub(self.opened).min(self.reset);
        let fresh = excess.saturating_sub(self.counted);
        self.counted += fresh;
        let is_address = fresh > 0 && self.client.count(fresh);
        if self.reset > self.most && excess > 0 {
            self.since = None;
            return Some(TooManyResets::Connection);
        }
        is_address.then_some(TooManyResets::Address)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const OPEN: usize = 256;
    const FLOOD: Option<TooManyResets> = Some(TooManyResets::Connection);

    /// A connection of a client whose address is not known.
    fn resets() -> StreamResets {
        StreamResets::new(256, AddressResets::new().of(None))
    }

    fn of(all: &Arc<AddressResets>, address: &str) -> ClientResets {
        all.of(Some(address.parse().unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn who_resets_nearly_all_streams_is_told_from_who_cancels_now_and_then() {
        let mut flood = resets();
        let calls = (1..).find(|_| flood.note(1, 1) == FLOOD);
        assert_eq!(calls, Some(2 * OPEN + 1));
        assert_eq!(flood.note(1, 1), None, "a new window begins");

        // All streams that may be open, twice in a row.
        let mut cancels_all = resets();
        for _ in 0..2 {
            assert_eq!(cancels_all.note(OPEN, 0), None);
            assert_eq!(cancels_all.note(0, OPEN), None);
        }
        // Many users behind one proxy: a third of them stop early.
        let mut many_users = resets();
        assert!((0..20 * OPEN).all(|_| many_users.note(3, 1).is_none()));
    }

    #[tokio::test(start_paused = true)]
    async fn resets_are_forgotten_after_a_window() {
        let mut resets = resets();
        for _ in 0..10 {
            assert_eq!(resets.note(2 * OPEN, 2 * OPEN), None);
            advance(WINDOW).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_connections_of_one_address_are_bounded_together() {
        let all = AddressResets::new();
        let (hostile, other) = (of(&all, "10.0.0.1"), of(&all, "10.0.0.2"));
        let mut connections = (0..100).map(|_| StreamResets::new(256, of(&all, "10.0.0.1")));
        // Each of them cancels all that it may have open, once.
        let within = connections.by_ref().map(|mut one| one.note(OPEN, OPEN)).take_while(Option::is_none);
        assert_eq!(within.count(), 7);
        let mut last = connections.next().unwrap();
        assert_eq!(last.note(OPEN, OPEN), Some(TooManyResets::Address));
        assert!(hostile.are_too_many() && !other.are_too_many());

        // Beside it, a connection whose streams are answered cancels a few.
        let mut honest = connections.next().unwrap();
        assert_eq!(honest.note(30, 10), None);
        assert_eq!(StreamResets::new(256, of(&all, "10.0.0.2")).note(OPEN, OPEN), None);
        assert_eq!(StreamResets::new(256, all.of(None)).note(OPEN, OPEN), None);

        advance(Duration::from_secs(2)).await;
        assert!(!hostile.are_too_many(), "what it owed is made up for");
        let mut next = connections.next().unwrap();
        assert_eq!(next.note(OPEN, OPEN), Some(TooManyResets::Address));
    }

    #[tokio::test(start_paused = true)]
    async fn resets_count_for_the_address_once() {
        let all = AddressResets::new();
        let mut one = StreamResets::new(256, of(&all, "10.0.0.1"));
        for _ in 0..10 {
            assert_eq!(one.note(50, 50), None, "500 in all");
            assert_eq!(one.note(50, 0), None, "and as many that stay");
        }
        let rest = ADDRESS_RATE.burst - 51;
        assert!(!of(&all, "10.0.0.1").count(usize::try_from(rest).unwrap()));
        assert!(of(&all, "10.0.0.1").count(1), "50 were counted before");
    }
}
