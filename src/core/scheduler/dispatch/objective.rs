//! Active objective: the class whose latency objectives the replicas of a group have to keep now.
//!
//! The most urgent class in use sets how full replicas may be. Those after it
//! are background: they leave it a reserve, and come only where its streams stay
//! in time. Pools that it may not use are left to the
//! next class that may. When it has been idle for a while, the next class takes
//! its place.

use smallvec::SmallVec;

use crate::core::model::time::Tick;
use crate::core::queue::order::{GroupObjective, PoolGroup};
use crate::core::replica::fleet::ActiveObjective;

use crate::core::scheduler::Scheduler;

impl Scheduler {
    /// Finds out who is urgent in the group, and tells the fleet if that or
    /// the reserve changed.
    pub(in crate::core::scheduler) fn update_objective(&mut self, group: usize) {
        let now = self.now;
        let here = &mut self.groups[group];
        let urgent = here.find_urgent(now);
        let reserve = urgent.map_or(0, |class| here.headroom(class, now));
        here.set_urgent(urgent);
        let widest = here.widest();
        let promised =
            GroupObjective { active: here.active(now), headroom: reserve, widest, turns: self.fleet.turns() };
        if here.objective.as_ref() == Some(&promised) {
            return;
        }
        here.objective = Some(promised);
        let pools: SmallVec<[_; 8]> = here.background_classes(now).collect();
        let hosted = pools.iter().filter(|(_, host)| *host == urgent).map(|(pool, _)| *pool);
        let up = self.fleet.count_up(&hosted.collect::<SmallVec<[_; 8]>>()).max(1);
        let reserve = u32::try_from(u64::from(reserve).div_ceil(up)).unwrap_or(u32::MAX);
        for (pool, host) in pools {
            let class = host.and_then(|host| self.policy.classes.get(self.groups[group].class_id(host)));
            let promise = class.map_or_else(ActiveObjective::default, |class| ActiveObjective {
                ttft: class.ttft_objective,
                itl: class.itl_objective,
                headroom: reserve,
                widest,
                background: host == urgent,
            });
            self.fleet.set_objective(pool, promise, now);
        }
    }

    /// Groups whose urgent class has been idle for long enough, or in which a job
    /// has waited long enough for the replica of its session, have to be looked at.
    pub(in crate::core::scheduler) fn release_reserved_capacity(&mut self) {
        let now = self.now;
        let due = |group: &PoolGroup| {
            group.urgent_until().into_iter().chain(group.session_until).any(|until| until <= now)
        };
        let groups = self.groups.iter().enumerate();
        self.changed_groups.extend(groups.filter(|(_, group)| due(group)).map(|(index, _)| index));
    }

    /// When a class that is urgent only by what it did lately makes room for
    /// background that wait, or a job gives up the replica of its session.
    pub(in crate::core::scheduler) fn next_release(&self) -> Option<Tick> {
        let groups = self.groups.iter().filter(|group| group.waiting() > 0);
        groups.flat_map(|group| group.urgent_until().into_iter().chain(group.session_until)).min()
    }
}
