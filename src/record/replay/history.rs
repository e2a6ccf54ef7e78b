//! History: what became of each request, from the steps of a scheduler, recorded or simulated.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::core::model::event::{AttemptOutcome, Event, ReplicaReport};
use crate::core::model::ids::{JobId, PoolId, ReplicaId};
use crate::core::model::job::{JobSpec, JobUsage, PromptPrefix};
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::core::replica::speed::prefill_rate::PrefillSampler;
use crate::core::replica::speed::ttft_model::weight;
use crate::dispatcher::event_log::{Decision, LoggedStep};
use crate::record::replay::fit::PoolSamples;

/// Most requests that a history holds. Later ones are counted only.
pub const MAX_JOBS: usize = 1_000_000;
/// Most changes of the policy that a history keeps.
const MAX_POLICIES: usize = 1_000;
/// Reasons of a rejection after engines have failed the request.
const ENGINE_FAILURES: [&str; 2] = ["attempts_exhausted", "retries_spent"];
/// Most prompt blocks of a replica that are remembered, to tell cached prompts.
const MAX_BLOCKS: usize = 1 << 20;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JobEnd {
    /// It has not.
    #[default]
    Open,
    Done,
    /// An engine failed it, and no other took it.
    Failed,
    /// The client left.
    Left,
    Rejected,
}

/// One request.
#[derive(Debug, Clone)]
pub struct PastJob {
    pub spec: JobSpec,
    pub prefix: PromptPrefix,
    /// When the scheduler was told of it.
    pub at: Tick,
    /// First dispatch.
    pub sent: Option<Tick>,
    /// Last dispatch.
    pub attempt: Option<PastAttempt>,
    pub first: Option<Tick>,
    pub ended: Option<Tick>,
    pub end: JobEnd,
    pub usage: JobUsage,
    pub attempts: u32,
    /// Its part of the replicas' time, and the cost in 1e-9 of the currency.
    pub nanos: u64,
    pub money: u64,
}

/// Dispatch of a request to a replica.
#[derive(Debug, Clone, Copy)]
pub struct PastAttempt {
    pub at: Tick,
    pub replica: ReplicaId,
    pub pool: PoolId,
}

/// Time for which a replica was out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastOutage {
    pub replica: ReplicaId,
    pub from: Tick,
    /// `None` = it had not come back at the last step.
    pub until: Option<Tick>,
}

/// What one replica showed.
#[derive(Debug, Clone, Default)]
struct SeenReplica {
    reads: PrefillSampler,
    streams: BTreeMap<JobId, SeenStream>,
    /// Blocks of prompts that were computed there.
    blocks: HashSet<u64>,
    /// When the last report came.
    reported: Option<Tick>,
}

/// A stream that runs.
#[derive(Debug, Clone, Copy)]
struct SeenStream {
    first_token: Tick,
    prompt_tokens: u64,
}

/// Times of the first and the last step of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordSpan {
    pub first: Tick,
    pub last: Tick,
}

/// An event that comes from neither a request nor an engine.
#[derive(Debug, Clone)]
pub struct OutsideEvent {
    pub at: Tick,
    pub event: Event,
}

/// What became of each request under a scheduler.
#[derive(Debug, Clone)]
pub struct History {
    /// Policy at the begin.
    pub first_policy: Arc<Policy>,
    /// Policy after the last step.
    pub policy: Arc<Policy>,
    /// Requests in the order of their arrival.
    pub jobs: Vec<PastJob>,
    /// Requests beyond [`MAX_JOBS`].
    pub uncounted: u64,
    /// `None` before the first step.
    pub span: Option<RecordSpan>,
    pub outside: Vec<OutsideEvent>,
    /// Times for which replicas were out of service.
    pub down: Vec<PastOutage>,
    /// What the replicas of each pool showed.
    pub samples: BTreeMap<PoolId, PoolSamples>,
    live: HashMap<JobId, usize>,
    replicas: HashMap<ReplicaId, SeenReplica>,
    policies: usize,
}

impl History {
    /// A history that begins under the policy.
    pub fn new(policy: Arc<Policy>) -> Self {
        Self {
            first_policy: Arc::clone(&policy),
            policy,
            jobs: Vec::new(),
            uncounted: 0,
            span: None,
            outside: Vec::new(),
            down: Vec::new(),
            samples: BTreeMap::new(),
            live: HashMap::new(),
            replicas: HashMap::new(),
            policies: 0,
        }
    }

    /// Takes a step in.
    pub fn step(&mut self, step: &LoggedStep) {
        let first = self.span.map_or(step.at, |span| span.first);
        self.span = Some(RecordSpan { first, last: step.at });
        let ending = self.event(step);
        step.decisions.iter().for_each(|decision| self.decision(decision, step.at));
        if let Some(job) = ending {
            self.forget_ended(job);
        }
    }

    fn job(&mut self, id: JobId) -> Option<&mut PastJob> {
        self.live.get(&id).and_then(|place| self.jobs.get_mut(*place))
    }

    /// Notes an event. Returns the job that it may end.
    fn event(&mut self, step: &LoggedStep) -> Option<JobId> {
        let now = step.at;
        match &step.event {
            Event::Arrived(spec, prefix) => self.arrived(spec, prefix, now),
            Event::FirstToken { job } => self.first_token(*job, now),
            Event::Finished { job, outcome } => {
                let end = match outcome {
                    AttemptOutcome::Done(_) => JobEnd::Done,
                    AttemptOutcome::Failed { .. } | AttemptOutcome::Interrupted { .. } => JobEnd::Failed,
                };
                self.ended(*job, end, outcome.usage(), now);
                return Some(*job);
            }
            Event::Abandoned { job, usage } => {
                self.ended(*job, JobEnd::Left, *usage, now);
                return Some(*job);
            }
            Event::ItlSampled { replica, sample } => {
                let mean = sample.total.as_secs_f64() / sample.gaps.max(1) as f64;
                let streams = self.replicas.get(replica).map(|seen| &seen.streams);
                let written = |first_token| now.since(first_token).as_secs_f64() / mean.max(1e-6);
                let kv = streams
                    .into_iter()
                    .flat_map(BTreeMap::values)
                    .map(|stream| stream.prompt_tokens as f64 + written(stream.first_token))
                    .sum();
                if let Some(pool) = self.pool_of(*replica) {
                    self.samples.entry(pool).or_default().gap(mean * 1e3, kv, sample.gaps as f64);
                }
            }
            Event::ReplicaReported { replica, report } => self.reported(*replica, report, now),
            Event::PolicyChanged(policy) => {
                self.policy = Arc::clone(policy);
                self.policies += 1;
                if self.policies <= MAX_POLICIES {
                    self.outside.push(OutsideEvent { at: now, event: step.event.clone() });
                }
            }
            Event::Overridden(_)
            | Event::OverrideEnded(_)
            | Event::PeriodBegan { .. }
            | Event::UsageRestored { .. }
            | Event::PromptDenied { .. }
            | Event::StartsRestored(_)
            | Event::Draining => self.outside.push(OutsideEvent { at: now, event: step.event.clone() }),
            Event::BytesReceived { .. }
            | Event::StreamsPaused { .. }
            | Event::AdaptersReported { .. }
            | Event::ReplicaLost { .. }
            | Event::ProbeSucceeded { .. }
            | Event::SleepAnswered { .. }
            | Event::GrowthExpected(_)
            | Event::LimitsLeased { .. }
            | Event::ServedElsewhere(_)
            | Event::UsedBeforeStart(_)
            | Event::HeldElsewhere(_)
            | Event::LoadElsewhere(_)
            | Event::Timer => {}
        }
        None
    }

    fn arrived(&mut self, spec: &JobSpec, prefix: &PromptPrefix, now: Tick) {
        if self.jobs.len() >= MAX_JOBS {
            self.uncounted += 1;
            return;
        }
        self.live.insert(spec.id, self.jobs.len());
        self.jobs.push(PastJob {
            spec: *spec,
            prefix: prefix.clone(),
            at: now,
            sent: None,
            attempt: None,
            first: None,
            ended: None,
            end: JobEnd::Open,
            usage: JobUsage::Unknown,
            attempts: 0,
            nanos: 0,
            money: 0,
        });
    }

    fn first_token(&mut self, id: JobId, now: Tick) {
        let Some(job) = self.job(id) else { return };
        job.first.get_or_insert(now);
        let (spec, prefix, attempt) = (job.spec, job.prefix.clone(), job.attempt);
        let Some(PastAttempt { at: sent, replica, pool }) = attempt else { return };
        let seen = self.replicas.entry(replica).or_default();
        let known = prefix.blocks.iter().take_while(|block| seen.blocks.contains(block)).count();
        if seen.blocks.len() >= MAX_BLOCKS {
            seen.blocks.clear();
        }
        seen.blocks.extend(prefix.blocks.iter());
        if spec.streams && spec.sequences <= 1 {
            seen.streams.insert(id, SeenStream { first_token: now, prompt_tokens: spec.prompt_tokens });
        }
        let cached = known as u64 * u64::from(prefix.block_tokens);
        let read = seen.reads.first_token(now.since(sent), weight(spec.prompt_tokens, cached), now);
        let samples = self.samples.entry(pool).or_default();
        read.into_iter().for_each(|stretch| samples.prefill.add(stretch));
    }

    fn reported(&mut self, replica: ReplicaId, report: &ReplicaReport, now: Tick) {
        let seen = self.replicas.entry(replica).or_default();
        let before = seen.reported.replace(now);
        if let Some(pool) = self.pool_of(replica) {
            let pause = before.map(|at| now.since(at));
            self.samples.entry(pool).or_default().report(report, pause);
        }
    }

    fn ended(&mut self, id: JobId, end: JobEnd, usage: JobUsage, now: Tick) {
        let Some(job) = self.job(id) else { return };
        (job.end, job.ended) = (end, Some(now));
        if usage != JobUsage::Unknown {
            job.usage = usage;
        }
        self.leave_replica(id);
    }

    fn decision(&mut self, decision: &Decision, now: Tick) {
        match decision {
            Decision::Dispatched { job: id, replica, .. } => {
                let pool = self.pool_of(*replica);
                let Some(job) = self.job(*id) else { return };
                job.attempts += 1;
                job.sent.get_or_insert(now);
                job.attempt = pool.map(|pool| PastAttempt { at: now, replica: *replica, pool });
            }
            Decision::Rejected { job: id, reason } => {
                let is_failure = ENGINE_FAILURES.contains(&&**reason);
                if let Some(job) = self.job(*id) {
                    job.end = if is_failure { JobEnd::Failed } else { JobEnd::Rejected };
                    job.ended = Some(now);
                }
                self.leave_replica(*id);
                self.forget_ended(*id);
            }
            Decision::Requeued { job: id } | Decision::Preempted { job: id, .. } => {
                if let Some(job) = self.job(*id) {
                    (job.end, job.ended) = (JobEnd::Open, None);
                }
                self.leave_replica(*id);
            }
            Decision::Billed { job: id, nanos, money, .. } => {
                if let Some(job) = self.job(*id) {
                    job.nanos = job.nanos.saturating_add(*nanos);
                    job.money = job.money.saturating_add(*money);
                }
            }
            Decision::Ejected { replica, .. } => {
                self.down.push(PastOutage { replica: *replica, from: now, until: None });
            }
            Decision::Readmitted { replica } => {
                let is_last = |down: &&mut PastOutage| down.replica == *replica && down.until.is_none();
                let last = self.down.iter_mut().rev().find(is_last);
                last.into_iter().for_each(|down| down.until = Some(now));
            }
            Decision::Migrated { .. } | Decision::PutToSleep { .. } | Decision::Woken { .. } => {}
        }
    }

    fn leave_replica(&mut self, id: JobId) {
        let Some(attempt) = self.job(id).and_then(|job| job.attempt) else { return };
        if let Some(seen) = self.replicas.get_mut(&attempt.replica) {
            seen.streams.remove(&id);
        }
    }

    fn forget_ended(&mut self, id: JobId) {
        if self.job(id).is_some_and(|job| job.end != JobEnd::Open) {
            self.live.remove(&id);
        }
    }

    fn pool_of(&self, replica: ReplicaId) -> Option<PoolId> {
        self.policy.replicas.get(replica).map(|row| row.pool)
    }
}
