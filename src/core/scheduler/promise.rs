//! Which class's objectives the replicas of a group have to keep just now.
//!
//! The most urgent class in use sets how full replicas may be. Those after it
//! are guests: they leave it a reserve, and come only where its streams stay
//! in time. When it has been idle for a while, the next class takes its place.

use crate::core::fleet::Promise;
use crate::core::order::Group;
use crate::core::time::Tick;

use super::Scheduler;

impl Scheduler {
    /// Finds out who is urgent in the group, and tells the fleet if that or
    /// the reserve changed.
    pub(super) fn keep_promise(&mut self, group: usize) {
        let now = self.now;
        let here = &mut self.groups[group];
        let urgent = here.find_urgent(now);
        let reserve = urgent.map_or(0, |class| here.reserve(class, now));
        here.set_urgent(urgent);
        let class = urgent.and_then(|class| self.policy.classes.get(here.class_id(class)));
        let promise = class.map_or_else(Promise::default, |class| Promise {
            ttft: class.ttft_objective,
            itl: class.itl_objective,
            reserve,
        });
        let up = self.fleet.count_up(&here.shape.pools).max(1);
        let reserve = u64::from(promise.reserve).div_ceil(up);
        let promise = Promise { reserve: u32::try_from(reserve).unwrap_or(u32::MAX), ..promise };
        for pool in &here.shape.pools {
            self.fleet.promise(*pool, promise, now);
        }
    }

    /// Groups whose urgent class has been idle for long enough have to be looked
    /// at.
    pub(super) fn release_urgent(&mut self) {
        let now = self.now;
        let due = |group: &Group| group.urgent_until().is_some_and(|until| until <= now);
        let groups = self.groups.iter().enumerate();
        self.touched.extend(groups.filter(|(_, group)| due(group)).map(|(index, _)| index));
    }

    /// When a class that is urgent only by what it did lately makes room for
    /// guests that wait.
    pub(super) fn next_release(&self) -> Option<Tick> {
        self.groups.iter().filter(|group| group.waiting() > 0).filter_map(|group| group.urgent_until()).min()
    }
}
