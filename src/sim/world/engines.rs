//! Engine events of the world: steps and their tokens, faults, scrapes, and the
//! reports of them to routers.

use std::time::Duration;

use crate::sim::engine::{EngineEvent, EngineEventKind};
use crate::sim::world::exchange::EngineReply;
use crate::sim::world::replica::WorldFaultKind;
use crate::sim::world::router::{Input, JobIndex, ReplicaIndex};
use crate::sim::world::run::{Happening, PACE_PERIOD, World};

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
            self.say(replica, EngineReply::Event(event));
        }
        self.events = events;
        self.start(replica);
    }

    /// Applies an engine event that has reached the router's side.
    pub(super) fn engine_event(&mut self, job: JobIndex, replica: ReplicaIndex, event: EngineEvent) {
        let state = &mut self.jobs[job];
        match event.kind {
            EngineEventKind::Scheduled { cached_tokens } => {
                state.cached =
                    if state.tokens == 0 && event.choice == 0 { cached_tokens } else { state.cached };
                return;
            }
            EngineEventKind::Preempted => return,
            EngineEventKind::Computed | EngineEventKind::Token { last: true } => state.ended += 1,
            EngineEventKind::Token { last: false } => {}
        }
        match &mut state.unsaid {
            Some(unsaid) => *unsaid += 1,
            None => self.tokens_came(job, replica, 1),
        }
    }

    /// Records `tokens` tokens of a request that came at once.
    pub(super) fn tokens_came(&mut self, job: JobIndex, replica: ReplicaIndex, tokens: u32) {
        let now = self.now;
        let arrival = &self.setup.arrivals[job];
        let state = &mut self.jobs[job];
        state.tokens += tokens;
        state.counted += if now >= self.setup.counted_from { tokens } else { 0 };
        let gap = now.since(state.last);
        state.last = now;
        let (gateway, attempt) = (usize::from(state.gateway), state.attempt);
        if state.first.is_none() {
            state.first = Some(now);
            self.replicas[replica].shown(state.sent.1, now.since(state.sent.0));
            let record = &mut self.records[job];
            record.ttft = Some(now.since(record.arrived));
            if arrival.streams {
                self.tell(gateway, Input::FirstToken { job, replica });
            }
        } else if arrival.streams && arrival.n <= 1 {
            let pace = &mut self.paces[gateway * self.setup.replicas.len() + replica];
            pace.gaps += u64::from(tokens);
            pace.total += gap;
        }
        let state = &self.jobs[job];
        if state.at != Some(replica) || state.attempt != attempt {
            return;
        }
        match arrival.pause.filter(|pause| arrival.streams && pause.after == state.tokens) {
            _ if state.ended >= arrival.n.max(1) => self.finish(job, replica),
            Some(pause) => self.fall_silent(job, pause.lasts),
            None => {}
        }
    }

    fn finish(&mut self, job: JobIndex, replica: ReplicaIndex) {
        let state = self.jobs[job];
        let record = &mut self.records[job];
        let of_each = state.tokens / self.setup.arrivals[job].n.max(1);
        record.itl = state.last.since(state.first.unwrap_or(state.last)) / of_each.saturating_sub(1).max(1);
        record.cached = state.cached;
        record.ended = Some(self.now);
        self.tokens += u64::from(state.counted);
        self.jobs[job].leave();
        self.over(job, Duration::ZERO);
        self.tell(usize::from(state.gateway), Input::Finished { job, replica, cached: state.cached });
    }

    pub(super) fn fault_begins(&mut self, replica: ReplicaIndex) {
        let Some(fault) = self.replicas[replica].fault() else { return };
        self.plan(self.now + fault.lasts, Happening::FaultEnds(replica));
        if let Some(every) = fault.every.filter(|_| self.open > 0) {
            self.plan(self.now + every, Happening::FaultBegins(replica));
        }
        match fault.kind {
            WorldFaultKind::Frozen => self.replicas[replica].freeze(self.now + fault.lasts),
            WorldFaultKind::Crashed => {
                self.replicas[replica].crash();
                let there = |job: &JobIndex| {
                    let state = &self.jobs[*job];
                    state.at == Some(replica) && state.entered
                };
                for job in (0..self.jobs.len()).filter(there).collect::<Vec<_>>() {
                    self.say(replica, EngineReply::Broken(self.try_of(job)));
                }
            }
        }
    }

    /// Ends the attempt of a job whose engine died. A stream is cut after its
    /// first token. Of a plain answer the client has seen nothing.
    pub(super) fn break_off(&mut self, job: JobIndex, replica: ReplicaIndex) {
        let state = &mut self.jobs[job];
        let gateway = usize::from(state.gateway);
        let cut = state.first.is_some() && self.setup.arrivals[job].streams;
        state.leave();
        if cut {
            self.records[job].cut = true;
            self.over(job, Duration::ZERO);
        }
        self.tell(gateway, Input::Failed { job, replica, refused: false });
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
