//! Fit tree: a tournament tree that finds the first entry, in some order, that fits into a size.
//!
//! The order may depend on the query: replicas have another order for a long prompt than for a
//! short one. See [`FitRank`].

#[cfg(test)]
use std::cell::Cell;

/// The size that a job needs, or that a replica has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FitSize {
    pub seqs: u32,
    pub kv: u64,
    /// Prompt tokens that are still to be computed.
    pub prefill: u64,
}

impl FitSize {
    pub const ZERO: Self = Self { seqs: 0, kv: 0, prefill: 0 };
    /// At least as large as any size.
    pub const MAX: Self = Self { seqs: u32::MAX, kv: u64::MAX, prefill: u64::MAX };

    /// Whether this fits into `room`, in every respect.
    pub fn fits_in(self, room: Self) -> bool {
        self.seqs <= room.seqs && self.kv <= room.kv && self.prefill <= room.prefill
    }

    /// The difference to [`FitSize::MAX`]. The complement turns "at least" into "at most": `a` fits
    /// into `b` exactly when `b.complement()` fits into `a.complement()`.
    pub const fn complement(self) -> Self {
        Self { seqs: u32::MAX - self.seqs, kv: u64::MAX - self.kv, prefill: u64::MAX - self.prefill }
    }

    /// The smaller of the two sizes in each respect.
    pub fn min_each(self, other: Self) -> Self {
        Self {
            seqs: self.seqs.min(other.seqs),
            kv: self.kv.min(other.kv),
            prefill: self.prefill.min(other.prefill),
        }
    }

    /// The larger of the two sizes in each respect.
    pub fn max_each(self, other: Self) -> Self {
        Self {
            seqs: self.seqs.max(other.seqs),
            kv: self.kv.max(other.kv),
            prefill: self.prefill.max(other.prefill),
        }
    }
}

/// Rank of an entry: its place in the order, for each query.
pub trait FitRank: Copy + PartialEq {
    /// The query that the order depends on.
    type Query: Copy;
    /// The place of an entry; the least goes first.
    type Cost: Copy + Ord;

    /// The place of this rank for a query.
    fn cost(&self, query: Self::Query) -> Self::Cost;

    /// A rank whose cost is, for every query, at most the cost of either rank.
    fn floor(self, other: Self) -> Self;
}

/// The first entry for a query, with its cost.
pub type FitMatch<K, V> = (<K as FitRank>::Cost, FitEntry<K, V>);

/// One entry of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FitEntry<K, V> {
    /// The rank of the entry.
    pub key: K,
    /// The size that has to fit.
    pub size: FitSize,
    /// The job, replica or tenant that the entry stands for.
    pub value: V,
}

/// What an entry leads to: its result, with a cost that is at least that of the entry's key.
type FitVisit<'a, K, V, T> = &'a dyn Fn(&FitEntry<K, V>) -> Option<(<K as FitRank>::Cost, T)>;

/// A search under way.
struct FitSearch<'a, K: FitRank, V, T> {
    query: K::Query,
    room: FitSize,
    visit: FitVisit<'a, K, V, T>,
    best: Option<(K::Cost, T)>,
}

/// Nodes that [`FitTree::near`] visits at most: enough to reach a leaf, and some for each entry.
const NEAR_NODES: usize = 16;
const NEAR_NODES_EACH: usize = 4;

/// A walk of [`FitTree::near`]: what it looks for, and what it may still visit.
struct NearWalk<'a, K: FitRank, V> {
    query: K::Query,
    room: FitSize,
    entries: usize,
    nodes: usize,
    look: &'a mut dyn FnMut(&FitEntry<K, V>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct FitNode<K> {
    key: Option<K>,
    least: FitSize,
    most: FitSize,
    count: u32,
}

impl<K> FitNode<K> {
    const EMPTY: Self = Self { key: None, least: FitSize::MAX, most: FitSize::ZERO, count: 0 };
}

impl<K: FitRank> FitNode<K> {
    /// Floor of the keys, bounds of the sizes and number of entries of two nodes.
    fn join(&self, other: &Self) -> Self {
        match (self.count, other.count) {
            (_, 0) => return *self,
            (0, _) => return *other,
            _ => {}
        }
        Self {
            key: self.key.zip(other.key).map(|(left, right)| left.floor(right)),
            least: self.least.min_each(other.least),
            most: self.most.max_each(other.most),
            count: self.count + other.count,
        }
    }
}

/// Entries in numbered slots under a binary tree. Each node holds a floor of the keys below it, and
/// the least and the largest size.
///
/// A change costs at most O(log n): the update stops at the first node that does not change. A
/// search enters only nodes below which an entry may fit and precede the best match so far. A
/// search costs O(log n) when keys and sizes agree or little fits, and about √n · log n when they
/// are independent of each other.
#[derive(Debug, Clone)]
pub struct FitTree<K, V> {
    entries: Vec<Option<FitEntry<K, V>>>,
    nodes: Vec<FitNode<K>>,
    free: Vec<usize>,
    #[cfg(test)]
    pub(crate) visits: Cell<u64>,
}

impl<K, V> Default for FitTree<K, V> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            #[cfg(test)]
            visits: Cell::new(0),
        }
    }
}

impl<K: FitRank, V: Copy> FitTree<K, V> {
    /// Writes the entry to the slot, or to a new slot when there is none yet. Without an entry, the
    /// slot is cleared. Returns the slot of the entry.
    pub fn put(&mut self, slot: Option<usize>, entry: Option<FitEntry<K, V>>) -> Option<usize> {
        match (slot, entry) {
            (None, None) => None,
            (Some(slot), None) => {
                self.write(slot, None);
                self.free.push(slot);
                None
            }
            (Some(slot), entry) => {
                self.write(slot, entry);
                Some(slot)
            }
            (None, entry) => {
                if self.free.is_empty() {
                    self.grow();
                }
                let slot = self.free.pop()?;
                self.write(slot, entry);
                Some(slot)
            }
        }
    }

    /// Changes the key of the entry in a slot.
    pub fn rekey(&mut self, slot: usize, change: impl FnOnce(K) -> K) {
        if let Some(entry) = self.entries.get(slot).copied().flatten() {
            self.write(slot, Some(FitEntry { key: change(entry.key), ..entry }));
        }
    }

    pub fn get(&self, slot: usize) -> Option<&FitEntry<K, V>> {
        self.entries.get(slot)?.as_ref()
    }

    /// The number of entries.
    pub fn len(&self) -> u32 {
        self.root().count
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A floor of all keys; the least key when the order does not depend on the query.
    pub fn least_key(&self) -> Option<K> {
        self.root().key
    }

    /// The least size in each respect, over all entries.
    pub fn least_size(&self) -> FitSize {
        self.root().least
    }

    /// The entry with the least cost for the query among those that fit into
    /// `room` and are not to be skipped.
    pub fn first(&self, query: K::Query, room: FitSize, skip: &dyn Fn(&V) -> bool) -> Option<FitMatch<K, V>> {
        let visit = |entry: &FitEntry<K, V>| (!skip(&entry.value)).then(|| (entry.key.cost(query), *entry));
        self.first_of(query, room, &visit)
    }

    /// The result with the least cost for the query, of the entries that fit into `room`. `visit`
    /// gives the result of an entry, if it has one, with a cost that is at least that of its key.
    pub fn first_of<T>(
        &self,
        query: K::Query,
        room: FitSize,
        visit: FitVisit<'_, K, V, T>,
    ) -> Option<(K::Cost, T)> {
        let mut search = FitSearch { query, room, visit, best: None };
        if !self.nodes.is_empty() && self.open(1, &search).is_some() {
            self.search(1, &mut search);
        }
        search.best
    }

    /// Shows `look` at most `most` of the entries that fit into `room`: those that a greedy search
    /// meets first, at a bounded cost. In a large tree they need not be the first in the order.
    pub fn near(&self, query: K::Query, room: FitSize, most: usize, look: &mut dyn FnMut(&FitEntry<K, V>)) {
        let mut walk =
            NearWalk { query, room, entries: most, nodes: NEAR_NODES + NEAR_NODES_EACH * most, look };
        if !self.nodes.is_empty() {
            self.near_below(1, &mut walk);
        }
    }

    fn near_below(&self, at: usize, walk: &mut NearWalk<'_, K, V>) {
        let node = &self.nodes[at];
        if walk.entries == 0 || walk.nodes == 0 || node.count == 0 || !node.least.fits_in(walk.room) {
            return;
        }
        walk.nodes -= 1;
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        if let Some(slot) = at.checked_sub(self.entries.len()) {
            if let Some(entry) = &self.entries[slot] {
                walk.entries -= 1;
                (walk.look)(entry);
            }
            return;
        }
        let (left, right) = (2 * at, 2 * at + 1);
        // Where all entries below are taken, their order does not matter.
        let right_first = node.count as usize > walk.entries && {
            let cost = |at: usize| self.nodes[at].key.map(|key| key.cost(walk.query));
            match (cost(left), cost(right)) {
                (Some(left), Some(right)) => right < left,
                (left, _) => left.is_none(),
            }
        };
        for at in if right_first { [right, left] } else { [left, right] } {
            self.near_below(at, walk);
        }
    }

    /// How many entries fit into `room`.
    pub fn count(&self, room: FitSize) -> u32 {
        if self.nodes.is_empty() { 0 } else { self.count_below(1, room) }
    }

    fn root(&self) -> FitNode<K> {
        self.nodes.get(1).copied().unwrap_or(FitNode::EMPTY)
    }

    /// Searches below a node that [`Self::open`] accepts.
    fn search<T>(&self, at: usize, search: &mut FitSearch<'_, K, V, T>) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        if let Some(slot) = at.checked_sub(self.entries.len()) {
            let found = self.entries[slot].as_ref().and_then(search.visit);
            if let Some(found) = found
                && search.best.as_ref().is_none_or(|(best, _)| found.0 < *best)
            {
                search.best = Some(found);
            }
            return;
        }
        let (left, right) = (2 * at, 2 * at + 1);
        let right_first = match (self.open(left, search), self.open(right, search)) {
            (Some(left), Some(right)) => right.cost(search.query) < left.cost(search.query),
            (left, _) => left.is_none(),
        };
        for at in if right_first { [right, left] } else { [left, right] } {
            if self.open(at, search).is_some() {
                self.search(at, search);
            }
        }
    }

    /// The key of a node below which an entry may fit and precede the best match so far.
    fn open<T>(&self, at: usize, search: &FitSearch<'_, K, V, T>) -> Option<&K> {
        let node = &self.nodes[at];
        let key = node.key.as_ref().filter(|_| node.least.fits_in(search.room))?;
        let best = search.best.as_ref();
        best.is_none_or(|(best, _)| key.cost(search.query) < *best).then_some(key)
    }

    fn count_below(&self, at: usize, room: FitSize) -> u32 {
        let node = &self.nodes[at];
        if node.count == 0 || !node.least.fits_in(room) {
            return 0;
        }
        if node.most.fits_in(room) {
            return node.count;
        }
        self.count_below(2 * at, room) + self.count_below(2 * at + 1, room)
    }

    fn write(&mut self, slot: usize, entry: Option<FitEntry<K, V>>) {
        self.entries[slot] = entry;
        let mut at = self.entries.len() + slot;
        self.nodes[at] = entry.map_or(FitNode::EMPTY, |entry| FitNode {
            key: Some(entry.key),
            least: entry.size,
            most: entry.size,
            count: 1,
        });
        while at > 1 {
            at /= 2;
            let (left, right) = (&self.nodes[2 * at], &self.nodes[2 * at + 1]);
            let joined = left.join(right);
            if joined == self.nodes[at] {
                break;
            }
            self.nodes[at] = joined;
        }
    }

    fn grow(&mut self) {
        let old = self.entries.len();
        let size = (2 * old).max(1);
        self.entries.resize(size, None);
        self.free.extend((old..size).rev());
        self.nodes = vec![FitNode::EMPTY; 2 * size];
        for slot in 0..old {
            let entry = self.entries[slot];
            if entry.is_some() {
                self.write(slot, entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A line: `start + slope * query`.
    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Line {
        start: u64,
        slope: u64,
        id: usize,
    }

    impl FitRank for Line {
        type Query = u64;
        type Cost = (u64, usize);

        fn cost(&self, query: u64) -> (u64, usize) {
            (self.start + self.slope * query, self.id)
        }

        fn floor(self, other: Self) -> Self {
            Self {
                start: self.start.min(other.start),
                slope: self.slope.min(other.slope),
                id: self.id.min(other.id),
            }
        }
    }

    fn size(seqs: u32, kv: u64) -> FitSize {
        FitSize { seqs, kv, prefill: 0 }
    }

    fn entry(start: u64, slope: u64, size: FitSize, id: usize) -> FitEntry<Line, usize> {
        FitEntry { key: Line { start, slope, id }, size, value: id }
    }

    fn first(tree: &FitTree<Line, usize>, query: u64, room: FitSize) -> Option<usize> {
        tree.first(query, room, &|_| false).map(|(_, entry)| entry.value)
    }

    #[test]
    fn an_empty_board_has_no_first() {
        let tree: FitTree<Line, usize> = FitTree::default();
        assert_eq!(first(&tree, 0, FitSize::MAX), None);
        assert_eq!((tree.len(), tree.count(FitSize::MAX), tree.least_key()), (0, 0, None));
    }

    #[test]
    fn the_least_that_fits_goes_first() {
        let mut tree = FitTree::default();
        tree.put(None, Some(entry(1, 0, size(9, 9), 0)));
        let second = tree.put(None, Some(entry(2, 0, size(1, 5), 1)));
        tree.put(None, Some(entry(3, 0, size(2, 1), 2)));
        let room = size(2, 5);
        assert_eq!(first(&tree, 0, room), Some(1));
        assert_eq!(tree.first(0, room, &|value| *value == 1).map(|(_, e)| e.value), Some(2));
        assert_eq!(first(&tree, 0, size(2, 1)), Some(2));
        assert_eq!(tree.count(room), 2);
        tree.put(second, None);
        assert_eq!(first(&tree, 0, room), Some(2));
    }

    #[test]
    fn the_order_depends_on_who_asks() {
        let mut tree = FitTree::default();
        tree.put(None, Some(entry(0, 3, FitSize::ZERO, 0)));
        tree.put(None, Some(entry(10, 1, FitSize::ZERO, 1)));
        assert_eq!(first(&tree, 4, FitSize::MAX), Some(0));
        assert_eq!(first(&tree, 6, FitSize::MAX), Some(1));
    }

    #[test]
    fn complement_turns_the_comparison_round() {
        let (a, b) = (size(2, 10), size(3, 10));
        assert!(a.fits_in(b) && b.complement().fits_in(a.complement()));
        assert!(!b.fits_in(a) && !a.complement().fits_in(b.complement()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn agrees_with_a_plain_scan(
            steps in vec(
                (
                    0usize..24,
                    prop::option::of((0u64..20, 0u64..4, 0u32..6, 0u64..6, 0u64..6)),
                    (0u64..8, 0u32..6, 0u64..6, 0u64..6),
                ),
                1..80,
            )
        ) {
            let mut tree = FitTree::default();
            let mut slots = [None; 24];
            let mut plain: [Option<FitEntry<Line, usize>>; 24] = [None; 24];
            for (who, what, (query, seqs, kv, prefill)) in steps {
                plain[who] = what.map(|(start, slope, seqs, kv, prefill)| {
                    entry(start, slope, FitSize { seqs, kv, prefill }, who)
                });
                slots[who] = tree.put(slots[who], plain[who]);
                let room = FitSize { seqs, kv, prefill };
                let fits = || plain.iter().flatten().filter(|e| e.size.fits_in(room));
                let want = fits().filter(|e| e.value != 3).min_by_key(|e| e.key.cost(query)).map(|e| e.value);
                let found = tree.first(query, room, &|value| *value == 3).map(|(_, e)| e.value);
                prop_assert_eq!(found, want);
                prop_assert_eq!(tree.count(room) as usize, fits().count());
                for most in [0, 3, 24] {
                    let mut near = Vec::new();
                    tree.near(query, room, most, &mut |entry| near.push(entry.value));
                    near.sort_unstable();
                    near.dedup();
                    // With 24, every node may be visited.
                    prop_assert!(near.len() <= most && (most < 24 || near.len() == fits().count()));
                    prop_assert!(near.iter().all(|value| fits().any(|e| e.value == *value)));
                }
                let least = plain.iter().flatten().map(|e| e.key.start).min();
                prop_assert_eq!(tree.least_key().map(|key| key.start), least);
            }
        }
    }
}
