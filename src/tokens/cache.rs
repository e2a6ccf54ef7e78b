//! The counts of parts of prompts that were counted before: conversations come
//! again with a message more.

use std::hash::RandomState;

use parking_lot::Mutex;

/// Parts that are remembered.
const PLACES: usize = 1 << 14;

/// A table of fixed size: each part has one place, and the last one to come
/// keeps it. About 400 KiB when it is in use.
#[derive(Debug, Default)]
pub(super) struct CountCache {
    hasher: RandomState,
    places: Mutex<Vec<CountSlot>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct CountSlot {
    key: u64,
    bytes: u64,
    tokens: u64,
}

impl CountCache {
    /// What parts are hashed with: another one in each process, so that nobody
    /// can make two that look alike.
    pub(super) const fn hasher(&self) -> &RandomState {
        &self.hasher
    }

    pub(super) fn get(&self, key: u64, bytes: usize) -> Option<u64> {
        let places = self.places.lock();
        let place = places.get(index(key))?;
        (place.key == key && place.bytes == bytes as u64).then_some(place.tokens)
    }

    /// Remembers the tokens of a part, and returns them.
    pub(super) fn put(&self, key: u64, bytes: usize, tokens: u64) -> u64 {
        let mut places = self.places.lock();
        if places.is_empty() {
            places.resize(PLACES, CountSlot::default());
        }
        if let Some(place) = places.get_mut(index(key)) {
            *place = CountSlot { key, bytes: bytes as u64, tokens };
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
