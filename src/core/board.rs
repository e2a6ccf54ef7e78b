//! A tournament tree: the first, in some order, of those that fit.

#[cfg(test)]
use std::cell::Cell;

/// What a job needs, or what a replica has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Sequences.
    pub seqs: u32,
    /// KV cache tokens.
    pub kv: u64,
}

impl Size {
    /// Nothing.
    pub const ZERO: Self = Self { seqs: 0, kv: 0 };
    /// More than anything that is asked for.
    pub const MAX: Self = Self { seqs: u32::MAX, kv: u64::MAX };

    /// Whether this fits into `room`, in both respects.
    #[must_use]
    pub fn within(self, room: Self) -> bool {
        self.seqs <= room.seqs && self.kv <= room.kv
    }

    /// What is missing to [`Size::MAX`]. Turns "at least" into "at most": `a`
    /// fits into `b` exactly when `b.complement()` fits into
    /// `a.complement()`.
    #[must_use]
    pub const fn complement(self) -> Self {
        Self { seqs: u32::MAX - self.seqs, kv: u64::MAX - self.kv }
    }

    /// The smaller one in each respect.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self { seqs: self.seqs.min(other.seqs), kv: self.kv.min(other.kv) }
    }

    /// The larger one in each respect.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self { seqs: self.seqs.max(other.seqs), kv: self.kv.max(other.kv) }
    }
}

/// One competitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<K, V> {
    /// Its place in the order; the least goes first.
    pub key: K,
    /// What has to fit.
    pub size: Size,
    /// What it stands for.
    pub value: V,
}

#[derive(Debug, Clone, Copy)]
struct Node<K> {
    key: Option<K>,
    least: Size,
    most: Size,
    count: u32,
}

impl<K> Node<K> {
    const EMPTY: Self = Self { key: None, least: Size::MAX, most: Size::ZERO, count: 0 };
}

/// Entries in numbered slots under a tree whose every node knows the least
/// key, the least and the largest size below it.
///
/// A change costs O(log n). A search goes only where something may fit and
/// precede what was found: O(log n) when keys and sizes agree or little fits,
/// about √n · log n when they are independent of each other.
#[derive(Debug, Clone)]
pub struct Board<K, V> {
    entries: Vec<Option<Entry<K, V>>>,
    nodes: Vec<Node<K>>,
    free: Vec<usize>,
    #[cfg(test)]
    pub(crate) visits: Cell<u64>,
}

impl<K, V> Default for Board<K, V> {
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

impl<K: Copy + Ord, V: Copy> Board<K, V> {
    /// Puts the entry in the slot, in a new one when there is none yet, or
    /// clears the slot. Returns where the entry is now.
    pub fn put(&mut self, slot: Option<usize>, entry: Option<Entry<K, V>>) -> Option<usize> {
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

    /// The entry in a slot.
    #[must_use]
    pub fn get(&self, slot: usize) -> Option<&Entry<K, V>> {
        self.entries.get(slot)?.as_ref()
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.root().count
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The least key of all.
    #[must_use]
    pub fn least_key(&self) -> Option<K> {
        self.root().key
    }

    /// The least size in each respect, over all entries.
    #[must_use]
    pub fn least_size(&self) -> Size {
        self.root().least
    }

    /// The entry with the least key among those that fit into `room` and are
    /// not to be skipped.
    pub fn first(&self, room: Size, skip: &dyn Fn(&V) -> bool) -> Option<Entry<K, V>> {
        let mut best = None;
        if !self.nodes.is_empty() {
            self.search(1, room, skip, &mut best);
        }
        best
    }

    /// How many entries fit into `room`.
    #[must_use]
    pub fn count(&self, room: Size) -> u32 {
        if self.nodes.is_empty() { 0 } else { self.count_below(1, room) }
    }

    fn root(&self) -> Node<K> {
        self.nodes.get(1).copied().unwrap_or(Node::EMPTY)
    }

    fn search(&self, at: usize, room: Size, skip: &dyn Fn(&V) -> bool, best: &mut Option<Entry<K, V>>) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        let node = &self.nodes[at];
        let Some(key) = node.key else { return };
        if !node.least.within(room) || best.as_ref().is_some_and(|best| best.key <= key) {
            return;
        }
        if let Some(slot) = at.checked_sub(self.entries.len()) {
            *best = self.entries[slot].filter(|entry| !skip(&entry.value)).or(*best);
            return;
        }
        let (left, right) = (2 * at, 2 * at + 1);
        let right_first = match (self.nodes[left].key, self.nodes[right].key) {
            (Some(left), Some(right)) => right < left,
            (left, _) => left.is_none(),
        };
        let (first, second) = if right_first { (right, left) } else { (left, right) };
        self.search(first, room, skip, best);
        self.search(second, room, skip, best);
    }

    fn count_below(&self, at: usize, room: Size) -> u32 {
        let node = &self.nodes[at];
        if node.count == 0 || !node.least.within(room) {
            return 0;
        }
        if node.most.within(room) {
            return node.count;
        }
        self.count_below(2 * at, room) + self.count_below(2 * at + 1, room)
    }

    fn write(&mut self, slot: usize, entry: Option<Entry<K, V>>) {
        self.entries[slot] = entry;
        let mut at = self.entries.len() + slot;
        self.nodes[at] = entry.map_or(Node::EMPTY, |entry| Node {
            key: Some(entry.key),
            least: entry.size,
            most: entry.size,
            count: 1,
        });
        while at > 1 {
            at /= 2;
            self.nodes[at] = self.join(at);
        }
    }

    fn join(&self, at: usize) -> Node<K> {
        let (left, right) = (&self.nodes[2 * at], &self.nodes[2 * at + 1]);
        Node {
            key: match (left.key, right.key) {
                (Some(left), Some(right)) => Some(left.min(right)),
                (left, right) => left.or(right),
            },
            least: left.least.least(right.least),
            most: left.most.most(right.most),
            count: left.count + right.count,
        }
    }

    fn grow(&mut self) {
        let old = self.entries.len();
        let size = (2 * old).max(1);
        self.entries.resize(size, None);
        self.free.extend((old..size).rev());
        self.nodes = vec![Node::EMPTY; 2 * size];
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

    fn entry(key: u32, seqs: u32, kv: u64, value: usize) -> Entry<(u32, usize), usize> {
        Entry { key: (key, value), size: Size { seqs, kv }, value }
    }

    #[test]
    fn an_empty_board_has_no_first() {
        let board: Board<u8, u8> = Board::default();
        assert_eq!(board.first(Size::MAX, &|_| false), None);
        assert_eq!((board.len(), board.count(Size::MAX), board.least_key()), (0, 0, None));
    }

    #[test]
    fn the_least_that_fits_goes_first() {
        let mut board = Board::default();
        board.put(None, Some(entry(1, 9, 9, 0)));
        let second = board.put(None, Some(entry(2, 1, 5, 1)));
        board.put(None, Some(entry(3, 2, 1, 2)));
        let room = Size { seqs: 2, kv: 5 };
        assert_eq!(board.first(room, &|_| false).map(|e| e.value), Some(1));
        assert_eq!(board.first(room, &|value| *value == 1).map(|e| e.value), Some(2));
        assert_eq!(board.first(Size { seqs: 2, kv: 1 }, &|_| false).map(|e| e.value), Some(2));
        assert_eq!(board.count(room), 2);
        board.put(second, None);
        assert_eq!(board.first(room, &|_| false).map(|e| e.value), Some(2));
    }

    #[test]
    fn complement_turns_the_comparison_round() {
        let (a, b) = (Size { seqs: 2, kv: 10 }, Size { seqs: 3, kv: 10 });
        assert!(a.within(b) && b.complement().within(a.complement()));
        assert!(!b.within(a) && !a.complement().within(b.complement()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn agrees_with_a_plain_scan(
            steps in vec((0usize..24, prop::option::of((0u32..20, 0u32..6, 0u64..6)), (0u32..6, 0u64..6)), 1..80)
        ) {
            let mut board = Board::default();
            let mut slots = [None; 24];
            let mut plain = [None; 24];
            for (who, what, (seqs, kv)) in steps {
                plain[who] = what.map(|(key, seqs, kv)| entry(key, seqs, kv, who));
                slots[who] = board.put(slots[who], plain[who]);
                let room = Size { seqs, kv };
                let fits = || plain.iter().flatten().filter(|e| e.size.within(room));
                let want = fits().filter(|e| e.value != 3).min_by_key(|e| e.key).copied();
                prop_assert_eq!(board.first(room, &|value| *value == 3), want);
                prop_assert_eq!(board.count(room) as usize, fits().count());
                prop_assert_eq!(board.least_key(), plain.iter().flatten().map(|e| e.key).min());
            }
        }
    }
}
