//! Prefill in the fleet: the prompts that replicas prefill, and the speed that their jobs show.

pub(super) mod load;

use std::time::Duration;

use crate::model::event::ItlSample;
use crate::model::ids::{PoolId, ReplicaId};
use crate::model::time::Tick;
use crate::replica::itl_limit::{ItlAim, ItlConditions};
use crate::replica::ledger::Booking;
use crate::replica::speed::{PlainAnswer, PredictedTtft, step_time, ttft_model};

use super::Fleet;
use crate::replica::fleet::pool_state::{LatencyObjective, PoolState};
pub(super) use crate::replica::fleet::prefill::load::PrefillMark;
use crate::replica::fleet::replica_state::ReplicaState;
/// Largest part of its time that a replica is taken to spend on prefill.
const MAX_PREFILL_SHARE: f64 = 0.9;

/// Bounds of the prompt weight that may be under way to a first token when another prompt is sent:
/// the weights of the smallest and of the largest usual step.
const STEP_WEIGHTS: [u64; 2] = [2048, 8192];
/// Parts of the TTFT objective for prompts under way: the part that lets them exceed the smallest
/// usual step, and the part that they may never exceed.
const TTFT_PARTS: [f64; 2] = [0.1, 0.4];
/// A class with a longer TTFT objective than this prefers the full throughput of its replicas to an
/// even ITL.
const PATIENT_TTFT: Duration = Duration::from_secs(2);
/// Least part of the possible tokens that replicas make, for an impatient and for a patient class.
/// A class that waits too long does not get more, because its waiting jobs may be one tenant's
/// flood.
const MIN_THROUGHPUT: [f64; 2] = [0.88, 0.99];

impl Fleet {
    /// Work of the replica now.
    pub fn prefill_mark(&self, id: ReplicaId) -> PrefillMark {
        let mark = |node: &ReplicaState| PrefillMark {
            weights: node.sent.weights,
            step: step_time::decode_step(&node.ledger),
        };
        self.node(id).map(mark).unwrap_or_default()
    }

    /// Time before a prompt's first token at which the next prompt should be under way. The time
    /// covers the way to the engine and back, the step under way, and the step that computes the
    /// end of the prompt. `weight` is the weight of the prompt.
    pub fn prefill_lead(&self, id: ReplicaId, weight: u64) -> Duration {
        let Some((node, pool)) = self.replica_and_pool(id) else { return Duration::ZERO };
        let prefill = ttft_model::prefill_time(weight.min(node.step_weight(pool))) as f64 * node.slowness();
        Duration::from_nanos((node.decode_step() + node.delay() + prefill) as u64)
    }

    /// Whether one more prompt of this weight may count as prefilled before its first token is due.
    /// Prompts of one step's weight may.
    pub fn may_be_ahead(&self, id: ReplicaId, weight: u64) -> bool {
        let Some((node, pool)) = self.replica_and_pool(id) else { return false };
        let ahead = node.ledger.ahead;
        ahead == 0 || ahead.saturating_add(weight) <= node.step_weight(pool)
    }

    fn replica_and_pool(&self, id: ReplicaId) -> Option<(&ReplicaState, &PoolState)> {
        let node = self.node(id)?;
        Some((node, self.pools.get(node.pool.index())?))
    }

    /// Counts the job's prompt as prefilled from now on. `due` tells whether its first token should have
    /// come. Returns false when the job's booking is not there.
    pub fn prefilled(&mut self, id: ReplicaId, booking: &mut Booking, due: bool, now: Tick) -> bool {
        let whole = self.change(id, now, |node| {
            let whole = node.ledger.remove(booking);
            (booking.prefilled, booking.due) = (true, due);
            if whole {
                node.ledger.add(booking);
            }
            whole
        });
        whole.unwrap_or(false)
    }

    /// Marks the first token of a plain answer as overdue: its prompt is surely prefilled. Returns
    /// false when the job's booking is not there.
    pub fn mark_first_token_overdue(&mut self, id: ReplicaId, booking: &mut Booking, now: Tick) -> bool {
        let whole = self.change(id, now, |node| {
            let whole = node.ledger.remove(booking);
            booking.first_token_overdue = true;
            if whole {
                node.ledger.add(booking);
            }
            whole
        });
        whole.unwrap_or(false)
    }

    /// Learns from a first token that came `observed` after the dispatch. `raw` nanoseconds were
    /// predicted for a replica of speed factor 1.
    pub fn learn_ttft(&mut self, id: ReplicaId, booking: &Booking, observed: Duration, raw: u64, now: Tick) {
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else { return };
        let Some(pool) = self.pools.get_mut(node.pool.index()).filter(|_| node.config.present) else {
            return;
        };
        let cached = ttft_model::weight(booking.prompt, 0).saturating_sub(booking.weight);
        let predicted = PredictedTtft { raw, cold: raw.saturating_add(ttft_model::prefill_time(cached)) };
        node.speed.learned.learn(u64::try_from(observed.as_nanos()).unwrap_or(u64::MAX), predicted, now);
        node.speed.rank(&mut pool.speeds);
        pool.bests.first_token(observed, booking.weight, now);
        let stretch = node.speed.prefill_sampler.first_token(observed, booking.weight, now);
        stretch.into_iter().for_each(|stretch| pool.bests.prefill_burst(stretch));
        self.refresh(id, now);
    }

    /// Learns the speed from a plain answer. `mark` is the work of the replica at the dispatch. `raw`
    /// nanoseconds were predicted to the first token for a replica of speed factor 1. After the
    /// first token come one step for each token, and the prompts that came to the replica
    /// meanwhile. The derived state of the replica is updated when the job is released.
    pub fn learn_whole_answer(
        &mut self,
        id: ReplicaId,
        answer: &PlainAnswer,
        mark: PrefillMark,
        raw: u64,
        now: Tick,
    ) {
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else { return };
        let Some(pool) = self.pools.get_mut(node.pool.index()).filter(|_| node.config.present) else {
            return;
        };
        let PlainAnswer { took, tokens, seqs } = *answer;
        let steps = (tokens.output / u64::from(seqs.max(1))).saturating_sub(1);
        let step = mark.step.midpoint(step_time::decode_step(&node.ledger));
        let prompts = ttft_model::prefill_time(node.sent.weights.wrapping_sub(mark.weights));
        let predicted = raw.saturating_add(steps.saturating_mul(step)).saturating_add(prompts);
        let ratio = took.as_nanos() as f64 / predicted.max(1) as f64;
        node.speed.learned.learn_whole(ratio, raw, now);
        node.speed.rank(&mut pool.speeds);
    }

    /// Learns from the ITL of the replica's streams.
    pub fn sample_itl(&mut self, id: ReplicaId, sample: &ItlSample, now: Tick) {
        let Some(node) = self.replicas.get_mut(id.index()).and_then(Option::as_mut) else { return };
        let Some(pool) = self.pools.get(node.pool.index()) else { return };
        node.stall.detector.note_sign(now);
        node.speed.prefill_load.note(node.sent.weights, now);
        node.limits.itl.learn(sample, &node.itl_conditions(pool));
        let (stretch, pool) = (node.speed.stretch.add(sample), node.pool);
        if let (Some(stretch), Some(pool)) = (stretch, self.pools.get_mut(pool.index())) {
            pool.bests.stretch(&stretch, now);
        }
        self.refresh(id, now);
    }

    /// Notes how many jobs of the urgent class wait for the pool, when one of them is dispatched.
    pub fn note_waiting(&mut self, pool: PoolId, waiting: u64) {
        if let Some(pool) = self.pools.get_mut(pool.index()) {
            pool.waiting = waiting;
        }
    }
}

impl ReplicaState {
    /// Ratio of the engine's step times to the predicted ones. Where first tokens take longer than
    /// the steps explain, the remainder is delay.
    pub(super) fn slowness(&self) -> f64 {
        self.limits.itl.slowness().map_or(self.speed.factor, |slowness| slowness.min(self.speed.factor))
    }

    /// Nanoseconds of a TTFT that are not computation: the network, the engine's frontend, its
    /// tokenizer.
    pub(super) fn delay(&self) -> f64 {
        (self.speed.factor - self.slowness()) * self.speed.learned.mean_reference()
    }

    /// Weight of prompts that may be sent in addition to those in prefill. More than a step's
    /// weight would only wait inside the engine. There is no bound while the replica prefills no
    /// prompt as far as the gateway can know: a prompt sent less than the delay ago may be
    /// prefilled, although its first token cannot be here yet.
    pub(super) fn prefill_left(&self, pool: &PoolState) -> u64 {
        if self.ledger.prefill <= self.delay_weight() {
            return u64::MAX;
        }
        self.prefill_at_once(pool).saturating_sub(self.ledger.prefill)
    }

    /// Weight of prompts that may be sent and not yet answered.
    pub(super) fn prefill_at_once(&self, pool: &PoolState) -> u64 {
        self.step_weight(pool).saturating_add(self.delay_weight())
    }

    /// Weight of prompts that one of the replica's steps is taken to prefill. If this weight exceeds
    /// that of the engine's step, a prompt waits inside the engine for a small part of its
    /// objective.
    pub(super) fn step_weight(&self, pool: &PoolState) -> u64 {
        let objective = self.objective(pool).ttft.as_nanos() as f64 / self.slowness();
        let [short, most] = TTFT_PARTS.map(|part| ttft_model::weight_in((objective * part) as u64));
        let [least, largest] = STEP_WEIGHTS;
        short.clamp(least, largest).min(most)
    }

    /// Weight of prompts that the replica prefills in the time of its delay.
    fn delay_weight(&self) -> u64 {
        ttft_model::weight_in((self.delay() / self.slowness()) as u64)
    }

    /// Whether the replica prefills a prompt that background jobs keep away from. A prompt sent less
    /// than the delay ago may be prefilled. This is stricter than [`Self::prefill_left`]: each first
    /// token waits for the end of a step, so a step is no delay.
    pub(super) fn is_prefilling(&self) -> bool {
        let on_its_way = (self.delay() - self.decode_step()).max(0.0) / self.slowness();
        self.ledger.prefill > ttft_model::weight_in(on_its_way as u64)
    }

    /// Whether the replica prefills background prompts that take more than one of its steps.
    pub(super) fn prefills_long_background(&self, pool: &PoolState) -> bool {
        self.ledger.background_prefill > self.step_weight(pool)
    }

    /// Conditions of the replica's ITL limit.
    pub(super) fn itl_conditions(&self, pool: &PoolState) -> ItlConditions {
        let share = u32::try_from(pool.waiting / u64::from(pool.counts.up.max(1))).unwrap_or(u32::MAX);
        let full = self.full(pool);
        let aim = |latency: LatencyObjective, wanted: u32| ItlAim {
            objective: latency.itl,
            wanted,
            min_throughput: MIN_THROUGHPUT[usize::from(latency.ttft > PATIENT_TTFT)],
        };
        ItlConditions {
            running: self.ledger.seqs,
            step: step_time::decode_step(&self.ledger) as f64,
            slope: step_time::step_per_seq(&self.ledger) * self.speed.factor,
            prefilling: (self.speed.prefill_load.rate * ttft_model::prefill_time(1) as f64 * self.slowness())
                .min(MAX_PREFILL_SHARE),
            best: pool.bests.best().gap,
            aim: aim(pool.objective.latency, self.ledger.seqs.saturating_add(share).min(full)),
            released: pool.objective.released.map(|released| aim(released, full)),
        }
    }
}
