//! Head search: the first job in the order of service that fits.

use crate::model::bit_set::BitSet;
use crate::model::ids::{ClassIndex, PoolId, PoolSetIndex};
use crate::queue::fit_tree::FitSize;
use crate::queue::lane_key::LanePart;

use super::PoolGroup;
use super::head_tree::FoundHead;
use super::heads::{
    Candidate, HeadKey, HeadSet, LaneHead, OpenRoom, PoolOpening, PoolOpenings, RoomIn, tree_index,
};

impl PoolGroup {
    /// Pools with room, together with the pool sets that contain them.
    pub fn openings(&self, pools: impl Iterator<Item = PoolOpening>) -> PoolOpenings {
        let mut openings = PoolOpenings::default();
        for (pool, size) in pools {
            if let Some(index) = self.pool_index(pool) {
                openings.pool_sets.union(&self.pool_sets_at[index]);
                openings.pools.push((pool, size));
            }
        }
        openings
    }

    /// The first head, in the order of service, that fits into the room of its pool set and is not
    /// skipped. Classes that are owed their guaranteed share go first, most owed first; then
    /// classes by rank. Within a class returned jobs go first, by age; then the tenant with the
    /// least counter.
    pub fn first(&self, room: RoomIn<'_>, skip: &dyn Fn(&LaneHead) -> bool) -> Option<Candidate> {
        self.service_order().into_iter().find_map(|(class, guaranteed)| {
            let background = self.is_background(class) && !guaranteed;
            LanePart::ALL.into_iter().find_map(|part| {
                let (found, pool_set) = self.first_in(class, part, background, room, skip)?;
                Some(Candidate {
                    class,
                    pool_set,
                    head: found.entry.value,
                    place: found.entry.key.place,
                    need: found.entry.size,
                    guaranteed,
                    background,
                    quota_state: found.quota_state(),
                })
            })
        })
    }

    /// The first head of a class and part, with its pool set. A pool set is not searched when none
    /// of its heads would precede the head already found.
    fn first_in(
        &self,
        place: ClassIndex,
        part: LanePart,
        background: bool,
        room: RoomIn<'_>,
        skip: &dyn Fn(&LaneHead) -> bool,
    ) -> Option<(FoundHead, PoolSetIndex)> {
        let class = &self.classes[place.index()];
        let mut best: Option<(FoundHead, PoolSetIndex)> = None;
        for bound in [false, true] {
            let tree = tree_index(part, bound);
            let busy = &class.pool_sets_with_heads[tree];
            for pool_set in busy.intersection(room.pool_sets(background).unwrap_or(busy)) {
                let heads = &class.pool_sets[pool_set].trees[tree];
                let pool_set = PoolSetIndex::from(pool_set);
                let at = HeadSet { class: place, pool_set, part };
                let may_follow = |key| best.as_ref().is_none_or(|(found, _)| found.may_follow(&key));
                let goes_before =
                    |one: &FoundHead| best.as_ref().is_none_or(|(found, _)| one.goes_before(found));
                if heads.least_key().is_some_and(may_follow)
                    && let Some(size) = self.room_of(at, bound, background, room)
                    && let Some(found) = heads.first(size, &self.quotas, skip).filter(goes_before)
                {
                    best = Some((found, pool_set));
                }
            }
        }
        best
    }

    /// The largest size that the pools of a pool set can take, for its bound heads or for the
    /// others.
    fn room_of(&self, at: HeadSet, bound: bool, background: bool, room: RoomIn<'_>) -> Option<FitSize> {
        match room {
            RoomIn::Anywhere => Some(FitSize::MAX),
            RoomIn::Matching(has) => has(&self.shape.pool_set(at.pool_set).pools).then_some(FitSize::MAX),
            RoomIn::Pools(rooms) if (rooms.is_skipped)(at) => None,
            RoomIn::Pools(rooms) => self.room_in(&rooms, at.pool_set, bound, background),
        }
    }

    fn room_in(
        &self,
        rooms: &OpenRoom<'_>,
        pool_set: PoolSetIndex,
        bound: bool,
        background: bool,
    ) -> Option<FitSize> {
        let reach = &self.pool_set_pools[pool_set.index()].numbers;
        let wanted = if bound { Some((rooms.preferred_tier)(pool_set)?) } else { None };
        let tier = wanted.map(|wanted| &self.shape.pool_set(pool_set).tiers[wanted].pools);
        let here = (rooms.openings)(background).pools.iter().filter(|(pool, _)| reach.contains(pool.index()));
        let here = here.filter(|(pool, _)| tier.is_none_or(|tier| tier.contains(pool)));
        here.map(|(_, size)| *size).reduce(FitSize::max_each)
    }

    /// Whether a candidate is the first in the order of all heads that wait for the pool, including
    /// heads that do not fit.
    pub fn is_first_for(&self, chosen: &Candidate, pool: PoolId) -> bool {
        let Some(pool_sets) = self.pool_index(pool).map(|index| &self.pool_sets_at[index]) else {
            return false;
        };
        let parts =
            self.service_order().into_iter().flat_map(|(class, _)| LanePart::ALL.map(|part| (class, part)));
        let mut firsts = parts.filter_map(|(class, part)| self.least_of(class, part, pool_sets));
        firsts.next().is_some_and(|key| key.place.seq == chosen.place.seq)
    }

    /// The least key of a class and part over some pool sets.
    fn least_of(&self, class: ClassIndex, part: LanePart, pool_sets: &BitSet) -> Option<HeadKey> {
        let class = &self.classes[class.index()];
        let heads = [false, true].into_iter().flat_map(|bound| {
            let tree = tree_index(part, bound);
            let busy = class.pool_sets_with_heads[tree].intersection(pool_sets);
            busy.filter_map(move |pool_set| class.pool_sets[pool_set].trees[tree].least_key())
        });
        heads.min()
    }
}
