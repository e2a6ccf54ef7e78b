//! Id table: named rows with ids that stay the same over every reload of the policy.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Names without a row that keep their ids. There are more names only after this many replicas have
/// come and gone, each with a name of its own.
const MAX_REMEMBERED_NAMES: usize = 4096;

/// Rows by id and by name. The name of a removed row stays, so that the row gets the same id when
/// it comes back. Beyond `MAX_REMEMBERED_NAMES` such names, new names get the ids of the names that have
/// been without a row for longest.
#[derive(Debug, Clone)]
pub struct IdTable<I, T> {
    rows: Vec<TableSlot<T>>,
    by_name: HashMap<Arc<str>, I>,
    /// Ids that new names may get, the next one last.
    spare: Vec<I>,
}

#[derive(Debug, Clone)]
struct TableSlot<T> {
    name: Arc<str>,
    row: Option<T>,
    /// Number of successive tables in which the name was known and not used.
    idle: u32,
}

impl<I, T> Default for IdTable<I, T> {
    fn default() -> Self {
        Self { rows: Vec::new(), by_name: HashMap::new(), spare: Vec::new() }
    }
}

impl<I: Copy + From<usize> + Into<usize>, T> IdTable<I, T> {
    /// An empty table that remembers the names and ids of `previous`.
    pub fn successor(previous: &Self) -> Self {
        let slot = |slot: &TableSlot<T>| {
            let idle = if slot.row.is_some() { 0 } else { slot.idle.saturating_add(1) };
            TableSlot { name: Arc::clone(&slot.name), row: None, idle }
        };
        let rows: Vec<TableSlot<T>> = previous.rows.iter().map(slot).collect();
        let spare = reusable_ids(&rows).into_iter().map(I::from).collect();
        Self { rows, by_name: previous.by_name.clone(), spare }
    }

    /// The id that `name` has or gets now. The row itself may still be absent.
    pub fn id_or_new(&mut self, name: &str) -> I {
        if let Some(id) = self.by_name.get(name) {
            self.rows[(*id).into()].idle = 0;
            return *id;
        }
        let name: Arc<str> = name.into();
        let slot = TableSlot { name: Arc::clone(&name), row: None, idle: 0 };
        let id = match self.next_spare() {
            Some(id) => {
                let old = std::mem::replace(&mut self.rows[id.into()], slot);
                self.by_name.remove(&old.name);
                id
            }
            None => {
                self.rows.push(slot);
                I::from(self.rows.len() - 1)
            }
        };
        self.by_name.insert(name, id);
        id
    }

    /// The next id to reuse, whose old name has not been used again.
    fn next_spare(&mut self) -> Option<I> {
        while let Some(id) = self.spare.pop() {
            if self.rows[id.into()].idle > 0 {
                return Some(id);
            }
        }
        None
    }

    /// Sets the row called `name` and returns its id.
    pub fn insert(&mut self, name: &str, row: T) -> I {
        let id = self.id_or_new(name);
        self.rows[id.into()].row = Some(row);
        id
    }

    /// The row with the id; `None` when it was removed or never set.
    pub fn get(&self, id: I) -> Option<&T> {
        self.rows.get(id.into()).and_then(|slot| slot.row.as_ref())
    }

    /// The id of a present row.
    pub fn id(&self, name: &str) -> Option<I> {
        let id = *self.by_name.get(name)?;
        self.get(id).map(|_| id)
    }

    /// The name of an id, also of a removed row; `""` for an id that this table never gave.
    pub fn name(&self, id: I) -> &str {
        self.rows.get(id.into()).map_or("", |slot| &slot.name)
    }

    /// The present rows in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (I, &str, &T)> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(index, slot)| Some((I::from(index), &*slot.name, slot.row.as_ref()?)))
    }

    /// Whether both tables have rows under the same ids, and each two are the `same`.
    pub fn agrees_with(&self, other: &Self, same: impl Fn(&T, &T) -> bool) -> bool {
        (0..self.rows.len().max(other.rows.len())).map(I::from).all(|id| {
            match (self.get(id), other.get(id)) {
                (Some(one), Some(two)) => same(one, two),
                (one, two) => one.is_none() && two.is_none(),
            }
        })
    }

    /// Whether this table has every row of `before` under its id, each two are the `same`, and each row that it has
    /// beside them is `plain`.
    pub fn extends(&self, before: &Self, same: impl Fn(&T, &T) -> bool, plain: impl Fn(&T) -> bool) -> bool {
        (0..self.rows.len().max(before.rows.len())).map(I::from).all(|id| {
            match (self.get(id), before.get(id)) {
                (Some(one), Some(two)) => same(one, two),
                (Some(one), None) => plain(one),
                (None, two) => two.is_none(),
            }
        })
    }

    /// The number of ids ever given: ids are `0..capacity()`.
    pub fn capacity(&self) -> usize {
        self.rows.len()
    }
}

/// Wire form of a table: name, idle count and row of each id, then the spare ids. A row is a list of one,
/// since rows of the type `()` look like absent ones.
type WireTable<N, R> = (Vec<(N, u32, Vec<R>)>, Vec<usize>);

impl<I: Copy + Into<usize>, T: Serialize> Serialize for IdTable<I, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let rows = self.rows.iter().map(|slot| {
            let row: Vec<&T> = slot.row.iter().collect();
            (&*slot.name, slot.idle, row)
        });
        let form: WireTable<&str, &T> = (rows.collect(), self.spare.iter().map(|id| (*id).into()).collect());
        form.serialize(to)
    }
}

impl<'de, I: Copy + From<usize>, T: Deserialize<'de>> Deserialize<'de> for IdTable<I, T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (rows, spare) = WireTable::<String, T>::deserialize(from)?;
        let slot = |(name, idle, row): (String, u32, Vec<T>)| TableSlot {
            name: name.into(),
            row: row.into_iter().next(),
            idle,
        };
        let rows: Vec<TableSlot<T>> = rows.into_iter().map(slot).collect();
        let by_name = rows.iter().enumerate().map(|(id, slot)| (Arc::clone(&slot.name), I::from(id)));
        Ok(Self { by_name: by_name.collect(), rows, spare: spare.into_iter().map(I::from).collect() })
    }
}

/// Ids that may be reused, beyond those that are remembered; the longest without a row last.
fn reusable_ids<T>(rows: &[TableSlot<T>]) -> Vec<usize> {
    let mut idle: Vec<(u32, usize)> =
        rows.iter().enumerate().filter(|(_, slot)| slot.idle > 0).map(|(id, slot)| (slot.idle, id)).collect();
    if idle.len() <= MAX_REMEMBERED_NAMES {
        return Vec::new();
    }
    idle.sort_unstable();
    idle.into_iter().skip(MAX_REMEMBERED_NAMES).map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::TenantId;

    #[test]
    fn ids_survive_removal_and_return() {
        let mut first: IdTable<TenantId, u8> = IdTable::default();
        let a = first.insert("a", 1);
        let b = first.insert("b", 2);

        let mut second = IdTable::successor(&first);
        assert_eq!(second.insert("b", 3), b);
        assert_eq!(second.get(a), None);
        assert_eq!(second.id("a"), None);
        assert_eq!(second.name(a), "a");
        let c = second.insert("c", 4);
        assert_eq!(second.insert("a", 5), a);
        let rows: Vec<_> = second.iter().map(|(id, name, row)| (id, name.to_owned(), *row)).collect();
        assert_eq!(rows, [(a, "a".to_owned(), 5), (b, "b".to_owned(), 3), (c, "c".to_owned(), 4)]);
    }
    #[test]
    fn names_that_come_and_go_for_ever_take_no_room_for_ever() {
        const BATCH: usize = 512;
        let mut table: IdTable<TenantId, usize> = IdTable::default();
        let stays = table.insert("stays", 0);
        for round in 0..3 * MAX_REMEMBERED_NAMES / BATCH {
            let mut next = IdTable::successor(&table);
            assert_eq!(next.insert("stays", round), stays);
            for number in 0..BATCH {
                let name = format!("passes {round} {number}");
                let id = next.insert(&name, round);
                assert_eq!((next.name(id), next.get(id), next.id(&name)), (&*name, Some(&round), Some(id)));
            }
            assert_eq!(next.iter().count(), BATCH + 1);
            assert_eq!(next.by_name.len(), next.rows.len());
            table = next;
        }
        assert!(table.capacity() <= MAX_REMEMBERED_NAMES + 2 * BATCH + 1, "{}", table.capacity());
        let mut next = IdTable::successor(&IdTable::successor(&table));
        let (recent, id) = ("passes 23 7", table.id("passes 23 7"));
        assert_eq!(Some(next.insert(recent, 1)), id, "it was there a moment ago");
    }
}
