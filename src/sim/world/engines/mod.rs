//! Engine events of the world: steps and their tokens, faults, scrapes, and the
//! reports of them to routers.

pub(super) mod stream_reports;

use std::time::Duration;

use crate::engine::{EngineEvent, EngineEventKind};
use crate::world::event::{EngineReply, WorldEvent};
use crate::world::exchange::is_held_back;
use crate::world::replica::WorldFaultKind;
use crate::world::router::{Input, JobIndex, ReplicaIndex};
use crate::world::run::{ITL_PERIOD, World};

impl World<'_> {
    pub(super) fn start(&mut self, replica: ReplicaIndex) {
        match self.replicas[replica].start_step(self.now) {
            Some(end) => self.schedule(end, WorldEvent::StepEnd(replica)),
            None => self.remove_if_idle(replica),
        }
    }

    pub(super) fn step_ended(&mut self, replica: ReplicaIndex) {
        match self.replicas[replica].step {
            Some(end) if end > self.now => return self.schedule(end, WorldEvent::StepEnd(replica)),
            Some(_) => {}
            None => return,
        }
        let mut events = std::mem::take(&mut self.events);
        self.replicas[replica].finish_step(self.now, &mut events);
        if self.setup.late {
            self.start(replica);
        }
        for event in events.drain(..) {
            self.send_reply(replica, EngineReply::Event(event));
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
            EngineEventKind::Computed | EngineEventKind::Token { last: true } => state.ended_choices += 1,
            EngineEventKind::Token { last: false } => {}
        }
        match &mut state.held_back {
            Some(unsaid) => *unsaid += 1,
            None => self.receive_tokens(job, replica, 1),
        }
    }

    /// Records `tokens` tokens of a request that came at once.
    pub(super) fn receive_tokens(&mut self, job: JobIndex, replica: ReplicaIndex, tokens: u32) {
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
            self.replicas[replica].record_latency(state.others, now.since(state.sent));
            let record = &mut self.records[job];
            record.ttft = Some(now.since(record.arrived));
            if arrival.streams {
                self.notify_router(gateway, Input::FirstToken { job, replica });
            }
        } else if arrival.streams && arrival.n <= 1 {
            self.stream_reports.note_gap(gateway, replica, tokens, gap);
        }
        if arrival.streams {
            self.stream_reports.note_bytes(gateway, replica);
        }
        let state = &self.jobs[job];
        if state.at != Some(replica) || state.attempt != attempt {
            return;
        }
        match arrival.pause.filter(|pause| arrival.streams && pause.after == state.tokens) {
            _ if state.ended_choices >= arrival.n.max(1) => self.finish(job, replica),
            Some(pause) => self.pause_stream(job, replica, pause),
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
        self.jobs[job].clear_attempt();
        self.end_request(job, Duration::ZERO);
        self.notify_router(
            usize::from(state.gateway),
            Input::Finished { job, replica, cached: self.replicas[replica].told_cached(state.cached) },
        );
    }

    pub(super) fn fault_begins(&mut self, replica: ReplicaIndex) {
        let Some(fault) = self.replicas[replica].fault() else { return };
        self.schedule(self.now + fault.lasts, WorldEvent::FaultEnds(replica));
        if let Some(every) = fault.every.filter(|_| self.open > 0) {
            self.schedule(self.now + every, WorldEvent::FaultBegins(replica));
        }
        match fault.kind {
            WorldFaultKind::Frozen => self.replicas[replica].freeze(self.now + fault.lasts),
            WorldFaultKind::Crashed => {
                self.replicas[replica].crash();
                let there = |job: &JobIndex| {
                    let state = &self.jobs[*job];
                    state.at == Some(replica) && state.queued
                };
                for job in (0..self.jobs.len()).filter(there).collect::<Vec<_>>() {
                    self.send_reply(replica, EngineReply::Broken(self.attempt_id(job)));
                }
            }
        }
    }

    /// Ends the attempt of a job whose engine died. A stream is cut after its
    /// first token. Of a plain answer the client has seen nothing.
    pub(super) fn fail_attempt(&mut self, job: JobIndex, replica: ReplicaIndex) {
        let state = &mut self.jobs[job];
        let gateway = usize::from(state.gateway);
        let cut = state.first.is_some() && self.setup.arrivals[job].streams;
        state.clear_attempt();
        if cut {
            self.records[job].cut = true;
            self.end_request(job, Duration::ZERO);
        }
        self.notify_router(gateway, Input::Failed { job, replica, refused: false });
    }

    pub(super) fn scrape(&mut self, replica: ReplicaIndex) {
        let Some(period) = self.setup.scrape else { return };
        self.schedule(self.now + period, WorldEvent::Scrape(replica));
        if !self.is_reachable(replica) {
            return;
        }
        let report = self.replicas[replica].report();
        for gateway in 0..self.routers.len() {
            self.notify_router(gateway, Input::Reported { replica, report });
        }
    }

    pub(super) fn report_streams(&mut self) {
        self.schedule(self.now + ITL_PERIOD, WorldEvent::ItlDue);
        let is_unread = |request, replica| is_held_back(&self.jobs, request, replica);
        for (gateway, input) in self.stream_reports.take(is_unread) {
            self.notify_router(gateway, input);
        }
    }
}
