//! Balancing of the reference proxy: the next server, and the requests that wait for one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use clap::ValueEnum;
use penstock::sim::rng::Rng;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// How a server is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Each in turn.
    RoundRobin,
    /// The one with the fewest requests in flight here; ties in turn.
    LeastRequest,
    /// The one with fewer requests in flight of two drawn at random.
    P2c,
    /// Any.
    Random,
}

#[derive(Debug)]
struct State {
    in_flight: Vec<usize>,
    waiting: VecDeque<oneshot::Sender<Lease>>,
    turn: usize,
    rng: Rng,
}

/// Chooses servers, and lets requests wait in one queue, first come first
/// served, while every server has `maxconn` of them.
#[derive(Debug)]
pub(super) struct Balance {
    mode: Mode,
    maxconn: usize,
    state: Mutex<State>,
}

/// A place at a server; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Lease {
    balance: Arc<Balance>,
    pub(super) server: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.balance.give_back(self.server);
    }
}

impl Balance {
    /// `maxconn`: requests at a server at once; absent = any number.
    pub(super) fn new(mode: Mode, servers: usize, maxconn: Option<usize>, seed: u64) -> Arc<Self> {
        let state =
            State { in_flight: vec![0; servers], waiting: VecDeque::new(), turn: 0, rng: Rng::new(seed) };
        Arc::new(Self { mode, maxconn: maxconn.unwrap_or(usize::MAX), state: Mutex::new(state) })
    }

    /// A place at a server, as soon as there is one.
    pub(super) async fn lease(self: &Arc<Self>) -> Lease {
        let wait = {
            let mut state = self.lock();
            if let Some(server) = self.choose_server(&mut state) {
                return Lease { balance: Arc::clone(self), server };
            }
            let (sender, wait) = oneshot::channel();
            state.waiting.push_back(sender);
            wait
        };
        match wait.await {
            Ok(lease) => lease,
            // The queue lives as long as we do: it drops nobody's sender.
            Err(_) => std::future::pending().await,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place at the next server that has one.
    fn choose_server(&self, state: &mut State) -> Option<usize> {
        let open: Vec<usize> =
            (0..state.in_flight.len()).filter(|server| state.in_flight[*server] < self.maxconn).collect();
        if open.is_empty() {
            return None;
        }
        let in_turn = |turn: usize| open.iter().copied().find(|server| *server >= turn).unwrap_or(open[0]);
        let server = match self.mode {
            Mode::RoundRobin => in_turn(state.turn),
            Mode::Random => open[state.rng.below(open.len() as u64) as usize],
            Mode::LeastRequest => {
                let fewest = open.iter().map(|server| state.in_flight[*server]).min().unwrap_or(0);
                let count = state.in_flight.len();
                let order = |server: &&usize| (**server + count - state.turn % count) % count;
                let tied = open.iter().filter(|server| state.in_flight[**server] == fewest);
                tied.min_by_key(order).copied().unwrap_or(open[0])
            }
            Mode::P2c => {
                let first = state.rng.below(open.len() as u64) as usize;
                let other = state.rng.below(open.len().saturating_sub(1).max(1) as u64) as usize;
                let second = if other >= first { (other + 1) % open.len() } else { other };
                let (first, second) = (open[first], open[second]);
                if state.in_flight[second] < state.in_flight[first] { second } else { first }
            }
        };
        state.in_flight[server] += 1;
        state.turn = (server + 1) % state.in_flight.len();
        Some(server)
    }

    /// Frees a place, and hands free places to those who wait.
    fn give_back(self: &Arc<Self>, server: usize) {
        self.lock().in_flight[server] -= 1;
        loop {
            let (waiter, lease) = {
                let mut state = self.lock();
                while state.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                    state.waiting.pop_front();
                }
                if state.waiting.is_empty() {
                    return;
                }
                let Some(server) = self.choose_server(&mut state) else { return };
                let Some(waiter) = state.waiting.pop_front() else { return };
                (waiter, Lease { balance: Arc::clone(self), server })
            };
            // One who has just left drops the lease, which comes back here.
            let _ = waiter.send(lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_test::now;

    use super::*;

    /// Polls a future once.
    mod futures_test {
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};

        pub(super) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
            match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(value) => Some(value),
                Poll::Pending => None,
            }
        }
    }

    fn servers(mode: Mode, count: usize, takes: usize) -> Vec<usize> {
        let balance = Balance::new(mode, count, None, 1);
        let leases: Vec<Lease> = (0..takes).filter_map(|_| now(balance.lease())).collect();
        leases.iter().map(|lease| lease.server).collect()
    }

    #[test]
    fn turns_and_least_are_even() {
        assert_eq!(servers(Mode::RoundRobin, 3, 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(servers(Mode::LeastRequest, 3, 6), [0, 1, 2, 0, 1, 2]);
        let balance = Balance::new(Mode::LeastRequest, 3, None, 1);
        let mut leases: Vec<Lease> = (0..6).filter_map(|_| now(balance.lease())).collect();
        leases.remove(4);
        assert_eq!(now(balance.lease()).expect("a place").server, 1);
    }

    #[test]
    fn two_choices_are_more_even_than_one() {
        let spread = |mode| {
            let mut counts = [0usize; 10];
            servers(mode, 10, 1000).into_iter().for_each(|server| counts[server] += 1);
            counts.iter().max().unwrap() - counts.iter().min().unwrap()
        };
        assert!(spread(Mode::P2c) < 10, "{}", spread(Mode::P2c));
        assert!(spread(Mode::Random) > 10, "{}", spread(Mode::Random));
        assert_eq!(servers(Mode::P2c, 1, 3), [0, 0, 0]);
    }

    #[test]
    fn who_waits_is_served_in_order_and_may_leave() {
        let balance = Balance::new(Mode::LeastRequest, 2, Some(1), 1);
        let (first, second) =
            (now(balance.lease()).expect("a place"), now(balance.lease()).expect("a place"));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let wait = |name: usize| {
                let balance = Arc::clone(&balance);
                tokio::spawn(async move { (name, balance.lease().await) })
            };
            let (third, fourth, fifth) = (wait(3), wait(4), wait(5));
            tokio::task::yield_now().await;
            assert_eq!(balance.lock().waiting.len(), 3);
            third.abort();
            assert!(third.await.is_err());
            let freed = second.server;
            drop(second);
            let (name, lease) = fourth.await.expect("served");
            assert_eq!((name, lease.server), (4, freed));
            drop(first);
            drop(lease);
            assert_eq!(fifth.await.expect("served").0, 5);
        });
        assert_eq!(balance.lock().in_flight, [0, 0]);
    }
}
