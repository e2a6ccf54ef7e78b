//! Gateways that share engines: what this gateway tells the others of its load, and what it takes over of
//! theirs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::model::ids::{ClassId, ClassIndex, GroupIndex, ReplicaId, TenantId};
use crate::queue::fairness::gateways::load::{
    ActiveClass, GatewayLoad, MAX_TENANTS, MIN_BACKLOG, WaitingTenant,
};
use crate::queue::fairness::gateways::share::{GroupLoads, SharedClass};

use crate::scheduler::Scheduler;

impl Scheduler {
    /// What this gateway has at replicas and what waits here, for the other gateways. While tenants have waited
    /// for long, it looks at every running job.
    pub fn gateway_load(&self) -> GatewayLoad {
        let mut load = GatewayLoad { replicas: self.fleet.booked_seqs(), ..GatewayLoad::default() };
        let mut places: HashMap<(GroupIndex, ClassId, TenantId), usize> = HashMap::new();
        for group in self.groups.indexes() {
            let here = &self.groups[group];
            let Some(pool) = here.shape.pools.first().copied() else { continue };
            for index in here.class_indexes() {
                let class = here.class_id(index);
                for (tenant, waiting) in self.longest_backlogs(group, index) {
                    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
                    places.insert((group, class, tenant), load.tenants.len());
                    load.tenants.push(WaitingTenant { pool, class, tenant, running: 0, waiting });
                }
                if let Some(headroom) = here.own_headroom(index, self.now) {
                    let running = u32::try_from(here.running_in(index)).unwrap_or(u32::MAX);
                    load.classes.push(ActiveClass { pool, class, running, headroom });
                }
            }
        }
        if !places.is_empty() {
            self.count_running(&places, &mut load);
        }
        load
    }

    /// Counts the running jobs of the tenants that wait, by their places in the load. These do not count for
    /// their classes then.
    fn count_running(
        &self,
        places: &HashMap<(GroupIndex, ClassId, TenantId), usize>,
        load: &mut GatewayLoad,
    ) {
        for (job, _) in self.jobs.attempts() {
            let group = self.placement.group_of_model(job.spec.model);
            let place = group.and_then(|group| places.get(&(group, job.spec.class, job.spec.tenant)));
            place.into_iter().for_each(|place| load.tenants[*place].running += 1);
        }
        for row in &load.tenants {
            let is_class = |class: &&mut ActiveClass| (class.pool, class.class) == (row.pool, row.class);
            if let Some(class) = load.classes.iter_mut().find(is_class) {
                class.running = class.running.saturating_sub(row.running);
            }
        }
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
        let mut own = if is_waiting { self.by_group(&self.gateway_load()) } else { BTreeMap::new() };
        let mut remote: BTreeMap<GroupIndex, BTreeMap<String, GatewayLoad>> = BTreeMap::new();
        for (gateway, load) in others {
            for (group, load) in self.by_group(load) {
                remote.entry(group).or_default().insert(gateway.clone(), load);
            }
        }
        for group in self.groups.indexes() {
            let loads = GroupLoads {
                own: own.remove(&group).unwrap_or_default(),
                others: remote.remove(&group).unwrap_or_default(),
                seqs: self.fleet.full_capacity(&self.groups[group].shape.pools),
            };
            let has_changed = self.note_remote_classes(group, &loads) | self.divide_places(group, &loads);
            if has_changed {
                self.groups.mark_changed(Some(group));
            }
        }
    }

    /// The classes and tenants of a load by their pool groups.
    fn by_group(&self, load: &GatewayLoad) -> BTreeMap<GroupIndex, GatewayLoad> {
        let mut groups: BTreeMap<GroupIndex, GatewayLoad> = BTreeMap::new();
        for row in &load.classes {
            let group = self.placement.group_of(row.pool);
            group.into_iter().for_each(|group| groups.entry(group).or_default().classes.push(*row));
        }
        for row in &load.tenants {
            let group = self.placement.group_of(row.pool);
            group.into_iter().for_each(|group| groups.entry(group).or_default().tenants.push(*row));
        }
        groups
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
