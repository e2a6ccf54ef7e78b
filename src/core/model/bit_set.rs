//! Bit set: a set of small numbers, such as the pools of a policy.

use smallvec::SmallVec;

/// Bits in a word.
const WORD: usize = u64::BITS as usize;

/// Set of small numbers. The set takes as many words as its largest number needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BitSet {
    words: SmallVec<[u64; 4]>,
}

impl BitSet {
    /// Adds a number when `is_in` is true, else removes the number.
    pub fn set(&mut self, number: usize, is_in: bool) {
        let (word, bit) = (number / WORD, 1 << (number % WORD));
        if word >= self.words.len() {
            if !is_in {
                return;
            }
            self.words.resize(word + 1, 0);
        }
        if is_in {
            self.words[word] |= bit;
        } else {
            self.words[word] &= !bit;
        }
    }

    /// Whether the set contains the number.
    pub fn contains(&self, number: usize) -> bool {
        self.words.get(number / WORD).is_some_and(|word| word >> (number % WORD) & 1 == 1)
    }

    /// Adds all numbers of another set.
    pub fn union(&mut self, other: &Self) {
        self.words.resize(self.words.len().max(other.words.len()), 0);
        self.words.iter_mut().zip(&other.words).for_each(|(own, other)| *own |= other);
    }

    /// The numbers in both sets, ascending.
    pub fn intersection(&self, other: &Self) -> impl Iterator<Item = usize> {
        let words = self.words.iter().zip(&other.words).enumerate();
        words.flat_map(|(index, (one, two))| ones(one & two).map(move |bit| index * WORD + bit))
    }
}

impl FromIterator<usize> for BitSet {
    fn from_iter<T: IntoIterator<Item = usize>>(numbers: T) -> Self {
        let mut bits = Self::default();
        numbers.into_iter().for_each(|number| bits.set(number, true));
        bits
    }
}

/// Positions of the one bits in a word, ascending.
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(place)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(steps in vec((0usize..200, any::<bool>(), any::<bool>()), 0..100)) {
            let (mut bits, mut plain) = ([BitSet::default(), BitSet::default()], [BTreeSet::new(), BTreeSet::new()]);
            for (number, is_in, which) in steps {
                let which = usize::from(which);
                bits[which].set(number, is_in);
                if is_in { plain[which].insert(number) } else { plain[which].remove(&number) };
                prop_assert_eq!(bits[which].contains(number), is_in);
            }
            let [one, two] = bits;
            let mut joined = one.clone();
            joined.union(&two);
            let union: Vec<usize> = plain[0].union(&plain[1]).copied().collect();
            prop_assert_eq!(joined.intersection(&joined).collect::<Vec<_>>(), union);
            let common: Vec<usize> = plain[0].intersection(&plain[1]).copied().collect();
            prop_assert_eq!(one.intersection(&two).collect::<Vec<_>>(), common);
            prop_assert_eq!(plain[0].iter().copied().collect::<BitSet>().intersection(&one).count(), plain[0].len());
        }
    }
}
