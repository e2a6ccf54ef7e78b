//! Active objective: the class whose latency objectives the replicas of a group have to keep now.
//!
//! The most urgent class in use sets how full replicas may be. Later classes are background:
//! they leave headroom, and start only where the urgent class's streams keep their ITL objective.
//! Pools that the urgent class may not use follow the next class that may use them. When the
//! urgent class has been idle for a while, the next class takes its place.

use smallvec::SmallVec;

use crate::model::ids::{ClassIndex, GroupIndex};
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::queue::order::{ObjectiveInputs, PoolGroup, UrgentClasses};
use crate::replica::fleet::{ActiveObjective, Fleet, LatencyObjective};

use crate::scheduler::groups::PoolGroups;

impl PoolGroups {
    /// Finds the urgent class of the group, and updates the fleet's objectives if the class or its
    /// headroom changed.
    pub(in crate::scheduler) fn update_objective(
        &mut self,
        group: GroupIndex,
        fleet: &mut Fleet,
        policy: &Policy,
        now: Tick,
    ) {
        let here = &mut self[group];
        let urgent = here.refresh_urgent(now);
        let reserve = urgent.map_or(0, |class| here.headroom(class, now));
        here.set_urgent(urgent);
        let objective = |class| policy.classes.get(class).map(|class| class.ttft_objective);
        let before = here.objective_inputs.as_ref().map(|inputs| &inputs.delayed);
        let promised = ObjectiveInputs {
            active: here.active_classes(now),
            delayed: here.delayed_classes(objective, before, now),
            headroom: reserve,
            max_sequences: here.max_sequences(),
            service_changes: fleet.service_changes(),
        };
        if here.objective_inputs.as_ref() != Some(&promised) {
            set_objectives(here, &promised, fleet, policy, now);
            here.objective_inputs = Some(promised);
        }
        here.shape.pools.iter().for_each(|pool| fleet.update_reserved_replicas(*pool, reserve, now));
    }
}

/// Gives each pool of the group the objective of the most urgent class that uses the pool.
fn set_objectives(
    group: &PoolGroup,
    inputs: &ObjectiveInputs,
    fleet: &mut Fleet,
    policy: &Policy,
    now: Tick,
) {
    let urgent = group.urgent();
    let pools: SmallVec<[_; 8]> = group.urgent_classes_by_pool(now).collect();
    let hosted = pools.iter().filter(|classes| classes.first == urgent).map(|classes| classes.pool);
    let up = fleet.count_up(&hosted.collect::<SmallVec<[_; 8]>>()).max(1);
    let reserve = u32::try_from(u64::from(inputs.headroom).div_ceil(up)).unwrap_or(u32::MAX);
    let latency = |class: ClassIndex| {
        let class = policy.classes.get(group.class_id(class))?;
        Some(LatencyObjective { ttft: class.ttft_objective, itl: class.itl_objective })
    };
    let objectives = pools.into_iter().map(|UrgentClasses { pool, first: host, second }| {
        let delayed = host.is_some_and(|host| group.has_delayed_background(pool, host, &inputs.delayed));
        let class = host.and_then(|host| Some((group.class_id(host), latency(host)?)));
        let objective = class.map_or_else(ActiveObjective::default, |(class, promised)| ActiveObjective {
            class: Some(class),
            latency: promised,
            released: second.filter(|_| host == urgent).and_then(latency),
            headroom: reserve,
            max_sequences: inputs.max_sequences,
            background: host == urgent,
            background_delayed: delayed,
        });
        (pool, objective)
    });
    let objectives: SmallVec<[_; 8]> = objectives.collect();
    objectives.into_iter().for_each(|(pool, objective)| fleet.set_objective(pool, objective, now));
}
