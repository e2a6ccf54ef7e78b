//! Oldest waiting job: its arrival time, found without a scan of all waiting jobs.

use std::collections::{BTreeMap, VecDeque};

use crate::model::time::Tick;

/// Removed rows that are tolerated before a sweep. A sweep also needs more removed rows than live
/// ones.
const MIN_SWEEP: usize = 32;

/// Waiting jobs by arrival number. A job that joins in the order of arrival numbers costs one entry
/// at the end of `queue`. The few others go to `out_of_order`.
#[derive(Debug, Clone, Default)]
pub struct OldestWaiting {
    /// Ascending by arrival number.
    queue: VecDeque<WaitingArrival>,
    removed: usize,
    out_of_order: BTreeMap<u64, Tick>,
}

/// A job that joined in the order of arrival numbers.
#[derive(Debug, Clone, Copy)]
struct WaitingArrival {
    number: u64,
    /// `None` once the job has left.
    arrived: Option<Tick>,
}

impl OldestWaiting {
    /// Adds a job that arrived at `arrived` and begins to wait.
    pub fn push(&mut self, number: u64, arrived: Tick) {
        if self.queue.back().is_none_or(|last| last.number < number) {
            self.queue.push_back(WaitingArrival { number, arrived: Some(arrived) });
        } else {
            self.out_of_order.insert(number, arrived);
        }
    }

    /// Removes a job that no longer waits.
    pub fn remove(&mut self, number: u64) {
        if self.out_of_order.remove(&number).is_some() {
            return;
        }
        let Ok(place) = self.queue.binary_search_by_key(&number, |other| other.number) else { return };
        self.removed += usize::from(self.queue[place].arrived.take().is_some());
        while self.queue.front().is_some_and(|first| first.arrived.is_none()) {
            self.queue.pop_front();
            self.removed -= 1;
        }
        if self.removed >= MIN_SWEEP && self.removed * 2 > self.queue.len() {
            self.queue.retain(|job| job.arrived.is_some());
            self.removed = 0;
        }
    }

    /// Arrival time of the job with the least arrival number.
    pub fn oldest_arrival(&self) -> Option<Tick> {
        let first = self.queue.front().and_then(|first| Some((first.number, first.arrived?)));
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
                prop_assert_eq!(ages.oldest_arrival(), plain.first_key_value().map(|(_, arrived)| *arrived));
                prop_assert!(ages.removed < MIN_SWEEP || ages.removed * 2 <= ages.queue.len());
            }
        }
    }
}
