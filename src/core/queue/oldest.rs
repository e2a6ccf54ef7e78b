//! The oldest of those that wait, found without looking at them all.

use std::collections::{BTreeMap, VecDeque};

use crate::core::model::time::Tick;

/// Rows of those that left which are kept until they are more than half of all.
const MIN_SWEEP: usize = 32;

/// Who waits, by arrival number. Most come in the order of their numbers, and
/// cost a place at the end of the queue; the few that do not stand apart.
#[derive(Debug, Clone, Default)]
pub struct OldestWaiting {
    /// Ascending by number; without a time where one has left.
    queue: VecDeque<(u64, Option<Tick>)>,
    left: usize,
    out_of_order: BTreeMap<u64, Tick>,
}

impl OldestWaiting {
    /// One that came at `arrived` begins to wait.
    pub fn push(&mut self, number: u64, arrived: Tick) {
        if self.queue.back().is_none_or(|(last, _)| *last < number) {
            self.queue.push_back((number, Some(arrived)));
        } else {
            self.out_of_order.insert(number, arrived);
        }
    }

    /// One waits no longer.
    pub fn remove(&mut self, number: u64) {
        if self.out_of_order.remove(&number).is_some() {
            return;
        }
        let Ok(place) = self.queue.binary_search_by_key(&number, |(other, _)| *other) else { return };
        self.left += usize::from(self.queue[place].1.take().is_some());
        while self.queue.front().is_some_and(|(_, arrived)| arrived.is_none()) {
            self.queue.pop_front();
            self.left -= 1;
        }
        if self.left >= MIN_SWEEP && self.left * 2 > self.queue.len() {
            self.queue.retain(|(_, arrived)| arrived.is_some());
            self.left = 0;
        }
    }

    /// When the one with the least number came.
    #[must_use]
    pub fn oldest(&self) -> Option<Tick> {
        let first = self.queue.front().and_then(|(number, arrived)| Some((*number, (*arrived)?)));
        let stray = self.out_of_order.first_key_value().map(|(number, arrived)| (*number, *arrived));
        first.into_iter().chain(stray).min().map(|(_, arrived)| arrived)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, prop_oneof, proptest};

    use super::*;

    /// Numbers in order, mostly, and some that leave or come late.
    fn steps() -> impl Strategy<Value = Vec<(u64, bool)>> {
        let ordered = (0u64..4, 0u8..10);
        vec(prop_oneof![4 => ordered, 1 => (0u64..200, 0u8..10)], 0..400).prop_map(|rows| {
            let mut next = 0;
            let number = |by: u64| {
                next += by;
                if by < 4 { next } else { by }
            };
            let numbers: Vec<u64> = rows.iter().map(|(by, _)| *by).map(number).collect();
            numbers.into_iter().zip(rows).map(|(number, (_, kind))| (number, kind < 6)).collect()
        })
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_plain_map(steps in steps()) {
            let (mut ages, mut plain) = (OldestWaiting::default(), BTreeMap::new());
            for (number, joins) in steps {
                if joins && !plain.contains_key(&number) {
                    let arrived = Tick::from_millis(number);
                    ages.push(number, arrived);
                    plain.insert(number, arrived);
                } else {
                    let gone = plain.keys().nth(number as usize % plain.len().max(1)).copied();
                    for number in gone.into_iter().chain([number]) {
                        ages.remove(number);
                        plain.remove(&number);
                    }
                }
                prop_assert_eq!(ages.oldest(), plain.first_key_value().map(|(_, arrived)| *arrived));
                prop_assert!(ages.left < MIN_SWEEP || ages.left * 2 <= ages.queue.len());
            }
        }
    }
}
