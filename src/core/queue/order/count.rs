//! Counts of waiting jobs in a pool group, for the audit and the scale signal.

use std::collections::BTreeMap;

use crate::core::model::ids::{ClassId, ClassIndex, PoolSetIndex};

use super::PoolGroup;

impl PoolGroup {
    /// Waiting jobs by class and pool set, to compare with the queue.
    pub fn waiting_by_pool_set(&self) -> BTreeMap<(ClassId, PoolSetIndex), u64> {
        let classes = self.classes.iter();
        let pool_sets = classes.flat_map(|class| {
            class.pool_sets.iter().enumerate().map(|(i, pool_set)| (class.id, i, pool_set))
        });
        pool_sets
            .filter(|(_, _, pool_set)| pool_set.waiting > 0)
            .map(|(id, i, pool_set)| ((id, PoolSetIndex::from(i)), pool_set.waiting))
            .collect()
    }

    /// Jobs of a class that wait in a pool set.
    #[must_use]
    pub fn waiting_in(&self, class: ClassIndex, pool_set: PoolSetIndex) -> u64 {
        self.classes
            .get(class.index())
            .and_then(|class| class.pool_sets.get(pool_set.index()))
            .map_or(0, |pool_set| pool_set.waiting)
    }

    /// Jobs of all classes that wait in a pool set.
    #[must_use]
    pub fn waiting_in_pool_set(&self, pool_set: PoolSetIndex) -> u64 {
        self.class_indexes().map(|class| self.waiting_in(class, pool_set)).sum()
    }

    /// Nodes of the search trees that were visited.
    #[cfg(test)]
    pub(crate) fn visits(&self) -> u64 {
        let pool_sets = self.classes.iter().flat_map(|class| &class.pool_sets);
        pool_sets.flat_map(|pool_set| &pool_set.trees).map(|board| board.visits.get()).sum()
    }
}
