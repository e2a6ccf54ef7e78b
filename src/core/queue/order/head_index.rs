//! Head index: the position of each lane's head in the dispatch order.
//!
//! Charging a tenant moves all of the tenant's fresh heads of the class. A tenant has one head for
//! each of its lanes of the class, and lanes of different models may be in different pool sets. The
//! index lists these heads by tenant, so that a charge looks at no lane and no job.

use smallvec::SmallVec;

use crate::core::model::ids::{ClassIndex, TenantId};
use crate::core::queue::lane_key::LanePart;

use super::PoolGroup;
use super::heads::{HeadEntry, HeadKey, HeadPosition, HeadSet, tree_index};

impl PoolGroup {
    /// Adds, moves or removes a head; returns its new position.
    pub fn put_head(
        &mut self,
        at: HeadSet,
        seat: Option<HeadPosition>,
        bound: bool,
        entry: Option<HeadEntry>,
    ) -> Option<HeadPosition> {
        let here = seat.filter(|seat| seat.preferred_only == bound);
        if seat != here {
            self.set(at, !bound, seat, None);
        }
        self.set(at, bound, here, entry)
    }

    fn set(
        &mut self,
        at: HeadSet,
        bound: bool,
        before: Option<HeadPosition>,
        entry: Option<HeadEntry>,
    ) -> Option<HeadPosition> {
        let HeadSet { class, pool_set, part } = at;
        let class = &mut self.classes[class.index()];
        let number = tree_index(part, bound);
        let heads = &mut class.pool_sets[pool_set.index()].trees[number];
        let old = before.and_then(|seat| heads.get(seat.slot));
        let tenant = entry.as_ref().or(old)?.value.lane.tenant;
        let after = heads
            .put(before.map(|seat| seat.slot), entry)
            .map(|slot| HeadPosition { preferred_only: bound, slot });
        class.pool_sets_with_heads[number].set(pool_set.index(), !heads.is_empty());
        if part == LanePart::Fresh && before != after {
            let chairs = class.head_positions.entry(tenant).or_default();
            chairs.retain(|chair| Some(*chair) != before.map(|seat| (pool_set, seat)));
            chairs.extend(after.map(|seat| (pool_set, seat)));
        }
        after
    }

    /// The entry of a head in its search tree.
    #[must_use]
    pub fn head_at(
        &self,
        HeadSet { class, pool_set, part }: HeadSet,
        seat: HeadPosition,
    ) -> Option<&HeadEntry> {
        let trees = &self.classes[class.index()].pool_sets[pool_set.index()].trees;
        trees[tree_index(part, seat.preferred_only)].get(seat.slot)
    }

    /// Moves a tenant's fresh heads of a class to the position that its counter gives them.
    pub fn follow_counter(&mut self, class: ClassIndex, tenant: TenantId) {
        let class = &mut self.classes[class.index()];
        let counter = class.counters.get(tenant);
        for (pool_set, seat) in class.head_positions.get(&tenant).into_iter().flatten() {
            let heads = &mut class.pool_sets[pool_set.index()].trees
                [tree_index(LanePart::Fresh, seat.preferred_only)];
            heads.rekey(seat.slot, |key| HeadKey::new(key.quota_state, counter, key.place));
        }
    }

    /// The number of a tenant's fresh heads in a class that follow its counter.
    #[must_use]
    pub fn indexed_heads(&self, class: ClassIndex, tenant: TenantId) -> usize {
        self.classes[class.index()].head_positions.get(&tenant).map_or(0, SmallVec::len)
    }
}
