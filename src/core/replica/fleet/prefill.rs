//! Prompts that replicas read, and what jobs show of their speed.

use std::time::Duration;

use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::model::job::TokenCounts;
use crate::core::model::time::Tick;
use crate::core::replica::itl_limit::ItlConditions;
use crate::core::replica::ledger::Booking;
use crate::core::replica::speed::ttft_model;

use super::Fleet;
use crate::core::replica::fleet::pool_state::PoolState;
use crate::core::replica::fleet::replica_state::ReplicaState;

/// Weights of prompts that may be on their way to a first token when another one is
/// sent: what the smallest usual step takes, and the largest one.
const STEP_WEIGHTS: [u64; 2] = [2048, 8192];
/// The part of the time promised for a first token in which prompts may be on their
/// way beyond the smallest usual step, and the part in which they may be at all.
const READING_TIMES: [f64; 2] = [0.1, 0.4];
/// A class that promises its first token later than this would rather have all
/// that its replicas can make than an even pace.
const PATIENT: Duration = Duration::from_secs(2);
/// The part of the tokens that replicas could make which they make at least, for an
/// impatient class and for a patient one. A class that waits too long does not get
/// more: those that wait may be one tenant's flood.
const ENOUGH: [f64; 2] = [0.88, 0.99];
/// Over which time the weight of prompts is averaged.
const MEMORY: Duration = Duration::from_secs(3);
/// The most of its time that a replica is taken to read prompts.
const MOST_READING: f64 = 0.9;
/// What a replica had to do when a job came there, to compare with its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefillMark {
    /// Weight of all prompts ever sent there, the job's own included.
    weights: u64,
    /// Nanoseconds of a step in which each sequence gets a token, for a replica
    /// of speed 1.
    step: u64,
}

/// Weight of the prompts that come to a replica, over time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct PrefillLoad {
    weights: u64,
    at: Tick,
    /// Weight in a nanosecond.
    rate: f64,
}

impl PrefillLoad {
    /// So much weight has come there in all.
    pub(super) fn note(&mut self, weights: u64, now: Tick) {
        let passed = now.since(self.at).as_nanos() as f64;
        if passed > 0.0 {
            let part = (passed / MEMORY.as_nanos() as f64).min(1.0);
            let rate = weights.wrapping_sub(self.weights) as f64 / passed;
            self.rate += (rate - self.rate) * part;
            (self.weights, self.at) = (weights, now);
        }
    }
}

impl Fleet {
    /// What the replica has to do just now.
    #[must_use]
    pub fn mark(&self, id: ReplicaId) -> PrefillMark {
        let mark = |node: &ReplicaState| PrefillMark {
            weights: node.weights,
            step: ttft_model::decode_step(&node.ledger),
        };
        self.node(id).map(mark).unwrap_or_default()
    }

    /// How long before its first token comes a prompt is read there so far that the
    /// next one should be on its way: the way to the engine and back, the step under
    /// way, and the one that reads its end. `weight` is that of the prompt.
    #[must_use]
    pub fn lead(&self, id: ReplicaId, weight: u64) -> Duration {
        let Some((node, pool)) = self.replica_and_pool(id) else { return Duration::ZERO };
        let reading = ttft_model::time_of(weight.min(node.step_weight(pool))) as f64 * node.slowness();
        Duration::from_nanos((node.decode_step() + node.delay() + reading) as u64)
    }

    /// Whether one more prompt of this weight may count as read there before its
    /// first token is due: a step's worth of them may.
    #[must_use]
    pub fn may_be_ahead(&self, id: ReplicaId, weight: u64) -> bool {
        let Some((node, pool)) = self.replica_and_pool(id) else { return false };
        let ahead = node.ledger.ahead;
        ahead == 0 || ahead.saturating_add(weight) <= node.step_weight(pool)
    }

    fn replica_and_pool(&self, id: ReplicaId) -> Option<(&ReplicaState, &PoolState)> {
        let node = self.node(id)?;
        Some((node, self.pools.get(node.pool.index())?))
    }

    /// The job's prompt counts as read from now on; `due` says whether its first
    /// token should have come. False when its booking is not there.
    pub fn prefilled(&mut self, id: ReplicaId, booking: &mut Booking, due: bool, now: Tick) -> bool {
        let whole = self.change(id, now, |node| {
            let whole = node.ledger.take(booking);
            (booking.read, booking.due) = (true, due);
            if whole {
                node.ledger.add(booking);
            }
            whole
        });
        whole.unwrap_or(false)
    }

    /// The job's first token is so late that its prompt was surely read. False when
    /// its booking is not there.
    pub fn settle(&mut self, id: ReplicaId, booking: &mut Booking, now: Tick) -> bool {
        let whole = self.change(id, now, |node| {
            let whole = node.ledger.take(booking);
            booking.settled = true;
            if whole {
                node.ledger.add(booking);
            }
            whole
        });
        whole.unwrap_or(false)
    }

    /// A job's first token came so long after its dispatch, where `raw`
    /// nanoseconds were predicted for a replica of speed 1.
    pub fn answered(
        &mut self,
        id: ReplicaId,
        observed: Duration,
        (raw, booking): (u64, &Booking),
        now: Tick,
    ) {
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else { return };
        let Some(pool) = self.pools.get_mut(node.pool.index()).filter(|_| node.present) else { return };
        let cached = ttft_model::weight(booking.prompt, 0).saturating_sub(booking.weight);
        let cold = raw.saturating_add(ttft_model::time_of(cached));
        node.speed.learn(u64::try_from(observed.as_nanos()).unwrap_or(u64::MAX), (raw, cold), now);
        node.rank_speed(&mut pool.speeds);
        pool.bests.first_token(observed, booking.weight, now);
        let stretch = node.reader.first_token(observed, booking.weight, now);
        stretch.into_iter().for_each(|stretch| pool.bests.read(stretch));
        self.refresh(id, now);
    }

    /// A plain answer is whole, `took` after its dispatch: what that tells of the
    /// replica's speed. `raw` nanoseconds were predicted to its first token for a
    /// replica of speed 1; after it comes a step for each token, and the prompts
    /// that came to the replica meanwhile.
    pub fn answered_whole(
        &mut self,
        id: ReplicaId,
        (mark, raw): (PrefillMark, u64),
        tokens: TokenCounts,
        (took, seqs): (Duration, u32),
        now: Tick,
    ) {
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else { return };
        let Some(pool) = self.pools.get_mut(node.pool.index()).filter(|_| node.present) else { return };
        let steps = (tokens.output / u64::from(seqs.max(1))).saturating_sub(1);
        let step = mark.step.midpoint(ttft_model::decode_step(&node.ledger));
        let prompts = ttft_model::time_of(node.weights.wrapping_sub(mark.weights));
        let predicted = raw.saturating_add(steps.saturating_mul(step)).saturating_add(prompts);
        let ratio = took.as_nanos() as f64 / predicted.max(1) as f64;
        node.speed.learn_whole(ratio, raw, now);
        node.rank_speed(&mut pool.speeds);
        self.refresh(id, now);
    }

    /// A job of the urgent class came to the pool while so many others of its class
    /// waited.
    pub fn first_token(&mut self, pool: PoolId, waiting: u64) {
        if let Some(pool) = self.pools.get_mut(pool.index()) {
            pool.waiting = waiting;
        }
    }
}

impl ReplicaState {
    /// How many times as long as predicted its engine computes. Where first tokens
    /// take longer than the steps explain, the rest is delay.
    pub(super) fn slowness(&self) -> f64 {
        self.itl_limit.slowness().map_or(self.factor, |slowness| slowness.min(self.factor))
    }

    /// Nanoseconds of a first token that are no computing: the network, the
    /// engine's door, its tokenizer.
    pub(super) fn delay(&self) -> f64 {
        (self.factor - self.slowness()) * self.speed.mean_raw()
    }

    /// Weight of prompts that may be sent on top of those that it reads; any
    /// while it reads none, as far as is known here: what was sent so lately that
    /// its first token cannot be here yet may have been read. More than a step's
    /// worth would only wait inside the engine.
    pub(super) fn prefill_left(&self, pool: &PoolState) -> u64 {
        if self.ledger.prefill <= self.on_the_way() {
            return u64::MAX;
        }
        self.prefill_at_once(pool).saturating_sub(self.ledger.prefill)
    }

    /// Weight of prompts that may be sent and not be answered.
    pub(super) fn prefill_at_once(&self, pool: &PoolState) -> u64 {
        self.step_weight(pool).saturating_add(self.on_the_way())
    }

    /// Weight of prompts that one of its steps is taken to read. A larger one than the
    /// engine's makes a prompt wait inside the engine for a small part of its objective.
    pub(super) fn step_weight(&self, pool: &PoolState) -> u64 {
        let objective = pool.objective.ttft.as_nanos() as f64 / self.slowness();
        let [short, most] = READING_TIMES.map(|part| ttft_model::weight_in((objective * part) as u64));
        let [least, largest] = STEP_WEIGHTS;
        short.clamp(least, largest).min(most)
    }

    /// Weight of prompts that the replica reads in the time of its delay.
    pub(super) fn on_the_way(&self) -> u64 {
        ttft_model::weight_in((self.delay() / self.slowness()) as u64)
    }

    /// What its limit by pace depends on.
    pub(super) fn conditions(&self, pool: &PoolState) -> ItlConditions {
        let patient = pool.objective.ttft > PATIENT;
        let share = u32::try_from(pool.waiting / u64::from(pool.counts.up.max(1))).unwrap_or(u32::MAX);
        ItlConditions {
            running: self.ledger.seqs,
            step: ttft_model::decode_step(&self.ledger) as f64,
            slope: ttft_model::step_per_seq(&self.ledger) * self.factor,
            prefilling: (self.reading.rate * ttft_model::time_of(1) as f64 * self.slowness())
                .min(MOST_READING),
            best: pool.bests.all().gap,
            objective: pool.objective.itl,
            wanted: self.ledger.seqs.saturating_add(share).min(self.full(pool)),
            enough: ENOUGH[usize::from(patient)],
        }
    }
}
