//! Counts of waiting jobs in a pool group, for the audit and the scale signal.

use std::collections::BTreeMap;

use crate::core::model::ids::ClassId;

use super::PoolGroup;

impl PoolGroup {
    /// Waiting jobs by class and line, to compare with the queue.
    pub fn tally(&self) -> BTreeMap<(ClassId, usize), u64> {
        let classes = self.classes.iter();
        let lines =
            classes.flat_map(|class| class.pool_sets.iter().enumerate().map(|(i, line)| (class.id, i, line)));
        lines.filter(|(_, _, line)| line.waiting > 0).map(|(id, i, line)| ((id, i), line.waiting)).collect()
    }

    /// Jobs of a class that wait in a line.
    #[must_use]
    pub fn waiting_in(&self, class: usize, line: usize) -> u64 {
        self.classes.get(class).and_then(|class| class.pool_sets.get(line)).map_or(0, |line| line.waiting)
    }

    /// Jobs of all classes that wait in a line.
    #[must_use]
    pub fn waits_in(&self, line: usize) -> u64 {
        (0..self.classes.len()).map(|class| self.waiting_in(class, line)).sum()
    }

    /// Nodes of search trees that were looked at.
    #[cfg(test)]
    pub(crate) fn visits(&self) -> u64 {
        let lines = self.classes.iter().flat_map(|class| &class.pool_sets);
        lines.flat_map(|line| &line.trees).map(|board| board.visits.get()).sum()
    }
}
