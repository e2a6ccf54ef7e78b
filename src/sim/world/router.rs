//! Router interface: the inputs, commands and trait of the routers between
//! arrivals and engines.

use std::fmt::Debug;
use std::time::Duration;

use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::core::model::event::{ItlSample, ReplicaReport};
use crate::core::model::time::Tick;
use crate::sim::world::arrival::Arrival;

/// A request in the world: its place among the arrivals.
pub type JobIndex = usize;
/// An engine of the world.
pub type ReplicaIndex = usize;

/// What a router is told.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A request came.
    Arrived {
        /// Which.
        job: JobIndex,
        /// What it asks for.
        arrival: &'a Arrival,
    },
    /// The first token of a stream came. A plain answer shows none.
    FirstToken {
        /// Which.
        job: JobIndex,
        /// From where.
        replica: ReplicaIndex,
    },
    /// It is whole.
    Finished {
        /// Which.
        job: JobIndex,
        /// From where.
        replica: ReplicaIndex,
        /// Prompt tokens that came from the prefix cache.
        cached: u32,
    },
    /// Its client is gone, wherever it was.
    Left {
        /// Which.
        job: JobIndex,
    },
    /// Its engine failed it.
    Failed {
        /// Which.
        job: JobIndex,
        /// Where.
        replica: ReplicaIndex,
        /// The connection was refused; else it broke.
        refused: bool,
    },
    /// Gaps between tokens seen since the last time.
    Paced {
        /// Where.
        replica: ReplicaIndex,
        /// What was seen.
        pace: ItlSample,
    },
    /// A scrape.
    Reported {
        /// Of which engine.
        replica: ReplicaIndex,
        /// What it said.
        report: ReplicaReport,
    },
    /// The answer to a probe.
    Probed {
        /// Of which engine.
        replica: ReplicaIndex,
        /// Whether it is there.
        alive: bool,
    },
    /// The answer to a poll; none when the engine does not answer.
    Polled {
        /// Which engine.
        replica: ReplicaIndex,
        /// What it said.
        load: Option<PolledLoad>,
    },
    /// Replicas came or went: what each of the world's engines is now.
    Members {
        /// By number.
        members: &'a [MemberState],
    },
    /// The moment asked for with [`Router::next_wake`].
    Wake,
}

/// What an engine is to a router where engines come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// It is not there.
    Absent,
    /// It takes work.
    Serving,
    /// It takes no new work, and goes when what it has is done.
    Leaving,
}

/// What an engine made for it says of itself when a router polls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolledLoad {
    /// Requests inside it, of all routers.
    pub in_flight: u64,
    /// The time to the first token that it has lately shown at about that
    /// number; zero when it has shown none.
    pub latency: Duration,
}

/// What a router wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterCommand {
    /// Give the job to an engine.
    Send {
        /// Which.
        job: JobIndex,
        /// Where to.
        replica: ReplicaIndex,
        /// For engines that order by it: the smallest goes first.
        priority: i64,
    },
    /// Refuse the job; it is over.
    Refuse {
        /// Which.
        job: JobIndex,
        /// When to come back.
        retry_after: Option<Duration>,
    },
    /// Take the job away from its engine; it waits at the router again.
    Recall {
        /// Which.
        job: JobIndex,
    },
    /// Ask an engine whether it is there.
    Probe {
        /// Which.
        replica: ReplicaIndex,
    },
    /// Ask an engine for its load, as [`Input::Polled`].
    Poll {
        /// Which.
        replica: ReplicaIndex,
    },
}

/// A design for routing.
pub trait Router: Send + Debug {
    /// Takes note of an input and appends what is to be done.
    fn handle(&mut self, now: Tick, input: Input<'_>, out: &mut Vec<RouterCommand>);

    /// When it wants [`Input::Wake`] next.
    fn next_wake(&self) -> Option<Tick> {
        None
    }

    /// What each of its pools needs now; empty where it has no word on that.
    fn needs(&mut self, _now: Tick) -> Vec<ReplicaDemand> {
        Vec::new()
    }

    /// What broke inside it; 0 in a healthy run.
    fn faults(&self) -> u64 {
        0
    }
}
