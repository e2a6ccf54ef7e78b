//! The clock of the world: takes the next thing that happens and lets routers
//! and engines act on it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use smallvec::SmallVec;

use crate::core::event::Pace;
use crate::core::time::Tick;
use crate::sim::engine::{EngineEvent, EngineRequest, EventKind};
use crate::sim::world::arrival::Arrival;
use crate::sim::world::record::Record;
use crate::sim::world::replica::{FaultKind, Replica, ReplicaSetup};
use crate::sim::world::router::{Command, Input, JobIndex, ReplicaIndex, Router};

/// How often routers are told the pace of streams.
pub const PACE_PERIOD: Duration = Duration::from_millis(100);

/// A world before it starts.
#[derive(Debug, Clone)]
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
}

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// One for each arrival.
    pub records: Vec<Record>,
    /// Most requests that waited in each engine after a step was planned.
    pub most_waiting: Vec<u64>,
    /// How long each engine computed.
    pub busy: Vec<Duration>,
    /// What broke inside the routers.
    pub faults: u64,
    /// When the last thing happened.
    pub ended: Tick,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Arrival(JobIndex),
    StepEnd(ReplicaIndex),
    FaultBegins(ReplicaIndex),
    FaultEnds(ReplicaIndex),
    Scrape(ReplicaIndex),
    PaceDue,
    Wake(usize),
}

/// Where a request is.
#[derive(Debug, Clone, Copy, Default)]
struct Job {
    gateway: u8,
    at: Option<ReplicaIndex>,
    first: Option<Tick>,
    last: Tick,
    tokens: u32,
    cached: u32,
    /// When it was given to its engine, and how many were there before it.
    sent: (Tick, u64),
}

struct World<'a> {
    setup: &'a Setup,
    routers: &'a mut [Box<dyn Router>],
    replicas: Vec<Replica>,
    jobs: Vec<Job>,
    records: Vec<Record>,
    /// Per router and replica.
    paces: Vec<Pace>,
    heap: BinaryHeap<Reverse<(Tick, u64, Happening)>>,
    sequence: u64,
    /// The wake that each router has in the heap.
    wakes: Vec<Option<Tick>>,
    commands: Vec<Command>,
    events: Vec<EngineEvent>,
    open: usize,
    now: Tick,
}

/// Runs the world until every request has ended.
pub fn run(setup: &Setup, routers: &mut [Box<dyn Router>]) -> Outcome {
    let mut world = World::new(setup, routers);
    let horizon = setup.horizon.map_or(Tick::NEVER, |horizon| Tick::ZERO + horizon);
    while world.open > 0
        && let Some(Reverse((at, _, happening))) = world.heap.pop()
        && at <= horizon
    {
        world.now = at;
        world.happen(happening);
    }
    Outcome {
        faults: world.routers.iter().map(|router| router.faults()).sum(),
        most_waiting: world.replicas.iter().map(|replica| replica.most_waiting).collect(),
        busy: world.replicas.iter().map(|replica| replica.busy).collect(),
        ended: world.now,
        records: world.records,
    }
}

impl<'a> World<'a> {
    fn new(setup: &'a Setup, routers: &'a mut [Box<dyn Router>]) -> Self {
        let (gateways, engines) = (routers.len(), setup.replicas.len());
        let job =
            |index: usize| Job { gateway: setup.gateways.get(index).copied().unwrap_or(0), ..Job::default() };
        let record = |arrival: &Arrival| Record {
            tenant: arrival.tenant,
            class: arrival.class,
            prompt: arrival.prompt,
            output: arrival.output,
            arrived: arrival.at,
            ..Record::default()
        };
        let mut world = Self {
            setup,
            routers,
            replicas: setup.replicas.iter().map(Replica::new).collect(),
            jobs: (0..setup.arrivals.len()).map(job).collect(),
            records: setup.arrivals.iter().map(record).collect(),
            paces: vec![Pace::default(); gateways * engines],
            heap: BinaryHeap::new(),
            sequence: 0,
            wakes: vec![None; gateways],
            commands: Vec::new(),
            events: Vec::new(),
            open: setup.arrivals.len(),
            now: Tick::ZERO,
        };
        if let Some(first) = setup.arrivals.first() {
            world.plan(first.at, Happening::Arrival(0));
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

    fn plan(&mut self, at: Tick, happening: Happening) {
        self.sequence += 1;
        self.heap.push(Reverse((at, self.sequence, happening)));
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrival(job) => {
                if let Some(next) = self.setup.arrivals.get(job + 1) {
                    self.plan(next.at.max(self.now), Happening::Arrival(job + 1));
                }
                let arrival = &self.setup.arrivals[job];
                self.tell(usize::from(self.jobs[job].gateway), Input::Arrived { job, arrival });
            }
            Happening::StepEnd(replica) => self.step_ended(replica),
            Happening::FaultBegins(replica) => self.fault_begins(replica),
            Happening::FaultEnds(replica) => {
                self.replicas[replica].crashed = false;
                self.start(replica);
            }
            Happening::Scrape(replica) => self.scrape(replica),
            Happening::PaceDue => self.tell_paces(),
            Happening::Wake(gateway) => {
                if self.wakes[gateway].is_some_and(|at| at <= self.now) {
                    self.wakes[gateway] = None;
                    self.tell(gateway, Input::Wake);
                }
            }
        }
    }

    /// Tells a router and does what it wants.
    fn tell(&mut self, gateway: usize, input: Input<'_>) {
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
    fn obey(&mut self, command: Command, touched: &mut SmallVec<[usize; 4]>) -> Option<Input<'static>> {
        match command {
            Command::Send { job, replica, priority } => {
                self.records[job].sends += 1;
                if self.replicas[replica].crashed {
                    return Some(Input::Failed { job, replica, refused: true });
                }
                if !self.submit(job, replica, priority) {
                    // Too large for the engine: a plain answer that says so.
                    self.open -= 1;
                    return Some(Input::Finished { job, replica, cached: 0 });
                }
                let before = self.replicas[replica].engine.requests() - 1;
                let state = &mut self.jobs[job];
                (state.at, state.sent) = (Some(replica), (self.now, before));
                touched.push(replica);
                None
            }
            Command::Refuse { job, .. } => {
                self.records[job].refused = true;
                self.open -= 1;
                None
            }
            Command::Recall { job } => {
                if let Some(replica) = self.jobs[job].at.take() {
                    self.replicas[replica].engine.cancel(job as u64);
                    touched.push(replica);
                }
                let gateway = self.jobs[job].gateway;
                self.jobs[job] = Job { gateway, ..Job::default() };
                self.records[job].recalls += 1;
                None
            }
            Command::Probe { replica } => {
                Some(Input::Probed { replica, alive: !self.replicas[replica].crashed })
            }
            Command::Poll { replica } => {
                let engine = &self.replicas[replica];
                Some(Input::Polled { replica, load: (!engine.crashed).then(|| engine.load()) })
            }
        }
    }

    fn submit(&mut self, job: JobIndex, replica: ReplicaIndex, priority: i64) -> bool {
        let arrival = &self.setup.arrivals[job];
        let request = EngineRequest {
            id: job as u64,
            prompt_tokens: arrival.prompt,
            prefix: arrival.engine_blocks(),
            output_tokens: arrival.output,
            n: 1,
            priority,
            adapter: None,
        };
        self.replicas[replica].engine.submit(request).is_ok()
    }

    fn start(&mut self, replica: ReplicaIndex) {
        if let Some(end) = self.replicas[replica].start_step(self.now) {
            self.plan(end, Happening::StepEnd(replica));
        }
    }

    fn step_ended(&mut self, replica: ReplicaIndex) {
        match self.replicas[replica].step {
            Some(end) if end > self.now => return self.plan(end, Happening::StepEnd(replica)),
            Some(_) => {}
            None => return,
        }
        let mut events = std::mem::take(&mut self.events);
        self.replicas[replica].finish_step(self.now, &mut events);
        if self.setup.late {
            self.start(replica);
        }
        for event in events.drain(..) {
            self.engine_event(replica, &event);
        }
        self.events = events;
        self.start(replica);
    }

    fn engine_event(&mut self, replica: ReplicaIndex, event: &EngineEvent) {
        let job = event.request as JobIndex;
        let now = self.now;
        let state = &mut self.jobs[job];
        if state.at != Some(replica) {
            return;
        }
        let gateway = usize::from(state.gateway);
        let whole = match event.kind {
            EventKind::Scheduled { cached_tokens } => {
                state.cached = if state.tokens == 0 { cached_tokens } else { state.cached };
                return;
            }
            EventKind::Preempted => return,
            EventKind::Computed => true,
            EventKind::Token { last } => last,
        };
        state.tokens += 1;
        let gap = now.since(state.last);
        state.last = now;
        if state.first.is_none() {
            state.first = Some(now);
            self.replicas[replica].shown(state.sent.1, now.since(state.sent.0));
            self.records[job].ttft = Some(now.since(self.setup.arrivals[job].at));
            self.tell(gateway, Input::FirstToken { job, replica });
        } else if self.setup.arrivals[job].streams {
            let pace = &mut self.paces[gateway * self.setup.replicas.len() + replica];
            pace.gaps += 1;
            pace.total += gap;
        }
        if whole && self.jobs[job].at == Some(replica) {
            self.finish(job, replica);
        }
    }

    fn finish(&mut self, job: JobIndex, replica: ReplicaIndex) {
        let state = self.jobs[job];
        let record = &mut self.records[job];
        let gaps = state.tokens.saturating_sub(1).max(1);
        record.itl = state.last.since(state.first.unwrap_or(state.last)) / gaps;
        record.cached = state.cached;
        record.ended = Some(self.now);
        self.jobs[job].at = None;
        self.open -= 1;
        self.tell(usize::from(state.gateway), Input::Finished { job, replica, cached: state.cached });
    }

    fn fault_begins(&mut self, replica: ReplicaIndex) {
        let Some(fault) = self.replicas[replica].fault() else { return };
        self.plan(self.now + fault.lasts, Happening::FaultEnds(replica));
        if let Some(every) = fault.every.filter(|_| self.open > 0) {
            self.plan(self.now + every, Happening::FaultBegins(replica));
        }
        match fault.kind {
            FaultKind::Frozen => self.replicas[replica].freeze(self.now + fault.lasts),
            FaultKind::Crashed => {
                self.replicas[replica].crash();
                let there = |job: &JobIndex| self.jobs[*job].at == Some(replica);
                for job in (0..self.jobs.len()).filter(there).collect::<Vec<_>>() {
                    self.break_off(job, replica);
                }
            }
        }
    }

    /// A job's engine died under it. After the first token it is cut.
    fn break_off(&mut self, job: JobIndex, replica: ReplicaIndex) {
        let gateway = self.jobs[job].gateway;
        self.jobs[job].at = None;
        if self.jobs[job].first.is_some() {
            self.records[job].cut = true;
            self.open -= 1;
        } else {
            self.jobs[job] = Job { gateway, ..Job::default() };
        }
        self.tell(usize::from(gateway), Input::Failed { job, replica, refused: false });
    }

    fn scrape(&mut self, replica: ReplicaIndex) {
        let Some(period) = self.setup.scrape else { return };
        self.plan(self.now + period, Happening::Scrape(replica));
        if self.replicas[replica].crashed {
            return;
        }
        let report = self.replicas[replica].report();
        for gateway in 0..self.routers.len() {
            self.tell(gateway, Input::Reported { replica, report });
        }
    }

    fn tell_paces(&mut self) {
        self.plan(self.now + PACE_PERIOD, Happening::PaceDue);
        let engines = self.setup.replicas.len();
        for index in 0..self.paces.len() {
            let pace = std::mem::take(&mut self.paces[index]);
            if pace.gaps > 0 {
                self.tell(index / engines, Input::Paced { replica: index % engines, pace });
            }
        }
    }
}
