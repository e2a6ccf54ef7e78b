//! What engines do to the world: steps and their tokens, faults, and what is
//! told of them.

use crate::sim::engine::{EngineEvent, EventKind};
use crate::sim::world::replica::FaultKind;
use crate::sim::world::router::{Input, JobIndex, ReplicaIndex};
use crate::sim::world::run::{Happening, Job, PACE_PERIOD, World};

impl World<'_> {
    pub(super) fn start(&mut self, replica: ReplicaIndex) {
        match self.replicas[replica].start_step(self.now) {
            Some(end) => self.plan(end, Happening::StepEnd(replica)),
            None => self.let_leave(replica),
        }
    }

    pub(super) fn step_ended(&mut self, replica: ReplicaIndex) {
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
        let arrival = &self.setup.arrivals[job];
        if state.first.is_none() {
            state.first = Some(now);
            self.replicas[replica].shown(state.sent.1, now.since(state.sent.0));
            self.records[job].ttft = Some(now.since(arrival.at));
            if arrival.streams {
                self.tell(gateway, Input::FirstToken { job, replica });
            }
        } else if arrival.streams {
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

    pub(super) fn fault_begins(&mut self, replica: ReplicaIndex) {
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

    /// A job's engine died under it. A stream is cut after its first token; of
    /// a plain answer the client has seen nothing.
    fn break_off(&mut self, job: JobIndex, replica: ReplicaIndex) {
        let gateway = self.jobs[job].gateway;
        self.jobs[job].at = None;
        if self.jobs[job].first.is_some() && self.setup.arrivals[job].streams {
            self.records[job].cut = true;
            self.open -= 1;
        } else {
            self.jobs[job] = Job { gateway, ..Job::default() };
        }
        self.tell(usize::from(gateway), Input::Failed { job, replica, refused: false });
    }

    pub(super) fn scrape(&mut self, replica: ReplicaIndex) {
        let Some(period) = self.setup.scrape else { return };
        self.plan(self.now + period, Happening::Scrape(replica));
        if !self.answers(replica) {
            return;
        }
        let report = self.replicas[replica].report();
        for gateway in 0..self.routers.len() {
            self.tell(gateway, Input::Reported { replica, report });
        }
    }

    pub(super) fn tell_paces(&mut self) {
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
