//! Search for the first job in the order of service.

use crate::core::model::bit_set::BitSet;
use crate::core::model::ids::PoolId;
use crate::core::queue::LanePart;
use crate::core::queue::fit_tree::{FitSize, FitTree};
use crate::core::queue::quota::QuotaState;

use super::PoolGroup;
use super::heads::{
    Candidate, HeadEntry, HeadKey, LaneHead, OpenRoom, PoolOpening, PoolOpenings, RoomIn, tree,
};

impl PoolGroup {
    /// Pools that can take something, with the pool sets that may go there.
    pub fn openings(&self, pools: impl Iterator<Item = PoolOpening>) -> PoolOpenings {
        let mut openings = PoolOpenings::default();
        for (pool, size) in pools {
            if let Some(place) = self.place_of(pool) {
                openings.pool_sets.union(&self.pool_sets_at[place]);
                openings.pools.push((pool, size));
            }
        }
        openings
    }

    /// The first in the order of service among the heads that fit into the
    /// room of their pool set and are not to be skipped: classes that are owed
    /// their share, most owed first; then by rank. Within a class returned
    /// jobs by age, then the tenant with the least counter.
    pub fn first(&self, room: RoomIn<'_>, skip: &dyn Fn(&LaneHead) -> bool) -> Option<Candidate> {
        self.turns().into_iter().find_map(|(class, guaranteed)| {
            let background = self.is_background(class) && !guaranteed;
            LanePart::ALL.into_iter().find_map(|part| {
                let (entry, pool_set) = self.first_in(class, part, background, room, skip)?;
                let (head, need, HeadKey { place, standing, .. }) = (entry.value, entry.size, entry.key);
                Some(Candidate { class, pool_set, head, place, need, guaranteed, background, standing })
            })
        })
    }

    /// The first of a class and part, with its pool set. A pool set none of whose heads
    /// would go before what was found is not searched.
    fn first_in(
        &self,
        place: usize,
        part: LanePart,
        background: bool,
        room: RoomIn<'_>,
        skip: &dyn Fn(&LaneHead) -> bool,
    ) -> Option<(HeadEntry, usize)> {
        let class = &self.classes[place];
        let mut best: Option<(HeadEntry, usize)> = None;
        for bound in [false, true] {
            let board = tree(part, bound);
            let busy = &class.busy[board];
            for pool_set in busy.intersection(room.pool_sets(background).unwrap_or(busy)) {
                let heads = &class.pool_sets[pool_set].trees[board];
                let goes_before = |key: &HeadKey| best.as_ref().is_none_or(|(found, _)| *key < found.key);
                if heads.least_key().is_some_and(|key| goes_before(&key))
                    && let Some(size) = self.room_of((place, pool_set, part), bound, background, room)
                    && let Some(entry) =
                        self.first_allowed(heads, size, skip).filter(|one| goes_before(&one.key))
                {
                    best = Some((entry, pool_set));
                }
            }
        }
        best
    }

    /// What the pools of a pool set can take at most, of those of its heads that are
    /// bound or of the others.
    fn room_of(
        &self,
        at: (usize, usize, LanePart),
        bound: bool,
        background: bool,
        room: RoomIn<'_>,
    ) -> Option<FitSize> {
        let pool_set = at.1;
        match room {
            RoomIn::Anywhere => Some(FitSize::MAX),
            RoomIn::Where(has) => has(&self.shape.pool_sets[pool_set].pools).then_some(FitSize::MAX),
            RoomIn::In(rooms) if (rooms.closed)(at) => None,
            RoomIn::In(rooms) => self.room_in(&rooms, pool_set, bound, background),
        }
    }

    fn room_in(
        &self,
        rooms: &OpenRoom<'_>,
        pool_set: usize,
        bound: bool,
        background: bool,
    ) -> Option<FitSize> {
        let reach = &self.reaches[pool_set].0;
        let wanted = if bound { Some((rooms.wanted)(pool_set)?) } else { None };
        let tier = wanted.map(|wanted| &self.shape.pool_sets[pool_set].tiers[wanted].pools);
        let here = (rooms.openings)(background).pools.iter().filter(|(pool, _)| reach.contains(pool.index()));
        let here = here.filter(|(pool, _)| tier.is_none_or(|tier| tier.contains(pool)));
        here.map(|(_, size)| *size).reduce(FitSize::most)
    }

    /// Whether a head that may go is the first in the order of all that wait for
    /// the pool, whether they fit or not.
    #[must_use]
    pub fn leads(&self, chosen: &Candidate, pool: PoolId) -> bool {
        let Some(pool_sets) = self.place_of(pool).map(|place| &self.pool_sets_at[place]) else {
            return false;
        };
        let parts = self.turns().into_iter().flat_map(|(class, _)| LanePart::ALL.map(|part| (class, part)));
        let mut firsts = parts.filter_map(|(class, part)| self.least_of(class, part, pool_sets));
        firsts.next().is_some_and(|key| key.place.seq == chosen.place.seq)
    }

    /// The least key of a class and part in some pool sets.
    fn least_of(&self, class: usize, part: LanePart, pool_sets: &BitSet) -> Option<HeadKey> {
        let class = &self.classes[class];
        let heads = [false, true].into_iter().flat_map(|bound| {
            let board = tree(part, bound);
            let busy = class.busy[board].intersection(pool_sets);
            busy.filter_map(move |pool_set| class.pool_sets[pool_set].trees[board].least_key())
        });
        heads.min()
    }

    /// The first on a board that fits and that the quotas let go. Who borrows
    /// comes after all others, so when it may not, only one with fewer
    /// sequences is left to look for.
    fn first_allowed(
        &self,
        board: &FitTree<HeadKey, LaneHead>,
        room: FitSize,
        skip: &dyn Fn(&LaneHead) -> bool,
    ) -> Option<HeadEntry> {
        let (_, entry) = board.first((), room, skip)?;
        let spare = self.quotas.unused();
        if entry.key.standing == QuotaState::Guaranteed || entry.size.seqs <= spare {
            return Some(entry);
        }
        let (_, entry) = board.first((), FitSize { seqs: room.seqs.min(spare), ..room }, skip)?;
        Some(entry)
    }
}
