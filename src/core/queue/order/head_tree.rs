//! Head tree: the heads of one class, pool set and part, by tenants and the groups they belong to.
//!
//! Each group of tenants is one entry among its siblings, and has a search tree of its own for its
//! children. The order is that of the outermost siblings; within a group it is that of its
//! children, and so on. A change of a head or of a group's counter updates one entry on each level.

use crate::model::ids::TenantId;
use crate::model::number_map::NumberMap;
use crate::queue::fit_tree::{FitEntry, FitSize, FitTree};
use crate::queue::lane_key::LaneOrderKey;
use crate::queue::quota::{QuotaState, TenantQuotas};

use super::heads::{HeadEntry, HeadKey, LaneHead};

/// Entry of a search tree: a head of a tenant, or all heads of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Competitor {
    Head(LaneHead),
    Group(TenantId),
}

type TreeLevel = FitTree<HeadKey, Competitor>;

/// The heads of a group's children.
#[derive(Debug, Clone, Default)]
struct GroupHeads {
    heads: TreeLevel,
    /// Slot of the group among its siblings; absent while the group is at its ceiling.
    slot: Option<usize>,
}

/// Rank of a group among its siblings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupRank {
    pub(super) quota_state: QuotaState,
    pub(super) counter: u128,
}

/// The key of a group whose first head has this place. Whether that head is late is no matter of
/// the group's siblings.
fn key_of(quota_state: QuotaState, counter: u128, place: LaneOrderKey) -> HeadKey {
    HeadKey::new(quota_state, counter, LaneOrderKey { late: false, ..place })
}

/// A head that a search found, with how its groups stand, the outermost first.
#[derive(Debug, Clone)]
pub(super) struct FoundHead {
    pub(super) entry: HeadEntry,
    groups: Vec<GroupRank>,
}

impl FoundHead {
    /// The state of the quota that decided among the outermost siblings.
    pub(super) fn quota_state(&self) -> QuotaState {
        self.groups.first().map_or(self.entry.key.quota_state, |group| group.quota_state)
    }

    /// State and counter on each level, the outermost first.
    fn levels(&self) -> impl Iterator<Item = (QuotaState, u128)> {
        let own = (self.entry.key.quota_state, self.entry.key.counter);
        self.groups.iter().map(|group| (group.quota_state, group.counter)).chain([own])
    }

    /// Whether this head goes before another one.
    pub(super) fn goes_before(&self, other: &Self) -> bool {
        if self.groups.is_empty() && other.groups.is_empty() {
            return self.entry.key < other.entry.key;
        }
        let unequal = self.levels().zip(other.levels()).find(|(own, other)| own != other);
        unequal.map_or(self.entry.key.place < other.entry.key.place, |(own, other)| own < other)
    }

    /// Whether a head whose outermost key is at least `key` may go before this one.
    pub(super) fn may_follow(&self, key: &HeadKey) -> bool {
        match self.groups.first() {
            None => *key < self.entry.key,
            Some(group) => (key.quota_state, key.counter) <= (group.quota_state, group.counter),
        }
    }
}

/// The heads of one class, pool set and part, for jobs that may use all pools or only the preferred
/// ones.
#[derive(Debug, Clone, Default)]
pub(super) struct HeadTree {
    /// Heads of tenants without a group, and the groups without a parent.
    top: TreeLevel,
    /// Groups with heads.
    groups: NumberMap<TenantId, GroupHeads>,
}

impl HeadTree {
    /// The tree of a group's children; the outermost tree without a group.
    fn level(&self, group: Option<TenantId>) -> Option<&TreeLevel> {
        group.map_or(Some(&self.top), |group| self.groups.get(&group).map(|own| &own.heads))
    }

    fn level_mut(&mut self, group: Option<TenantId>) -> &mut TreeLevel {
        match group {
            None => &mut self.top,
            Some(group) => &mut self.groups.entry(group).or_default().heads,
        }
    }

    /// Whether no head can be found: there is none, or all belong to groups at their ceilings.
    pub(super) fn is_empty(&self) -> bool {
        self.top.is_empty()
    }

    /// Whether the group has heads.
    pub(super) fn holds(&self, group: TenantId) -> bool {
        self.groups.contains_key(&group)
    }

    /// A floor of the outermost keys.
    pub(super) fn least_key(&self) -> Option<HeadKey> {
        self.top.least_key()
    }

    /// The least counter of the heads and groups that compete in a group.
    pub(super) fn least_counter(&self, group: Option<TenantId>) -> Option<u128> {
        Some(self.level(group)?.least_key()?.least_counter)
    }

    /// Writes a head to its slot among those that compete in the group; see [`FitTree::put`].
    /// [`Self::refresh`] of the group and its parents has to follow.
    pub(super) fn put(
        &mut self,
        group: Option<TenantId>,
        slot: Option<usize>,
        entry: Option<HeadEntry>,
    ) -> Option<usize> {
        let entry =
            entry.map(|FitEntry { key, size, value }| FitEntry { key, size, value: Competitor::Head(value) });
        self.level_mut(group).put(slot, entry)
    }

    /// Changes the key of a head. [`Self::refresh`] of the group and its parents has to follow.
    pub(super) fn rekey(
        &mut self,
        group: Option<TenantId>,
        slot: usize,
        change: impl FnOnce(HeadKey) -> HeadKey,
    ) {
        self.level_mut(group).rekey(slot, change);
    }

    pub(super) fn get(&self, group: Option<TenantId>, slot: usize) -> Option<HeadEntry> {
        let FitEntry { key, size, value } = *self.level(group)?.get(slot)?;
        match value {
            Competitor::Head(value) => Some(FitEntry { key, size, value }),
            Competitor::Group(_) => None,
        }
    }

    /// The entry that a group should have among its siblings.
    fn entry_of(own: &GroupHeads, group: TenantId, rank: GroupRank) -> Option<FitEntry<HeadKey, Competitor>> {
        let least = own.heads.least_key().filter(|_| rank.quota_state != QuotaState::Parked)?;
        let quota_state = rank.quota_state.min(least.quota_state);
        let key = key_of(quota_state, rank.counter, least.place);
        Some(FitEntry { key, size: own.heads.least_size(), value: Competitor::Group(group) })
    }

    /// Whether a group with heads has the entry that it should have.
    pub(super) fn is_ranked(&self, group: TenantId, parent: Option<TenantId>, rank: GroupRank) -> bool {
        let Some(own) = self.groups.get(&group) else { return true };
        let found = own.slot.and_then(|slot| self.level(parent)?.get(slot).copied());
        !own.heads.is_empty() && found == Self::entry_of(own, group, rank)
    }

    /// Updates a group's entry among its siblings after a change among its children or of its
    /// rank. A group goes before those that borrow also when one of its children has less than
    /// its guarantee.
    pub(super) fn refresh(&mut self, group: TenantId, parent: Option<TenantId>, rank: GroupRank) {
        let Some(own) = self.groups.get(&group) else { return };
        let (slot, is_empty) = (own.slot, own.heads.is_empty());
        let entry = Self::entry_of(own, group, rank);
        if slot.is_some() || entry.is_some() {
            let slot = self.level_mut(parent).put(slot, entry);
            if let Some(own) = self.groups.get_mut(&group) {
                own.slot = slot;
            }
        }
        if is_empty {
            self.groups.remove(&group);
        }
    }

    /// The first head that fits into `room`, is not skipped, and that the quotas allow.
    pub(super) fn first(
        &self,
        room: FitSize,
        quotas: &TenantQuotas,
        skip: &dyn Fn(&LaneHead) -> bool,
    ) -> Option<FoundHead> {
        self.first_in(None, room, quotas, skip).map(|(_, found)| found)
    }

    /// The same among those that compete in a group. Those that borrow come after all others. So
    /// when the first borrower has too many sequences for the unused quota, only a head with fewer
    /// sequences can still go.
    fn first_in(
        &self,
        group: Option<TenantId>,
        room: FitSize,
        quotas: &TenantQuotas,
        skip: &dyn Fn(&LaneHead) -> bool,
    ) -> Option<(HeadKey, FoundHead)> {
        let level = self.level(group)?;
        let visit = |room| move |entry: &FitEntry<HeadKey, Competitor>| self.visit(entry, room, quotas, skip);
        let found = level.first_of((), room, &visit(room))?;
        let spare = quotas.free_to_borrow(group);
        if found.0.quota_state == QuotaState::Guaranteed || found.1.entry.size.seqs <= spare {
            return Some(found);
        }
        let room = FitSize { seqs: room.seqs.min(spare), ..room };
        level.first_of((), room, &visit(room))
    }

    /// The head that an entry leads to, with the entry's key as of this head.
    fn visit(
        &self,
        entry: &FitEntry<HeadKey, Competitor>,
        room: FitSize,
        quotas: &TenantQuotas,
        skip: &dyn Fn(&LaneHead) -> bool,
    ) -> Option<(HeadKey, FoundHead)> {
        let FitEntry { key, size, value } = *entry;
        match value {
            Competitor::Head(head) => (!skip(&head))
                .then(|| (key, FoundHead { entry: FitEntry { key, size, value: head }, groups: Vec::new() })),
            Competitor::Group(group) => {
                let (inner, mut found) = self.first_in(Some(group), room, quotas, skip)?;
                let quota_state = quotas.group_state(group).min(inner.quota_state);
                let rank = GroupRank { quota_state, counter: key.counter };
                found.groups.insert(0, rank);
                Some((key_of(quota_state, key.counter, found.entry.key.place), found))
            }
        }
    }

    /// Nodes of the search trees that were visited.
    #[cfg(test)]
    pub(super) fn visits(&self) -> u64 {
        let groups = self.groups.values().map(|group| group.heads.visits.get());
        self.top.visits.get() + groups.sum::<u64>()
    }
}
