//! Head index: the places of lanes' heads in the order, and how they follow their tenants'
//! counters.
//!
//! A tenant has a head for each of its lanes of a class, and each payment moves
//! all of them: one pool set per model. So the fresh heads of a tenant are listed,
//! to be moved without a look at lanes or jobs.

use smallvec::SmallVec;

use crate::core::model::ids::TenantId;
use crate::core::model::number_map::NumberMap;
use crate::core::queue::LanePart;

use super::PoolGroup;
use super::heads::{HeadEntry, HeadKey, HeadPosition, tree};

/// A seat with its pool set.
pub(super) type IndexedHead = (usize, HeadPosition);

/// The seats of each tenant's fresh heads.
pub(super) type HeadIndex = NumberMap<TenantId, SmallVec<[IndexedHead; 2]>>;

impl PoolGroup {
    /// Sets, moves or clears a head; returns its seat.
    pub fn put(
        &mut self,
        (class, pool_set, part): (usize, usize, LanePart),
        seat: Option<HeadPosition>,
        bound: bool,
        entry: Option<HeadEntry>,
    ) -> Option<HeadPosition> {
        let here = seat.filter(|seat| seat.bound == bound);
        if seat != here {
            self.set((class, pool_set, part), !bound, seat, None);
        }
        self.set((class, pool_set, part), bound, here, entry)
    }

    fn set(
        &mut self,
        (class, pool_set, part): (usize, usize, LanePart),
        bound: bool,
        before: Option<HeadPosition>,
        entry: Option<HeadEntry>,
    ) -> Option<HeadPosition> {
        let class = &mut self.classes[class];
        let number = tree(part, bound);
        let heads = &mut class.pool_sets[pool_set].trees[number];
        let old = before.and_then(|seat| heads.get(seat.slot));
        let tenant = entry.as_ref().or(old)?.value.lane.tenant;
        let after = heads.put(before.map(|seat| seat.slot), entry).map(|slot| HeadPosition { bound, slot });
        class.busy[number].set(pool_set, !heads.is_empty());
        if part == LanePart::Fresh && before != after {
            let chairs = class.head_positions.entry(tenant).or_default();
            chairs.retain(|chair| Some(*chair) != before.map(|seat| (pool_set, seat)));
            chairs.extend(after.map(|seat| (pool_set, seat)));
        }
        after
    }

    /// A head as it stands on its board.
    #[must_use]
    pub fn get(
        &self,
        class: usize,
        pool_set: usize,
        part: LanePart,
        seat: HeadPosition,
    ) -> Option<&HeadEntry> {
        self.classes[class].pool_sets[pool_set].trees[tree(part, seat.bound)].get(seat.slot)
    }

    /// Moves a tenant's fresh heads of a class to where its counter puts them.
    pub fn follow_counter(&mut self, class: usize, tenant: TenantId) {
        let class = &mut self.classes[class];
        let counter = class.counters.get(tenant);
        for (pool_set, seat) in class.head_positions.get(&tenant).into_iter().flatten() {
            let heads = &mut class.pool_sets[*pool_set].trees[tree(LanePart::Fresh, seat.bound)];
            heads.rekey(seat.slot, |key| HeadKey::new(key.standing, counter, key.place));
        }
    }

    /// How many fresh heads follow the tenant's counter in a class.
    #[must_use]
    pub fn followers(&self, class: usize, tenant: TenantId) -> usize {
        self.classes[class].head_positions.get(&tenant).map_or(0, SmallVec::len)
    }
}
