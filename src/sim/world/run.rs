//! World loop: takes the next event in time order and lets routers and engines
//! act on it.

use std::time::Duration;

use smallvec::SmallVec;

use crate::engine::EngineEvent;
use crate::world::arrival::Arrival;
use crate::world::autoscale::ScalingOutcome;
use crate::world::autoscale::state::Elastic;
use crate::world::engines::stream_reports::StreamReports;
use crate::world::event::{EventQueue, ExchangeStep, WorldEvent};
use crate::world::record::WorldRecord;
use crate::world::replica::WorldReplica;
use crate::world::router::{Input, ReplicaIndex, Router, RouterCommand};
use crate::world::setup::Setup;
use penstock_core::autoscale::replica_demand::ReplicaDemand;
use penstock_core::model::time::Tick;

/// Period at which routers are told of their streams.
pub const ITL_PERIOD: Duration = Duration::from_millis(100);

/// Time after which a refused client comes back when the refusal names no time.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
pub struct RunOutcome {
    /// One record for each arrival; in a closed loop, for each arrival that
    /// came.
    pub records: Vec<WorldRecord>,
    /// Most requests that waited in each engine after a step was planned.
    pub most_waiting: Vec<u64>,
    /// Time for which each engine computed.
    pub busy: Vec<Duration>,
    /// Invariants that broke inside the routers.
    pub broken_invariants: u64,
    /// Time of the last event.
    pub ended: Tick,
    /// Outcome of autoscaling; absent without autoscaling.
    pub scaled: Option<ScalingOutcome>,
    /// Output tokens that came from engines from [`Setup::counted_from`] on,
    /// without those of attempts that came to nothing.
    pub tokens: u64,
}

/// State of a job in the world.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WorldJob {
    pub(super) gateway: u8,
    /// Number of the present attempt, from 1.
    pub(super) attempt: u32,
    /// Whether the engine has queued the attempt.
    pub(super) queued: bool,
    /// Whether the request has ended.
    pub(super) over: bool,
    pub(super) at: Option<ReplicaIndex>,
    pub(super) first: Option<Tick>,
    pub(super) last: Tick,
    /// Tokens received, over all choices.
    pub(super) tokens: u32,
    /// Received tokens that count for [`RunOutcome::tokens`].
    pub(super) counted: u32,
    /// Choices that are complete.
    pub(super) ended_choices: u32,
    /// Tokens held back by a pause in the stream; absent = no pause.
    pub(super) held_back: Option<u32>,
    pub(super) cached: u32,
    /// Time at which the present attempt was sent.
    pub(super) sent: Tick,
    /// Requests inside the engine when the attempt was sent.
    pub(super) others: u64,
}

pub(super) struct World<'a> {
    pub(super) setup: &'a Setup,
    pub(super) routers: &'a mut [Box<dyn Router>],
    pub(super) replicas: Vec<WorldReplica>,
    pub(super) jobs: Vec<WorldJob>,
    pub(super) records: Vec<WorldRecord>,
    pub(super) stream_reports: StreamReports,
    pub(super) queue: EventQueue,
    /// The wake that each router has in the heap.
    wakes: Vec<Option<Tick>>,
    commands: Vec<RouterCommand>,
    pub(super) events: Vec<EngineEvent>,
    /// Requests that have not ended, including those still to come.
    pub(super) open: usize,
    /// Requests that have arrived.
    pub(super) arrived: usize,
    /// In a closed loop: index of the arrival that the next free client sends.
    pub(super) next: usize,
    /// Output tokens that count.
    pub(super) tokens: u64,
    pub(super) now: Tick,
    /// Autoscaling; absent = all engines are always there.
    pub(super) elastic: Option<Elastic>,
}

/// Runs the world until every request has ended.
pub fn run(setup: &Setup, routers: &mut [Box<dyn Router>]) -> RunOutcome {
    let mut world = World::new(setup, routers);
    let horizon = setup.horizon.map_or(Tick::NEVER, |horizon| Tick::ZERO + horizon);
    while world.open > 0
        && let Some((at, happening)) = world.queue.pop()
        && at <= horizon
    {
        world.now = at;
        world.handle_event(happening);
    }
    if setup.clients.is_some() {
        world.records.truncate(world.arrived);
    }
    let open: u64 = world.jobs.iter().map(|job| u64::from(job.counted)).sum();
    RunOutcome {
        tokens: world.tokens + open,
        broken_invariants: world.routers.iter().map(|router| router.broken_invariants()).sum(),
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
            stream_reports: StreamReports::new(gateways, engines),
            queue: EventQueue::default(),
            wakes: vec![None; gateways],
            commands: Vec::new(),
            events: Vec::new(),
            open: setup.arrivals.len(),
            arrived: 0,
            next: setup.clients.unwrap_or(0),
            tokens: 0,
            now: Tick::ZERO,
            elastic: setup.scaling.as_ref().map(|scaling| Elastic::new(scaling, setup)),
        };
        world.begin_scaling();
        for (job, arrival) in setup.arrivals.iter().take(setup.clients.unwrap_or(1)).enumerate() {
            world.schedule(arrival.at, WorldEvent::Arrival(job));
        }
        world.schedule(Tick::ZERO + ITL_PERIOD, WorldEvent::ItlDue);
        for replica in 0..engines {
            if let Some(fault) = world.replicas[replica].fault() {
                world.schedule(fault.at, WorldEvent::FaultBegins(replica));
            }
            if setup.scrape.is_some() {
                world.schedule(Tick::ZERO, WorldEvent::Scrape(replica));
            }
        }
        world
    }

    pub(super) fn schedule(&mut self, at: Tick, happening: WorldEvent) {
        self.queue.push(at, happening);
    }

    fn handle_event(&mut self, happening: WorldEvent) {
        match happening {
            WorldEvent::Arrival(job) => {
                if let Some(next) = self.setup.arrivals.get(job + 1).filter(|_| self.setup.clients.is_none())
                {
                    self.schedule(next.at.max(self.now), WorldEvent::Arrival(job + 1));
                }
                let arrival = &self.setup.arrivals[job];
                self.arrived = self.arrived.max(job + 1);
                self.records[job].arrived = self.now;
                if let Some(leaves) = arrival.leaves {
                    self.schedule(self.now + leaves, WorldEvent::Exchange(ExchangeStep::Leaves(job)));
                }
                self.notify_router(usize::from(self.jobs[job].gateway), Input::Arrived { job, arrival });
                self.push_arrival();
            }
            WorldEvent::Exchange(step) => self.exchange(step),
            WorldEvent::StepEnd(replica) => self.step_ended(replica),
            WorldEvent::FaultBegins(replica) => self.fault_begins(replica),
            WorldEvent::FaultEnds(replica) => {
                self.replicas[replica].crashed = false;
                self.start(replica);
            }
            WorldEvent::Scrape(replica) => self.scrape(replica),
            WorldEvent::ItlDue => self.report_streams(),
            WorldEvent::Beat(beat) => self.beat(beat),
            WorldEvent::Wake(gateway) => {
                if self.wakes[gateway].is_some_and(|at| at <= self.now) {
                    self.wakes[gateway] = None;
                    self.notify_router(gateway, Input::Wake);
                }
            }
        }
    }

    /// Gives a router an input and carries out its commands.
    pub(super) fn notify_router(&mut self, gateway: usize, input: Input<'_>) {
        let mut commands = std::mem::take(&mut self.commands);
        self.routers[gateway].handle(self.now, input, &mut commands);
        self.carry_out(gateway, commands);
    }

    /// The first router's demand for replicas of its first pool.
    pub(super) fn replica_demand(&mut self) -> Option<ReplicaDemand> {
        let mut commands = std::mem::take(&mut self.commands);
        let demands = self.routers.first_mut()?.replica_demand(self.now, &mut commands);
        self.carry_out(0, commands);
        demands.first().copied()
    }

    /// Carries out the commands of a router.
    fn carry_out(&mut self, gateway: usize, mut commands: Vec<RouterCommand>) {
        let mut touched: SmallVec<[ReplicaIndex; 4]> = SmallVec::new();
        let mut next = 0;
        while next < commands.len() {
            let command = commands[next];
            next += 1;
            if let Some(input) = self.execute(command, &mut touched) {
                self.routers[gateway].handle(self.now, input, &mut commands);
            }
        }
        commands.clear();
        self.commands = commands;
        for replica in touched {
            self.start(replica);
        }
        self.schedule_wake(gateway);
    }

    fn schedule_wake(&mut self, gateway: usize) {
        let wanted = self.routers[gateway].next_wake();
        if let Some(at) = wanted
            && self.wakes[gateway].is_none_or(|known| at < known)
        {
            let at = at.max(self.now);
            self.wakes[gateway] = Some(at);
            self.schedule(at, WorldEvent::Wake(gateway));
        }
    }

    /// Carries out one command. Returns the input for the router when the
    /// command has an immediate answer.
    fn execute(
        &mut self,
        command: RouterCommand,
        touched: &mut SmallVec<[usize; 4]>,
    ) -> Option<Input<'static>> {
        match command {
            RouterCommand::Send { job, replica, priority } => self.send(job, replica, priority, touched),
            RouterCommand::Refuse { job, retry_after } => {
                let record = &mut self.records[job];
                (record.refused, record.refused_after) = (true, Some(self.now.since(record.arrived)));
                self.end_request(job, retry_after.unwrap_or(DEFAULT_RETRY_AFTER));
                None
            }
            RouterCommand::Preempt { job } => {
                self.preempt(job, touched);
                None
            }
            RouterCommand::Probe { replica } => {
                Some(Input::Probed { replica, alive: self.is_reachable(replica) })
            }
            RouterCommand::Scrape { replica } => {
                let reads = self.setup.scrape.is_some() && self.is_reachable(replica);
                reads.then(|| Input::Reported { replica, report: self.replicas[replica].report() })
            }
            RouterCommand::Poll { replica } => {
                let engine = &self.replicas[replica];
                Some(Input::Polled { replica, load: (!engine.crashed).then(|| engine.load()) })
            }
        }
    }
}
