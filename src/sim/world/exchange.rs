//! Exchange with an engine: one attempt on its way to the engine, held there, and
//! the engine's replies on their way back. A message takes [`ReplicaSetup::one_way`]
//! in each direction. In a closed loop the client's next request follows the end
//! of its last one.
//!
//! [`ReplicaSetup::one_way`]: crate::world::replica::ReplicaSetup::one_way

use std::time::Duration;

use smallvec::SmallVec;

use crate::engine::{EngineRequest, RequestId};
use crate::world::arrival::Pause;
pub(super) use crate::world::event::{EngineReply, ExchangeStep, WorldEvent};
use crate::world::router::{Input, JobIndex, ReplicaIndex};
use crate::world::run::{World, WorldJob};

/// The job of an attempt, and the attempt's number.
const fn job_of(request: RequestId) -> (JobIndex, u32) {
    (request as u32 as JobIndex, (request >> 32) as u32)
}

/// Whether tokens of the attempt at the replica are held back.
pub(super) fn is_held_back(jobs: &[WorldJob], request: RequestId, replica: ReplicaIndex) -> bool {
    let (job, attempt) = job_of(request);
    jobs[job].is_at(attempt, replica) && jobs[job].held_back.is_some()
}

impl WorldJob {
    /// Whether this attempt of the job is its present one, at the replica.
    fn is_at(&self, attempt: u32, replica: ReplicaIndex) -> bool {
        self.at == Some(replica) && self.attempt == attempt
    }

    /// Clears the job's state at its engine, together with the tokens of the
    /// attempt.
    pub(super) fn clear_attempt(&mut self) {
        *self = Self { gateway: self.gateway, attempt: self.attempt, over: self.over, ..Self::default() };
    }
}

impl World<'_> {
    /// Id of the job's present attempt at its engine.
    pub(super) fn attempt_id(&self, job: JobIndex) -> RequestId {
        (u64::from(self.jobs[job].attempt) << 32) | job as u64
    }

    /// Sends the job to an engine. Returns the input for the router when the
    /// engine replies at once.
    pub(super) fn send(
        &mut self,
        job: JobIndex,
        replica: ReplicaIndex,
        priority: i64,
        touched: &mut SmallVec<[ReplicaIndex; 4]>,
    ) -> Option<Input<'static>> {
        if self.jobs[job].over {
            // The client left while the job waited at the router.
            return Some(Input::Finished { job, replica, cached: None });
        }
        let record = &mut self.records[job];
        record.attempts += 1;
        record.sent_after.get_or_insert(self.now.since(record.arrived));
        let others = self.replicas[replica].engine.requests();
        let state = &mut self.jobs[job];
        state.attempt += 1;
        (state.at, state.sent, state.others) = (Some(replica), self.now, others);
        let request = self.attempt_id(job);
        let away = self.replicas[replica].one_way() + self.setup.arrivals[job].held;
        if !away.is_zero() {
            let step = ExchangeStep::Entry { request, replica, priority };
            self.schedule(self.now + away, WorldEvent::Exchange(step));
            return None;
        }
        match self.queue_attempt(request, replica, priority) {
            None => {
                touched.push(replica);
                None
            }
            Some(word) => self.reject_attempt(replica, &word),
        }
    }

    /// Preempts the job: takes it back from its engine.
    pub(super) fn preempt(&mut self, job: JobIndex, touched: &mut SmallVec<[ReplicaIndex; 4]>) {
        self.records[job].preemptions += 1;
        self.cancel(job, touched);
    }

    /// Cancels the job's present attempt.
    fn cancel(&mut self, job: JobIndex, touched: &mut SmallVec<[ReplicaIndex; 4]>) {
        let request = self.attempt_id(job);
        let Some(replica) = self.jobs[job].at else { return };
        self.jobs[job].clear_attempt();
        match self.replicas[replica].one_way() {
            Duration::ZERO => {
                self.replicas[replica].engine.cancel(request);
                touched.push(replica);
            }
            one_way => {
                let step = ExchangeStep::Cancelled { request, replica };
                self.schedule(self.now + one_way, WorldEvent::Exchange(step));
            }
        }
    }

    /// Ends a request. In a closed loop its client sends another request, not
    /// before `after`.
    pub(super) fn end_request(&mut self, job: JobIndex, after: Duration) {
        self.jobs[job].over = true;
        self.open -= 1;
        if self.setup.clients.is_some()
            && let Some(next) = self.setup.arrivals.get(self.next)
        {
            self.schedule(next.at.max(self.now + after), WorldEvent::Arrival(self.next));
            self.next += 1;
        }
    }

    pub(super) fn exchange(&mut self, step: ExchangeStep) {
        match step {
            ExchangeStep::Entry { request, replica, priority } => {
                if self.is_at(request, replica) {
                    match self.queue_attempt(request, replica, priority) {
                        None => self.start(replica),
                        Some(word) => self.send_reply(replica, word),
                    }
                }
            }
            ExchangeStep::Cancelled { request, replica } => {
                self.replicas[replica].engine.cancel(request);
                self.start(replica);
            }
            ExchangeStep::ReplyArrives(replica) => {
                if let Some(word) = self.replicas[replica].replies_in_transit.pop_front() {
                    self.receive_reply(replica, &word);
                }
            }
            ExchangeStep::StreamResumes(request) => {
                let (job, attempt) = job_of(request);
                let state = &mut self.jobs[job];
                if state.attempt == attempt
                    && let Some(replica) = state.at
                    && let Some(unsaid) = state.held_back.take().filter(|unsaid| *unsaid > 0)
                {
                    self.receive_tokens(job, replica, unsaid);
                }
            }
            ExchangeStep::Leaves(job) if self.jobs[job].over => {}
            ExchangeStep::Leaves(job) => {
                let mut touched = SmallVec::new();
                self.cancel(job, &mut touched);
                self.records[job].client_left = true;
                self.end_request(job, Duration::ZERO);
                self.notify_router(usize::from(self.jobs[job].gateway), Input::ClientLeft { job });
                touched.into_iter().for_each(|replica| self.start(replica));
            }
        }
    }

    /// Delivers a reply of the engine after its way back.
    pub(super) fn send_reply(&mut self, replica: ReplicaIndex, word: EngineReply) {
        match self.replicas[replica].one_way() {
            Duration::ZERO => self.receive_reply(replica, &word),
            one_way => {
                self.replicas[replica].replies_in_transit.push_back(word);
                self.schedule(self.now + one_way, WorldEvent::Exchange(ExchangeStep::ReplyArrives(replica)));
            }
        }
    }

    /// Pauses the job's stream.
    pub(super) fn pause_stream(&mut self, job: JobIndex, replica: ReplicaIndex, pause: Pause) {
        self.jobs[job].held_back = Some(0);
        let request = self.attempt_id(job);
        if pause.by_client {
            self.stream_reports.note_unread(usize::from(self.jobs[job].gateway), replica, request);
        }
        self.schedule(self.now + pause.lasts, WorldEvent::Exchange(ExchangeStep::StreamResumes(request)));
    }

    fn is_at(&self, request: RequestId, replica: ReplicaIndex) -> bool {
        let (job, attempt) = job_of(request);
        self.jobs[job].is_at(attempt, replica)
    }

    /// The attempt reaches its engine. Returns the reply when the engine does
    /// not take the attempt.
    fn queue_attempt(
        &mut self,
        request: RequestId,
        replica: ReplicaIndex,
        priority: i64,
    ) -> Option<EngineReply> {
        if !self.is_reachable(replica) {
            return Some(EngineReply::Refused(request));
        }
        let (job, _) = job_of(request);
        let arrival = &self.setup.arrivals[job];
        let wanted = EngineRequest {
            id: request,
            prompt_tokens: arrival.prompt,
            prefix: arrival.engine_blocks(),
            output_tokens: arrival.output,
            n: arrival.n.max(1),
            priority,
            adapter: None,
        };
        if self.replicas[replica].engine.submit(wanted).is_err() {
            return Some(EngineReply::TooLarge(request));
        }
        self.jobs[job].queued = true;
        None
    }

    /// Ends an attempt that its engine did not take. Returns the input for the
    /// router.
    fn reject_attempt(&mut self, replica: ReplicaIndex, word: &EngineReply) -> Option<Input<'static>> {
        let (job, _) = job_of(word.request());
        self.jobs[job].clear_attempt();
        match word {
            EngineReply::TooLarge(_) => {
                self.end_request(job, Duration::ZERO);
                Some(Input::Finished { job, replica, cached: None })
            }
            EngineReply::Refused(_) => Some(Input::Failed { job, replica, refused: true }),
            EngineReply::Event(_) | EngineReply::Broken(_) => None,
        }
    }

    fn receive_reply(&mut self, replica: ReplicaIndex, word: &EngineReply) {
        let (job, _) = job_of(word.request());
        if !self.is_at(word.request(), replica) {
            return;
        }
        match word {
            EngineReply::Event(event) => self.engine_event(job, replica, *event),
            EngineReply::Broken(_) => self.fail_attempt(job, replica),
            EngineReply::Refused(_) | EngineReply::TooLarge(_) => {
                let gateway = usize::from(self.jobs[job].gateway);
                if let Some(input) = self.reject_attempt(replica, word) {
                    self.notify_router(gateway, input);
                }
            }
        }
    }
}
