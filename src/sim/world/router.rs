//! Router interface: the inputs, commands and trait of the routers between
//! arrivals and engines.

use std::fmt::Debug;
use std::time::Duration;

use crate::world::arrival::Arrival;
use penstock_core::autoscale::replica_demand::ReplicaDemand;
use penstock_core::model::event::{ItlSample, ReplicaReport};
use penstock_core::model::time::Tick;

/// A request in the world: its index among the arrivals.
pub type JobIndex = usize;
/// Index of an engine of the world.
pub type ReplicaIndex = usize;

/// Input of a router.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A request arrived.
    Arrived { job: JobIndex, arrival: &'a Arrival },
    /// The first token of a stream came. A plain answer shows none.
    FirstToken { job: JobIndex, replica: ReplicaIndex },
    /// The job's answer is complete.
    Finished {
        job: JobIndex,
        replica: ReplicaIndex,
        /// Prompt tokens that came from the prefix cache, if the engine tells.
        cached: Option<u32>,
    },
    /// The job's client left, wherever the job was.
    ClientLeft { job: JobIndex },
    /// The job's engine failed it.
    Failed {
        job: JobIndex,
        replica: ReplicaIndex,
        /// Whether the connection was refused; otherwise it broke.
        refused: bool,
    },
    /// Gaps between tokens since the last such input.
    ItlSampled { replica: ReplicaIndex, sample: ItlSample },
    /// Tokens of streams came since the last such input, and no gap between two of them is known.
    BytesReceived { replica: ReplicaIndex },
    /// The number of streams that wait for their clients has changed.
    StreamsPaused { replica: ReplicaIndex, streams: u32 },
    /// A scrape.
    Reported { replica: ReplicaIndex, report: ReplicaReport },
    /// The answer to a probe.
    Probed {
        replica: ReplicaIndex,
        /// Whether the engine answers.
        alive: bool,
    },
    /// The answer to a poll.
    Polled {
        replica: ReplicaIndex,
        /// The engine's load; none when the engine does not answer.
        load: Option<PolledLoad>,
    },
    /// Replicas came or left.
    Members {
        /// The state of each engine of the world, by number.
        members: &'a [MemberState],
    },
    /// The time asked for with [`Router::next_wake`] has come.
    Wake,
}

/// State of an engine for routers, where engines come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// The engine is not there.
    Absent,
    /// The engine takes work.
    Serving,
    /// The engine takes no new work, and leaves when its present work is done.
    Leaving,
}

/// Answer to a poll of an engine that supports polls (Prequal).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolledLoad {
    /// Requests inside the engine, of all routers.
    pub in_flight: u64,
    /// Time to the first token that the engine lately showed at about that
    /// number of requests; zero when it has shown none.
    pub latency: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterCommand {
    /// Send the job to an engine.
    Send {
        job: JobIndex,
        replica: ReplicaIndex,
        /// For engines with priority scheduling: the smallest value goes first.
        priority: i64,
    },
    /// Refuse the job, which ends it.
    Refuse {
        job: JobIndex,
        /// Time after which the client may come back.
        retry_after: Option<Duration>,
    },
    /// Preempt the job: take it back from its engine. The job waits at the
    /// router again.
    Preempt { job: JobIndex },
    /// Ask an engine whether it is there.
    Probe { replica: ReplicaIndex },
    /// Scrape an engine now, where engines are scraped at all; answered by [`Input::Reported`].
    Scrape { replica: ReplicaIndex },
    /// Ask an engine for its load, answered by [`Input::Polled`].
    Poll { replica: ReplicaIndex },
}

pub trait Router: Send + Debug {
    /// Applies an input and appends the router's commands.
    fn handle(&mut self, now: Tick, input: Input<'_>, out: &mut Vec<RouterCommand>);

    /// Time at which the router wants the next [`Input::Wake`].
    fn next_wake(&self) -> Option<Tick> {
        None
    }

    /// Present demand of each of the router's pools; empty when the router
    /// computes none. Appends the commands that follow from it.
    fn replica_demand(&mut self, _now: Tick, _out: &mut Vec<RouterCommand>) -> Vec<ReplicaDemand> {
        Vec::new()
    }

    /// Invariants that broke inside the router; 0 in a healthy run.
    fn broken_invariants(&self) -> u64 {
        0
    }
}
