//! Count cache: token counts of parts of prompts. A conversation comes again with one more message,
//! so its earlier parts were counted before.

use std::hash::RandomState;

use parking_lot::Mutex;

/// The most parts that are kept.
const PLACES: usize = 1 << 14;

/// A table of fixed size. Each part has one place, and a new part replaces the part at its place.
/// About 400 KiB when it is in use.
#[derive(Debug, Default)]
pub(super) struct CountCache {
    hasher: RandomState,
    places: Mutex<Vec<CountEntry>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct CountEntry {
    key: u64,
    bytes: u64,
    tokens: u64,
}

impl CountCache {
    /// The hasher of parts. Its keys differ in each process, so that nobody can make two parts with
    /// the same hash.
    pub(super) const fn hasher(&self) -> &RandomState {
        &self.hasher
    }

    pub(super) fn get(&self, key: u64, bytes: usize) -> Option<u64> {
        let places = self.places.lock();
        let place = places.get(index(key))?;
        (place.key == key && place.bytes == bytes as u64).then_some(place.tokens)
    }

    /// Stores the tokens of a part, and returns them.
    pub(super) fn put(&self, key: u64, bytes: usize, tokens: u64) -> u64 {
        let mut places = self.places.lock();
        if places.is_empty() {
            places.resize(PLACES, CountEntry::default());
        }
        if let Some(place) = places.get_mut(index(key)) {
            *place = CountEntry { key, bytes: bytes as u64, tokens };
        }
        tokens
    }
}

const fn index(key: u64) -> usize {
    (key % PLACES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_keeps_its_place() {
        let memory = CountCache::default();
        assert_eq!(memory.get(7, 10), None);
        assert_eq!(memory.put(7, 10, 3), 3);
        assert_eq!((memory.get(7, 10), memory.get(7, 11)), (Some(3), None));
        memory.put(7 + PLACES as u64, 10, 4);
        assert_eq!((memory.get(7, 10), memory.get(7 + PLACES as u64, 10)), (None, Some(4)));
    }
}
