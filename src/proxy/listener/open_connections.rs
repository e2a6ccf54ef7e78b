//! Open connections: the tasks that serve them, and which of them end to make room for a newcomer.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::task::{AbortHandle, Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::proxy::listener::conn_state::{ConnState, ConnUse};
use crate::proxy::listener::workers::Workers;

/// Most connections that are looked at for one newcomer.
const MAX_LOOKS: usize = 256;

/// The two signals that end [`serve`](crate::proxy::listener::serve). Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ListenerShutdown {
    /// Accept no new connections, close idle connections, and let running requests finish.
    pub drain: CancellationToken,
    /// End all connections now.
    pub abort: CancellationToken,
}

/// The open connections.
pub(super) struct OpenConnections {
    workers: Arc<Workers>,
    pub(super) tasks: JoinSet<()>,
    numbers: HashMap<Id, u64>,
    /// By number, in the order of their arrival.
    open: BTreeMap<u64, OpenConnection>,
    next_number: u64,
    /// The number at which the next look begins.
    next_look: u64,
    /// The number of the connection that was last told to end for its slow bodies.
    told: Option<u64>,
}

struct OpenConnection {
    state: Arc<ConnState>,
    task: AbortHandle,
}

/// The connection with the slowest bodies so far.
struct SlowConnection<'a> {
    /// Bytes per second.
    rate: u64,
    number: u64,
    connection: &'a OpenConnection,
}

impl OpenConnections {
    pub(super) fn new(workers: Arc<Workers>) -> Self {
        Self {
            workers,
            tasks: JoinSet::new(),
            numbers: HashMap::new(),
            open: BTreeMap::new(),
            next_number: 0,
            next_look: 0,
            told: None,
        }
    }

    pub(super) fn spawn(
        &mut self,
        state: Arc<ConnState>,
        serving: impl Future<Output = ()> + Send + 'static,
    ) {
        if let Some(task) = self.workers.spawn(&mut self.tasks, serving) {
            self.numbers.insert(task.id(), self.next_number);
            self.open.insert(self.next_number, OpenConnection { state, task });
            self.next_number += 1;
        }
    }

    /// Waits until a connection ends, and removes its state.
    pub(super) async fn join_finished(&mut self) {
        let id = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => id,
            Some(Err(error)) => error.id(),
            None => return,
        };
        if let Some(number) = self.numbers.remove(&id) {
            self.open.remove(&number);
        }
    }

    /// Ends one connection that does no work: one without a request so far, else one between two
    /// requests, else the one whose request bodies arrive most slowly. Of a crowd, only so many are
    /// looked at, those after the last look first. A connection that was told before for its slow
    /// bodies, and still holds its place, is closed instead, unless a request became whole meanwhile.
    pub(super) fn make_room(&mut self) {
        let told = self.told.take().and_then(|number| self.open.get(&number));
        if let Some(told) = told.filter(|told| told.state.bodies.are_lost()) {
            return told.task.abort();
        }
        let later = self.open.range(self.next_look..);
        let around = later.chain(self.open.range(..self.next_look)).take(MAX_LOOKS);
        let mut idle = None;
        let mut fresh = None;
        let mut slowest: Option<SlowConnection<'_>> = None;
        for (number, connection) in around {
            self.next_look = number + 1;
            match connection.state.usage() {
                ConnUse::Fresh => {
                    fresh = Some(connection);
                    break;
                }
                ConnUse::Idle if idle.is_none() => idle = Some(connection),
                ConnUse::Receiving { bytes_per_second: rate }
                    if slowest.as_ref().is_none_or(|slowest| rate < slowest.rate) =>
                {
                    slowest = Some(SlowConnection { rate, number: *number, connection });
                }
                ConnUse::Idle | ConnUse::Receiving { .. } | ConnUse::Busy | ConnUse::Ending => {}
            }
        }
        if let Some(connection) = fresh.or(idle) {
            connection.state.end_for_newcomer();
            if fresh.is_some() {
                connection.task.abort();
            }
        } else if let Some(slowest) = slowest {
            slowest.connection.state.end_for_newcomer();
            slowest.connection.state.give_up_bodies();
            self.told = Some(slowest.number);
        }
    }

    /// Waits for running requests to end, or ends them at `abort`.
    pub(super) async fn drain(&mut self, shutdown: &ListenerShutdown) {
        for connection in self.open.values() {
            connection.state.drain();
        }
        while !self.tasks.is_empty() {
            tokio::select! {
                biased;
                () = shutdown.abort.cancelled() => return self.tasks.shutdown().await,
                () = self.join_finished() => {}
            }
        }
    }
}
