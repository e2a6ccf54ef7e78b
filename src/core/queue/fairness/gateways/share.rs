//! Share of this gateway in a pool group: the jobs that it may have at replicas while jobs wait at others.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::model::ids::{ClassIndex, TenantId};
use crate::model::time::Tick;
use crate::queue::fairness::TenantWeights;

pub use super::division::SharedClass;
use super::division::divide;
use super::load::GatewayLoad;

/// Time over which the most jobs that all gateways had at replicas at once is taken for what the replicas hold.
/// Longer than [`PATIENCE`]: what was left in vain must not look like less capacity before.
const CAPACITY_WINDOW: Duration = Duration::from_secs(12);
/// The capacity that is divided, over the most jobs that were seen: without it, gateways that all keep to their
/// shares would never find out that the replicas hold more.
const CAPACITY_GROWTH: f64 = 1.1;
/// Places that are left at a time for a gateway below its share, as a part of the share.
const CLAIM_PART: f64 = 0.25;
/// The part of its share from which on a gateway counts as having it: its jobs come and go.
const FULL_PART: f64 = 0.95;
/// Time in which a gateway has to take places that are left for it and stay free.
const PATIENCE: Duration = Duration::from_secs(8);
/// Time for which no places are left for a gateway that did not take them.
const DISTRUST: Duration = Duration::from_secs(30);

/// Places that are left for another gateway, and whether it takes them.
#[derive(Debug, Clone, Copy)]
struct Claim {
    /// The most jobs that it had since the claim began.
    most: f64,
    since: Tick,
    distrusted_until: Tick,
}

/// What a gateway has, wants and is due, in the classes up to one.
#[derive(Debug, Clone, Copy, Default)]
struct ShareUse {
    running: f64,
    is_waiting: bool,
    share: f64,
}

/// Jobs at the replicas of a pool group, of all gateways.
#[derive(Debug, Clone, Copy)]
struct GroupCapacity {
    /// Jobs that the replicas hold.
    places: f64,
    /// Whether some of these places are free.
    is_free: bool,
}

/// Share of this gateway in a pool group.
#[derive(Debug, Clone, Default)]
pub struct GatewayShare {
    /// Jobs of all gateways at replicas lately, each larger than those after it.
    totals: VecDeque<(Tick, u64)>,
    claims: BTreeMap<(String, ClassIndex), Claim>,
    /// For each class, in the order of service, the most jobs of it and of more urgent ones; empty = there is no
    /// bound.
    limits: Vec<u64>,
}

/// The loads of all gateways in a pool group.
#[derive(Debug, Clone)]
pub struct GroupLoads {
    pub own: GatewayLoad,
    /// By the gateways' ids.
    pub others: BTreeMap<String, GatewayLoad>,
    /// Sequences that the replicas in service can run.
    pub seqs: u64,
}

impl GatewayShare {
    /// The most jobs of the class and of more urgent ones that may be at replicas; `None` = any number.
    pub fn limit(&self, class: ClassIndex) -> Option<u64> {
        self.limits.get(class.index()).copied()
    }

    /// Divides anew. Returns whether a limit changed.
    pub fn update(
        &mut self,
        now: Tick,
        classes: &[SharedClass],
        loads: &GroupLoads,
        weights: &dyn Fn(TenantId) -> TenantWeights,
    ) -> bool {
        let capacity = self.capacity(now, loads);
        let limits = if loads.others.values().any(|load| !load.tenants.is_empty()) {
            self.limits_within(capacity, now, classes, loads, weights)
        } else {
            self.claims.clear();
            Vec::new()
        };
        let has_changed = limits != self.limits;
        self.limits = limits;
        has_changed
    }

    fn limits_within(
        &mut self,
        capacity: GroupCapacity,
        now: Tick,
        classes: &[SharedClass],
        loads: &GroupLoads,
        weights: &dyn Fn(TenantId) -> TenantWeights,
    ) -> Vec<u64> {
        let gateways: Vec<&GatewayLoad> = [&loads.own].into_iter().chain(loads.others.values()).collect();
        let shares = divide(capacity.places, classes, &gateways, weights);
        let mut uses = vec![ShareUse::default(); gateways.len()];
        let mut limits = Vec::with_capacity(classes.len());
        for (index, class) in classes.iter().enumerate() {
            for (at, load) in gateways.iter().enumerate() {
                let settled = load.classes.iter().filter(|row| row.class == class.id).map(|row| row.running);
                let rows = || load.tenants.iter().filter(|row| row.class == class.id);
                let own = &mut uses[at];
                own.running += settled.chain(rows().map(|row| row.running)).map(f64::from).sum::<f64>();
                own.is_waiting |= rows().next().is_some();
                own.share += shares[index][at];
            }
            let others = loads.others.keys().zip(&uses[1..]);
            let claimed: f64 = others
                .map(|(gateway, other)| {
                    self.claim(gateway, ClassIndex::from(index), *other, capacity.is_free, now)
                })
                .sum();
            limits.push((capacity.places - claimed).max(uses[0].share).round() as u64);
        }
        self.claims.retain(|(gateway, _), _| loads.others.contains_key(gateway));
        limits
    }

    /// Places that are left for another gateway: those that it has, and some more while it is due more.
    fn claim(&mut self, gateway: &str, class: ClassIndex, of: ShareUse, is_free: bool, now: Tick) -> f64 {
        let ShareUse { running, is_waiting, share } = of;
        let key = (gateway.to_owned(), class);
        if !is_waiting || running >= share {
            self.claims.remove(&key);
            return running;
        }
        if running + 1.0 >= share * FULL_PART {
            return share;
        }
        let fresh = Claim { most: running, since: now, distrusted_until: now };
        let claim = self.claims.entry(key).or_insert(fresh);
        if now < claim.distrusted_until {
            return running;
        }
        if running > claim.most || !is_free {
            (claim.most, claim.since) = (running, now);
        } else if now.since(claim.since) > PATIENCE {
            let until = now + DISTRUST;
            *claim = Claim { most: running, since: until, distrusted_until: until };
            return running;
        }
        share.min(running + (share * CLAIM_PART).max(1.0))
    }

    /// What the replicas hold: the most jobs that all gateways had there at once lately, and a little more, as
    /// far as the replicas have sequences.
    fn capacity(&mut self, now: Tick, loads: &GroupLoads) -> GroupCapacity {
        let total = loads.own.running() + loads.others.values().map(GatewayLoad::running).sum::<u64>();
        while self.totals.front().is_some_and(|(at, _)| now.since(*at) > CAPACITY_WINDOW) {
            self.totals.pop_front();
        }
        while self.totals.back().is_some_and(|(_, before)| *before <= total) {
            self.totals.pop_back();
        }
        self.totals.push_back((now, total));
        let most = self.totals.front().map_or(0, |(_, most)| *most).min(loads.seqs) as f64;
        GroupCapacity {
            places: (most * CAPACITY_GROWTH + 1.0).min(loads.seqs as f64),
            is_free: (total as f64) < most * FULL_PART - 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::super::load::{ActiveClass, WaitingTenant};
    use super::*;
    use crate::model::ids::{ClassId, PoolId};

    const CLASS: ClassIndex = ClassIndex::new(0);

    fn waiting(tenant: u32, running: u32, waiting: u32) -> GatewayLoad {
        let (pool, class, tenant) = (PoolId::new(0), ClassId::new(0), TenantId::new(tenant));
        let tenants = vec![WaitingTenant { pool, class, tenant, running, waiting }];
        GatewayLoad { tenants, ..GatewayLoad::default() }
    }

    fn settled(running: u32) -> GatewayLoad {
        let (pool, class) = (PoolId::new(0), ClassId::new(0));
        let classes = vec![ActiveClass { pool, class, running, headroom: 0 }];
        GatewayLoad { classes, ..GatewayLoad::default() }
    }

    /// The limit of this gateway at a time in seconds. The first tenant has the weight 4, the second one 1.
    fn limit(
        share: &mut GatewayShare,
        at: u64,
        own: GatewayLoad,
        other: GatewayLoad,
        seqs: u64,
    ) -> Option<u64> {
        let loads = GroupLoads { own, others: [("b".to_owned(), other)].into(), seqs };
        let weights = |tenant: TenantId| {
            let weight = if tenant.index() == 0 { 4.0 } else { 1.0 };
            TenantWeights { tenant, weight, groups: SmallVec::new() }
        };
        let classes = [SharedClass { id: ClassId::new(0), min_share: 0.0 }];
        share.update(Tick::from_millis(at * 1000), &classes, &loads, &weights);
        share.limit(CLASS)
    }

    #[test]
    fn places_go_to_a_gateway_below_its_share_a_quarter_at_a_time() {
        let mut share = GatewayShare::default();
        assert_eq!(limit(&mut share, 0, waiting(1, 40, 99), settled(10), 50), None, "nobody waits there");
        let limits = [10, 20, 30, 39, 40].map(|other| {
            limit(&mut share, 1, waiting(1, 50 - other, 99), waiting(0, other, 99), 50).expect("a limit")
        });
        assert_eq!(limits, [30, 20, 10, 10, 10]);
        assert_eq!(limit(&mut share, 2, waiting(1, 40, 99), waiting(0, 2, 3), 50), Some(47), "it wants five");
    }

    #[test]
    fn a_gateway_that_takes_nothing_gets_nothing_for_a_while() {
        let mut share = GatewayShare::default();
        let mut at = |at, own| limit(&mut share, at, waiting(1, own, 99), waiting(0, 10, 99), 50);
        assert_eq!(at(0, 40), Some(30));
        assert_eq!([1, 5, 9].map(|second| at(second, 40)), [Some(30); 3], "there was no free place to take");
        assert_eq!([10, 14, 17].map(|second| at(second, 30)), [Some(30); 3]);
        assert_eq!(at(18, 30), Some(40), "ten places were free for eight seconds");
        assert_eq!(at(40, 40), Some(40));
        assert_eq!(at(49, 40), Some(30), "it may have found out");
    }

    #[test]
    fn the_capacity_is_found_out() {
        let mut share = GatewayShare::default();
        let mut own = 7;
        for second in 0..30 {
            let (here, there) = (waiting(1, own, 99), waiting(0, 4 * own, 99));
            own = limit(&mut share, second, here, there, 200).expect("a limit") as u32;
        }
        assert_eq!(own, 40, "a fifth of all that the replicas have");
    }

    #[test]
    fn who_is_gone_leaves_its_places() {
        let mut share = GatewayShare::default();
        limit(&mut share, 0, waiting(1, 10, 99), waiting(0, 40, 99), 50).expect("a limit");
        let loads = GroupLoads { own: waiting(1, 10, 99), others: BTreeMap::new(), seqs: 50 };
        let weights = |tenant| TenantWeights { tenant, weight: 1.0, groups: SmallVec::new() };
        assert!(share.update(Tick::from_millis(1000), &[], &loads, &weights), "the limit has changed");
        assert_eq!(share.limit(CLASS), None);
    }
}
