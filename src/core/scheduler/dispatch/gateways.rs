//! Gateways that share engines: what this gateway tells the others of its load, and what it takes over of
//! theirs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::model::ids::{ClassId, ClassIndex, GroupIndex, ReplicaId, TenantId};
use crate::queue::fairness::gateways::load::{
    ActiveClass, GatewayLoad, MAX_TENANTS, MIN_BACKLOG, WaitingTenant,
};
use crate::queue::fairness::gateways::share::{GroupLoads, SharedClass};

use crate::scheduler::Scheduler;

impl Scheduler {
    /// What this gateway has at replicas and what waits here, for the other gateways. Looks at every running
    /// job.
    pub fn gateway_load(&self) -> GatewayLoad {
        let mut running: BTreeMap<(GroupIndex, ClassId, TenantId), u32> = BTreeMap::new();
        for (job, _) in self.jobs.attempts() {
            if let Some(group) = self.placement.group_of_model(job.spec.model) {
                *running.entry((group, job.spec.class, job.spec.tenant)).or_default() += 1;
            }
        }
        let mut load = GatewayLoad { replicas: self.fleet.booked_seqs(), ..GatewayLoad::default() };
        for group in self.groups.indexes() {
            let here = &self.groups[group];
            let Some(pool) = here.shape.pools.first().copied() else { continue };
            for index in here.class_indexes() {
                let class = here.class_id(index);
                for (tenant, waiting) in self.longest_backlogs(group, index) {
                    let running = running.remove(&(group, class, tenant)).unwrap_or(0);
                    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
                    load.tenants.push(WaitingTenant { pool, class, tenant, running, waiting });
                }
                if let Some(headroom) = here.own_headroom(index, self.now) {
                    let rest = running.iter().filter(|((at, of, _), _)| (*at, *of) == (group, class));
                    let running = rest.map(|(_, jobs)| jobs).sum();
                    load.classes.push(ActiveClass { pool, class, running, headroom });
                }
            }
        }
        load
    }

    /// Tenants of a class that have waited for long and may start, those with the most jobs first.
    fn longest_backlogs(&self, group: GroupIndex, class: ClassIndex) -> Vec<(TenantId, u64)> {
        let may_start =
            |tenant| self.overrides.paused_until(tenant).is_none() && self.allows(group, tenant, 1);
        let waiting = self.groups[group].drain_rates(class).backlogs(MIN_BACKLOG, self.now);
        let mut rows: Vec<(TenantId, u64)> = waiting.filter(|(tenant, _)| may_start(*tenant)).collect();
        rows.sort_unstable_by_key(|(tenant, waiting)| (Reverse(*waiting), *tenant));
        rows.truncate(MAX_TENANTS);
        rows
    }

    /// Takes over what the other gateways have at replicas and what waits there.
    pub(in crate::scheduler) fn load_elsewhere(&mut self, others: &BTreeMap<String, GatewayLoad>) {
        let mut seqs: BTreeMap<ReplicaId, u32> = BTreeMap::new();
        for row in others.values().flat_map(|load| &load.replicas) {
            let sum = seqs.entry(row.replica).or_default();
            *sum = sum.saturating_add(row.seqs);
        }
        for replica in self.fleet.set_remote_seqs(&seqs, self.now) {
            self.mark_replica(replica);
        }
        let is_waiting = others.values().any(|load| !load.tenants.is_empty());
        let own = if is_waiting { self.gateway_load() } else { GatewayLoad::default() };
        for group in self.groups.indexes() {
            let is_inside = |pool| self.placement.group_of(pool) == Some(group);
            let loads = GroupLoads {
                own: own.within(is_inside),
                others: others.iter().map(|(id, load)| (id.clone(), load.within(is_inside))).collect(),
                seqs: self.fleet.full_capacity(&self.groups[group].shape.pools),
            };
            let has_changed = self.note_remote_classes(group, &loads) | self.divide_places(group, &loads);
            if has_changed {
                self.groups.mark_changed(Some(group));
            }
        }
    }

    fn note_remote_classes(&mut self, group: GroupIndex, loads: &GroupLoads) -> bool {
        let classes: Vec<ClassIndex> = self.groups[group].class_indexes().collect();
        let mut has_changed = false;
        for class in classes {
            let id = self.groups[group].class_id(class);
            let rows = loads.others.values().flat_map(|load| &load.classes).filter(|row| row.class == id);
            let squares = rows.map(|row| f64::from(row.headroom).powi(2)).reduce(|sum, square| sum + square);
            let seqs = squares.map(|sum| sum.sqrt().ceil() as u32);
            has_changed |= self.groups[group].set_remote_headroom(class, seqs);
        }
        has_changed
    }

    fn divide_places(&mut self, group: GroupIndex, loads: &GroupLoads) -> bool {
        let mut share = std::mem::take(&mut self.groups[group].gateway_share);
        let min_share = |id| self.policy.classes.get(id).map_or(0.0, |class| class.min_share);
        let classes = self.groups[group].class_ids().map(|id| SharedClass { id, min_share: min_share(id) });
        let classes: Vec<SharedClass> = classes.collect();
        let has_changed = share.update(self.now, &classes, loads, &|tenant| self.weights(group, tenant));
        self.groups[group].gateway_share = share;
        has_changed
    }

    /// Whether jobs of the class wait although there may be room: tenants at other gateways are due it.
    pub(in crate::scheduler) fn is_due_elsewhere(&self, group: GroupIndex, class: ClassIndex) -> bool {
        let here = &self.groups[group];
        here.gateway_share.limit(class).is_some_and(|limit| here.running_up_to(class) >= limit)
    }
}
