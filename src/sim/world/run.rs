//! World loop: takes the next event in time order and lets routers and engines
//! act on it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use smallvec::SmallVec;

use crate::core::model::event::ItlSample;
use crate::core::model::time::Tick;
use crate::sim::engine::EngineEvent;
use crate::sim::world::arrival::Arrival;
use crate::sim::world::autoscale::elastic::{Beat, Elastic};
use crate::sim::world::autoscale::{Scaled, Scaling};
use crate::sim::world::exchange::ExchangeStep;
use crate::sim::world::record::WorldRecord;
use crate::sim::world::replica::{ReplicaSetup, WorldReplica};
use crate::sim::world::router::{Input, JobIndex, ReplicaIndex, Router, RouterCommand};

/// How often routers are told the pace of streams.
pub const PACE_PERIOD: Duration = Duration::from_millis(100);

/// When a client that was refused comes back if it is told no time.
const COME_BACK: Duration = Duration::from_secs(1);

/// A world before it starts.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Its engines.
    pub replicas: Vec<ReplicaSetup>,
    /// What arrives, in order of time.
    pub arrivals: Vec<Arrival>,
    /// Which router gets each arrival; empty = all go to the first.
    pub gateways: Vec<u8>,
    /// Time between two scrapes of an engine; absent = none.
    pub scrape: Option<Duration>,
    /// An engine plans its next step before a router hears of the last one, as
    /// any network makes it.
    pub late: bool,
    /// The world ends here whatever is still open.
    pub horizon: Option<Duration>,
    /// How engines come and go; absent = all are there from the beginning.
    pub scaling: Option<Scaling>,
    /// A closed loop: so many clients, each of which sends the next of the arrivals,
    /// in their order, when its last one has ended, and after a refusal when it is
    /// told to. Absent = all come at their time.
    pub clients: Option<usize>,
    /// From when on [`RunOutcome::tokens`] are counted.
    pub counted_from: Tick,
}

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub struct RunOutcome {
    /// One for each arrival; in a closed loop, of those that came.
    pub records: Vec<WorldRecord>,
    /// Most requests that waited in each engine after a step was planned.
    pub most_waiting: Vec<u64>,
    /// How long each engine computed.
    pub busy: Vec<Duration>,
    /// What broke inside the routers.
    pub faults: u64,
    /// When the last thing happened.
    pub ended: Tick,
    /// What replicas that come and go came to; absent = they do not.
    pub scaled: Option<Scaled>,
    /// Output tokens that came from engines since they are counted, without those
    /// of tries that came to nothing.
    pub tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happening {
    Arrival(JobIndex),
    Exchange(ExchangeStep),
    StepEnd(ReplicaIndex),
    FaultBegins(ReplicaIndex),
    FaultEnds(ReplicaIndex),
    Scrape(ReplicaIndex),
    PaceDue,
    Beat(Beat),
    Wake(usize),
}

/// Where a request is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WorldJob {
    pub(super) gateway: u8,
    /// Counts the times it was given to an engine.
    pub(super) attempt: u32,
    /// Its engine has it.
    pub(super) entered: bool,
    /// It has ended.
    pub(super) over: bool,
    pub(super) at: Option<ReplicaIndex>,
    pub(super) first: Option<Tick>,
    pub(super) last: Tick,
    /// Tokens heard of, of all its choices.
    pub(super) tokens: u32,
    /// Those of them that count.
    pub(super) counted: u32,
    /// Choices that are whole.
    pub(super) ended: u32,
    /// Tokens of a stream that is silent; absent = it is not.
    pub(super) unsaid: Option<u32>,
    pub(super) cached: u32,
    /// When it was given to its engine, and how many were there before it.
    pub(super) sent: (Tick, u64),
}

pub(super) struct World<'a> {
    pub(super) setup: &'a Setup,
    pub(super) routers: &'a mut [Box<dyn Router>],
    pub(super) replicas: Vec<WorldReplica>,
    pub(super) jobs: Vec<WorldJob>,
    pub(super) records: Vec<WorldRecord>,
    /// Per router and replica.
    pub(super) paces: Vec<ItlSample>,
    pub(super) heap: BinaryHeap<Reverse<(Tick, u64, Happening)>>,
    sequence: u64,
    /// The wake that each router has in the heap.
    wakes: Vec<Option<Tick>>,
    commands: Vec<RouterCommand>,
    pub(super) events: Vec<EngineEvent>,
    /// Requests that have not ended, those to come included.
    pub(super) open: usize,
    /// Requests that have come.
    pub(super) come: usize,
    /// In a closed loop: the arrival that the next free client sends.
    pub(super) next: usize,
    /// Output tokens that count.
    pub(super) tokens: u64,
    pub(super) now: Tick,
    /// Absent = all engines are always there.
    pub(super) elastic: Option<Elastic>,
}

/// Runs the world until every request has ended.
pub fn run(setup: &Setup, routers: &mut [Box<dyn Router>]) -> RunOutcome {
    let mut world = World::new(setup, routers);
    let horizon = setup.horizon.map_or(Tick::NEVER, |horizon| Tick::ZERO + horizon);
    while world.open > 0
        && let Some(Reverse((at, _, happening))) = world.heap.pop()
        && at <= horizon
    {
        world.now = at;
        world.happen(happening);
    }
    if setup.clients.is_some() {
        world.records.truncate(world.come);
    }
    let open: u64 = world.jobs.iter().map(|job| u64::from(job.counted)).sum();
    RunOutcome {
        tokens: world.tokens + open,
        faults: world.routers.iter().map(|router| router.faults()).sum(),
        most_waiting: world.replicas.iter().map(|replica| replica.most_waiting).collect(),
        busy: world.replicas.iter().map(|replica| replica.busy).collect(),
        ended: world.now,
        records: world.records,
        scaled: world.elastic.map(|elastic| elastic.settle(world.now)),
    }
}

impl<'a> World<'a> {
    fn new(setup: &'a Setup, routers: &'a mut [Box<dyn Router>]) -> Self {
        let (gateways, engines) = (routers.len(), setup.replicas.len());
        let job = |index: usize| WorldJob {
            gateway: setup.gateways.get(index).copied().unwrap_or(0),
            ..WorldJob::default()
        };
        let record = |arrival: &Arrival| WorldRecord {
            tenant: arrival.tenant,
            class: arrival.class,
            prompt: arrival.prompt,
            output: arrival.output,
            arrived: arrival.at,
            ..WorldRecord::default()
        };
        let mut world = Self {
            setup,
            routers,
            replicas: setup.replicas.iter().map(WorldReplica::new).collect(),
            jobs: (0..setup.arrivals.len()).map(job).collect(),
            records: setup.arrivals.iter().map(record).collect(),
            paces: vec![ItlSample::default(); gateways * engines],
            heap: BinaryHeap::new(),
            sequence: 0,
            wakes: vec![None; gateways],
            commands: Vec::new(),
            events: Vec::new(),
            open: setup.arrivals.len(),
            come: 0,
            next: setup.clients.unwrap_or(0),
            tokens: 0,
            now: Tick::ZERO,
            elastic: setup.scaling.as_ref().map(|scaling| Elastic::new(scaling, setup)),
        };
        world.begin_scaling();
        for (job, arrival) in setup.arrivals.iter().take(setup.clients.unwrap_or(1)).enumerate() {
            world.plan(arrival.at, Happening::Arrival(job));
        }
        world.plan(Tick::ZERO + PACE_PERIOD, Happening::PaceDue);
        for replica in 0..engines {
            if let Some(fault) = world.replicas[replica].fault() {
                world.plan(fault.at, Happening::FaultBegins(replica));
            }
            if setup.scrape.is_some() {
                world.plan(Tick::ZERO, Happening::Scrape(replica));
            }
        }
        world
    }

    pub(super) fn plan(&mut self, at: Tick, happening: Happening) {
        self.sequence += 1;
        self.heap.push(Reverse((at, self.sequence, happening)));
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrival(job) => {
                if let Some(next) = self.setup.arrivals.get(job + 1).filter(|_| self.setup.clients.is_none())
                {
                    self.plan(next.at.max(self.now), Happening::Arrival(job + 1));
                }
                let arrival = &self.setup.arrivals[job];
                self.come = self.come.max(job + 1);
                self.records[job].arrived = self.now;
                if let Some(leaves) = arrival.leaves {
                    self.plan(self.now + leaves, Happening::Exchange(ExchangeStep::Leaves(job)));
                }
                self.tell(usize::from(self.jobs[job].gateway), Input::Arrived { job, arrival });
                self.knock();
            }
            Happening::Exchange(step) => self.exchange(step),
            Happening::StepEnd(replica) => self.step_ended(replica),
            Happening::FaultBegins(replica) => self.fault_begins(replica),
            Happening::FaultEnds(replica) => {
                self.replicas[replica].crashed = false;
                self.start(replica);
            }
            Happening::Scrape(replica) => self.scrape(replica),
            Happening::PaceDue => self.tell_paces(),
            Happening::Beat(beat) => self.beat(beat),
            Happening::Wake(gateway) => {
                if self.wakes[gateway].is_some_and(|at| at <= self.now) {
                    self.wakes[gateway] = None;
                    self.tell(gateway, Input::Wake);
                }
            }
        }
    }

    /// Tells a router and does what it wants.
    pub(super) fn tell(&mut self, gateway: usize, input: Input<'_>) {
        let mut commands = std::mem::take(&mut self.commands);
        let mut touched: SmallVec<[ReplicaIndex; 4]> = SmallVec::new();
        self.routers[gateway].handle(self.now, input, &mut commands);
        let mut next = 0;
        while next < commands.len() {
            let command = commands[next];
            next += 1;
            if let Some(input) = self.obey(command, &mut touched) {
                self.routers[gateway].handle(self.now, input, &mut commands);
            }
        }
        commands.clear();
        self.commands = commands;
        for replica in touched {
            self.start(replica);
        }
        self.keep_awake(gateway);
    }

    fn keep_awake(&mut self, gateway: usize) {
        let wanted = self.routers[gateway].next_wake();
        if let Some(at) = wanted
            && self.wakes[gateway].is_none_or(|known| at < known)
        {
            let at = at.max(self.now);
            self.wakes[gateway] = Some(at);
            self.plan(at, Happening::Wake(gateway));
        }
    }

    /// Does one thing; what it brings at once is told to the router.
    fn obey(&mut self, command: RouterCommand, touched: &mut SmallVec<[usize; 4]>) -> Option<Input<'static>> {
        match command {
            RouterCommand::Send { job, replica, priority } => self.send(job, replica, priority, touched),
            RouterCommand::Refuse { job, retry_after } => {
                let record = &mut self.records[job];
                (record.refused, record.told) = (true, Some(self.now.since(record.arrived)));
                self.over(job, retry_after.unwrap_or(COME_BACK));
                None
            }
            RouterCommand::Recall { job } => {
                self.take_back(job, touched);
                None
            }
            RouterCommand::Probe { replica } => Some(Input::Probed { replica, alive: self.answers(replica) }),
            RouterCommand::Poll { replica } => {
                let engine = &self.replicas[replica];
                Some(Input::Polled { replica, load: (!engine.crashed).then(|| engine.load()) })
            }
        }
    }
}
