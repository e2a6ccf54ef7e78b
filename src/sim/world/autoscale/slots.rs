//! Replica slots: the places of the world's engines, each absent, starting,
//! serving or leaving.

use std::time::Duration;

use crate::rng::Rng;
use crate::world::autoscale::hpa::ReplicasAt;
use crate::world::autoscale::{Scaling, ScalingOutcome};
use crate::world::router::{MemberState, ReplicaIndex};
use penstock_core::model::time::Tick;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplicaSlot {
    Off,
    /// Starting; the number is that of its order.
    Starting(u64),
    /// Ready; the number counts orders and starts.
    Serving(u64),
    Leaving,
}

/// Changes that an order causes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::world) struct SlotChange {
    /// Replicas that start.
    pub(in crate::world) starts: Vec<SlotStart>,
    /// Replicas that get no new work.
    pub(in crate::world) leaves: Vec<ReplicaIndex>,
}

/// A replica that starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::world) struct SlotStart {
    pub(in crate::world) replica: ReplicaIndex,
    /// Number of the order.
    pub(in crate::world) order: u64,
    pub(in crate::world) ready_at: Tick,
}

/// All slots, and the account of their use.
#[derive(Debug)]
pub(in crate::world) struct ReplicaSlots {
    slots: Vec<ReplicaSlot>,
    start: Duration,
    spread: f64,
    rng: Rng,
    /// Number of orders and finished starts so far.
    turn: u64,
    wanted: u32,
    account: SlotAccount,
}

#[derive(Debug)]
struct SlotAccount {
    /// Begin and end of the account; nothing counts before and after.
    from: Tick,
    until: Tick,
    since: Tick,
    replica_seconds: f64,
    /// Whether the last order increased the number.
    up: Option<bool>,
    turns: u32,
    outcome: ScalingOutcome,
}

impl ReplicaSlots {
    /// The first `scaling.initial` slots are ready. Time after `until` is not
    /// counted.
    pub(in crate::world) fn new(scaling: &Scaling, places: usize, until: Tick) -> Self {
        let initial = scaling.initial.min(places as u32);
        let slot =
            |index: usize| if index < initial as usize { ReplicaSlot::Serving(0) } else { ReplicaSlot::Off };
        let first = vec![ReplicasAt { at: Tick::ZERO, replicas: initial }];
        let told = ScalingOutcome {
            peak: initial,
            orders: first.clone(),
            ready: first,
            ..ScalingOutcome::default()
        };
        Self {
            slots: (0..places).map(slot).collect(),
            start: scaling.start,
            spread: scaling.spread,
            rng: Rng::new(scaling.seed),
            turn: 0,
            wanted: initial,
            account: SlotAccount {
                from: Tick::ZERO + scaling.counted_from,
                until,
                since: Tick::ZERO + scaling.counted_from,
                replica_seconds: 0.0,
                up: None,
                turns: 0,
                outcome: told,
            },
        }
    }

    /// Ordered replicas: ready or starting, and not leaving.
    pub(in crate::world) fn ordered(&self) -> u32 {
        self.wanted
    }

    /// Number of ready replicas.
    pub(in crate::world) fn ready(&self) -> u32 {
        self.slots.iter().filter(|slot| matches!(slot, ReplicaSlot::Serving(_))).count() as u32
    }

    /// Whether the slot holds a replica that can compute: serving or leaving.
    pub(in crate::world) fn is_there(&self, replica: ReplicaIndex) -> bool {
        matches!(self.slots[replica], ReplicaSlot::Serving(_) | ReplicaSlot::Leaving)
    }

    /// The state of each replica for routers.
    pub(in crate::world) fn members(&self) -> Vec<MemberState> {
        let member = |slot: &ReplicaSlot| match slot {
            ReplicaSlot::Off | ReplicaSlot::Starting(_) => MemberState::Absent,
            ReplicaSlot::Serving(_) => MemberState::Serving,
            ReplicaSlot::Leaving => MemberState::Leaving,
        };
        self.slots.iter().map(member).collect()
    }

    /// Changes the number of ordered replicas to `count`. Starting replicas are
    /// dropped first, the last ordered before the others; then ready replicas,
    /// the newest first.
    pub(in crate::world) fn order(&mut self, now: Tick, count: u32) -> SlotChange {
        let mut change = SlotChange::default();
        if count == self.wanted {
            return change;
        }
        self.account_until(now);
        let before = self.wanted;
        while self.wanted < count
            && let Some(place) = self.slots.iter().position(|slot| *slot == ReplicaSlot::Off)
        {
            self.turn += 1;
            self.slots[place] = ReplicaSlot::Starting(self.turn);
            let ready_at = now + self.time_to_start();
            change.starts.push(SlotStart { replica: place, order: self.turn, ready_at });
            self.wanted += 1;
        }
        while self.wanted > count
            && let Some(place) = self.next_to_remove()
        {
            let serves = matches!(self.slots[place], ReplicaSlot::Serving(_));
            self.slots[place] = if serves { ReplicaSlot::Leaving } else { ReplicaSlot::Off };
            change.leaves.extend(serves.then_some(place));
            self.wanted -= 1;
        }
        self.note_order(now, before);
        if !change.leaves.is_empty() {
            self.note_ready(now);
        }
        change
    }

    /// The next replica to drop.
    fn next_to_remove(&self) -> Option<ReplicaIndex> {
        let rank = |place: &usize| match self.slots[*place] {
            ReplicaSlot::Starting(turn) => Some((1, turn, *place)),
            ReplicaSlot::Serving(turn) => Some((0, turn, *place)),
            ReplicaSlot::Off | ReplicaSlot::Leaving => None,
        };
        (0..self.slots.len()).filter_map(|place| rank(&place)).max().map(|(_, _, place)| place)
    }

    fn time_to_start(&mut self) -> Duration {
        let around = 2.0 * self.rng.unit() - 1.0;
        self.start.mul_f64((1.0 + self.spread * around).max(0.0))
    }

    /// Ends the start of that order. False when the order was cancelled in the
    /// meantime.
    pub(in crate::world) fn started(&mut self, now: Tick, replica: ReplicaIndex, order: u64) -> bool {
        if self.slots[replica] != ReplicaSlot::Starting(order) {
            return false;
        }
        self.turn += 1;
        self.slots[replica] = ReplicaSlot::Serving(self.turn);
        self.note_ready(now);
        true
    }

    pub(in crate::world) fn is_leaving(&self, replica: ReplicaIndex) -> bool {
        self.slots[replica] == ReplicaSlot::Leaving
    }

    /// Empties the slot of a leaving replica whose last stream has ended.
    pub(in crate::world) fn clear(&mut self, now: Tick, replica: ReplicaIndex) {
        self.account_until(now);
        self.slots[replica] = ReplicaSlot::Off;
    }

    /// The outcome of autoscaling.
    pub(in crate::world) fn into_outcome(mut self, now: Tick) -> ScalingOutcome {
        self.account_until(now);
        let hours = self.account.until.since(self.account.from).as_secs_f64() / 3_600.0;
        ScalingOutcome {
            replica_hours: self.account.replica_seconds / 3_600.0,
            turns_per_hour: f64::from(self.account.turns) / hours.max(f64::MIN_POSITIVE),
            ..self.account.outcome
        }
    }

    /// Adds the replica time since the last call to the account.
    fn account_until(&mut self, now: Tick) {
        let there = self.slots.iter().filter(|slot| **slot != ReplicaSlot::Off).count();
        let now = now.min(self.account.until);
        self.account.replica_seconds += there as f64 * now.since(self.account.since).as_secs_f64();
        self.account.since = self.account.since.max(now);
    }

    fn note_order(&mut self, now: Tick, before: u32) {
        let account = &mut self.account;
        if self.wanted == before || now > account.until {
            return;
        }
        let up = self.wanted > before;
        let counts = now >= account.from;
        account.turns += u32::from(counts && account.up.is_some_and(|last| last != up));
        account.up = Some(up);
        if counts {
            account.outcome.peak = account.outcome.peak.max(self.wanted);
        }
        account.outcome.orders.push(ReplicasAt { at: now, replicas: self.wanted });
    }

    fn note_ready(&mut self, now: Tick) {
        let ready = self.ready();
        self.account.outcome.ready.push(ReplicasAt { at: now, replicas: ready });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::autoscale::policy::ScalePolicy;

    fn slots(initial: u32, spread: f64) -> ReplicaSlots {
        ReplicaSlots::new(&scaling(initial, spread), 8, at(3_600))
    }

    fn scaling(initial: u32, spread: f64) -> Scaling {
        Scaling {
            policy: ScalePolicy::Queue(10.0),
            start: Duration::from_secs(60),
            spread,
            min: 0,
            max: 8,
            initial,
            poll: Duration::from_secs(10),
            cooldown: Duration::from_secs(300),
            behavior: None,
            counted_from: Duration::ZERO,
            seed: 7,
            demand: Vec::new(),
        }
    }

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1_000)
    }

    #[test]
    fn what_starts_goes_before_what_serves_and_the_newest_first() {
        let mut slots = slots(2, 0.0);
        let change = slots.order(at(0), 4);
        let start = |replica, order| SlotStart { replica, order, ready_at: at(60) };
        assert_eq!(change.starts, [start(2, 1), start(3, 2)]);
        assert!(slots.started(at(60), 2, 1));
        assert_eq!((slots.ready(), slots.ordered()), (3, 4));
        assert_eq!(slots.order(at(61), 3), SlotChange::default(), "the start of place 3 is called off");
        assert!(!slots.started(at(62), 3, 2));
        assert_eq!(slots.order(at(70), 1).leaves, [2, 1]);
        assert!(slots.is_leaving(2) && slots.is_there(2));
        assert_eq!(
            slots.members()[..4],
            [MemberState::Serving, MemberState::Leaving, MemberState::Leaving, MemberState::Absent]
        );
        assert_eq!(slots.order(at(80), 2).starts[0].replica, 3, "one that leaves is not called back");
    }

    #[test]
    fn replicas_count_from_the_order_to_their_last_stream() {
        let mut slots = slots(1, 0.0);
        slots.order(at(0), 2);
        slots.started(at(60), 1, 1);
        slots.order(at(1_800), 1);
        slots.clear(at(2_700), 1);
        let told = slots.into_outcome(at(9_999));
        assert_eq!(told.replica_hours, 1.75, "one hour and three quarters; nothing after the last arrival");
        assert_eq!((told.peak, told.turns_per_hour), (2, 1.0));
        let since = |second, replicas| ReplicasAt { at: at(second), replicas };
        assert_eq!(told.orders, [since(0, 1), since(0, 2), since(1_800, 1)]);
        assert_eq!(told.ready, [since(0, 1), since(60, 2), since(1_800, 1)]);
    }

    #[test]
    fn nothing_counts_before_the_account_begins() {
        let scaling = Scaling { counted_from: Duration::from_secs(1_800), ..scaling(1, 0.0) };
        let mut slots = ReplicaSlots::new(&scaling, 8, at(3_600));
        for (second, count) in [(0, 2), (60, 1), (2_700, 2)] {
            slots.order(at(second), count);
        }
        let told = slots.into_outcome(at(3_600));
        assert_eq!((told.replica_hours, told.turns_per_hour), (0.75, 2.0));
    }

    #[test]
    fn starts_differ_as_much_as_they_may() {
        let mut slots = slots(0, 0.5);
        let times: Vec<u64> =
            slots.order(at(0), 8).starts.iter().map(|start| start.ready_at.as_nanos() / 1_000_000).collect();
        assert!(times.iter().all(|time| (30_000..=90_000).contains(time)), "{times:?}");
        assert!(times.iter().any(|time| *time < 55_000) && times.iter().any(|time| *time > 65_000));
    }
}
