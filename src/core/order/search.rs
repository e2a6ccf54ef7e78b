//! Who is the first in the order of service.

use crate::core::bits::Bits;
use crate::core::board::{Board, Size};
use crate::core::ids::PoolId;
use crate::core::queue::Part;
use crate::core::quota::Standing;

use super::Group;
use super::heads::{Candidate, Head, HeadEntry, HeadKey, Opening, Openings, Room, Rooms, board};

impl Group {
    /// Pools that can take something, with the lines that may go there.
    pub fn openings(&self, pools: impl Iterator<Item = Opening>) -> Openings {
        let mut openings = Openings::default();
        for (pool, size) in pools {
            if let Some(place) = self.place_of(pool) {
                openings.lines.join(&self.lines_at[place]);
                openings.pools.push((pool, size));
            }
        }
        openings
    }

    /// The first in the order of service among the heads that fit into the
    /// room of their line and are not to be skipped: classes that are owed
    /// their share, most owed first; then by rank. Within a class returned
    /// jobs by age, then the tenant with the least counter.
    pub fn first(&self, room: Room<'_>, skip: &dyn Fn(&Head) -> bool) -> Option<Candidate> {
        self.turns().into_iter().find_map(|(class, guaranteed)| {
            let guest = self.is_guest(class) && !guaranteed;
            Part::ALL.into_iter().find_map(|part| {
                let (entry, line) = self.first_in(class, part, guest, room, skip)?;
                let (head, need, HeadKey { place, standing, .. }) = (entry.value, entry.size, entry.key);
                Some(Candidate { class, line, head, place, need, guaranteed, guest, standing })
            })
        })
    }

    /// The first of a class and part, with its line. A line none of whose heads
    /// would go before what was found is not searched.
    fn first_in(
        &self,
        place: usize,
        part: Part,
        guest: bool,
        room: Room<'_>,
        skip: &dyn Fn(&Head) -> bool,
    ) -> Option<(HeadEntry, usize)> {
        let class = &self.classes[place];
        let mut best: Option<(HeadEntry, usize)> = None;
        for bound in [false, true] {
            let board = board(part, bound);
            let busy = &class.busy[board];
            for line in busy.common(room.lines(guest).unwrap_or(busy)) {
                let heads = &class.lines[line].boards[board];
                let goes_before = |key: &HeadKey| best.as_ref().is_none_or(|(found, _)| *key < found.key);
                if heads.least_key().is_some_and(|key| goes_before(&key))
                    && let Some(size) = self.room_of((place, line, part), bound, guest, room)
                    && let Some(entry) =
                        self.first_allowed(heads, size, skip).filter(|one| goes_before(&one.key))
                {
                    best = Some((entry, line));
                }
            }
        }
        best
    }

    /// What the pools of a line can take at most, of those of its heads that are
    /// bound or of the others.
    fn room_of(&self, at: (usize, usize, Part), bound: bool, guest: bool, room: Room<'_>) -> Option<Size> {
        let line = at.1;
        match room {
            Room::Anywhere => Some(Size::MAX),
            Room::Where(has) => has(&self.shape.lines[line].pools).then_some(Size::MAX),
            Room::In(rooms) if (rooms.closed)(at) => None,
            Room::In(rooms) => self.room_in(&rooms, line, bound, guest),
        }
    }

    fn room_in(&self, rooms: &Rooms<'_>, line: usize, bound: bool, guest: bool) -> Option<Size> {
        let reach = &self.reaches[line].0;
        let wanted = if bound { Some((rooms.wanted)(line)?) } else { None };
        let tier = wanted.map(|wanted| &self.shape.lines[line].tiers[wanted].pools);
        let here = (rooms.openings)(guest).pools.iter().filter(|(pool, _)| reach.has(pool.index()));
        let here = here.filter(|(pool, _)| tier.is_none_or(|tier| tier.contains(pool)));
        here.map(|(_, size)| *size).reduce(Size::most)
    }

    /// Whether a head that may go is the first in the order of all that wait for
    /// the pool, whether they fit or not.
    #[must_use]
    pub fn leads(&self, chosen: &Candidate, pool: PoolId) -> bool {
        let Some(lines) = self.place_of(pool).map(|place| &self.lines_at[place]) else { return false };
        let parts = self.turns().into_iter().flat_map(|(class, _)| Part::ALL.map(|part| (class, part)));
        let mut firsts = parts.filter_map(|(class, part)| self.least_of(class, part, lines));
        firsts.next().is_some_and(|key| key.place.seq == chosen.place.seq)
    }

    /// The least key of a class and part in some lines.
    fn least_of(&self, class: usize, part: Part, lines: &Bits) -> Option<HeadKey> {
        let class = &self.classes[class];
        let heads = [false, true].into_iter().flat_map(|bound| {
            let board = board(part, bound);
            let busy = class.busy[board].common(lines);
            busy.filter_map(move |line| class.lines[line].boards[board].least_key())
        });
        heads.min()
    }

    /// The first on a board that fits and that the quotas let go. Who borrows
    /// comes after all others, so when it may not, only one with fewer
    /// sequences is left to look for.
    fn first_allowed(
        &self,
        board: &Board<HeadKey, Head>,
        room: Size,
        skip: &dyn Fn(&Head) -> bool,
    ) -> Option<HeadEntry> {
        let (_, entry) = board.first((), room, skip)?;
        let spare = self.quotas.spare();
        if entry.key.standing == Standing::Guaranteed || entry.size.seqs <= spare {
            return Some(entry);
        }
        let (_, entry) = board.first((), Size { seqs: room.seqs.min(spare), ..room }, skip)?;
        Some(entry)
    }
}
