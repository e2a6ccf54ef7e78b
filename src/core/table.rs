//! Named rows with ids that stay the same over every reload of the policy.

use std::collections::HashMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

/// Rows by id and by name. A name keeps its id for ever: a row that a reload
/// removes leaves its name behind, and gets the same id when it comes back.
#[derive(Debug, Clone)]
pub struct Table<I, T> {
    rows: Vec<(Arc<str>, Option<T>)>,
    by_name: HashMap<Arc<str>, I>,
    id: PhantomData<I>,
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Self {
        Self { rows: Vec::new(), by_name: HashMap::new(), id: PhantomData }
    }
}

impl<I: Copy + From<usize> + Into<usize>, T> Table<I, T> {
    /// An empty table that remembers the names (and ids) of `previous`.
    #[must_use]
    pub fn successor(previous: &Self) -> Self {
        Self {
            rows: previous.rows.iter().map(|(name, _)| (Arc::clone(name), None)).collect(),
            by_name: previous.by_name.clone(),
            id: PhantomData,
        }
    }

    /// The id that `name` has or would get; the row itself may still be absent.
    pub fn reserve(&mut self, name: &str) -> I {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let id = I::from(self.rows.len());
        let name: Arc<str> = name.into();
        self.rows.push((Arc::clone(&name), None));
        self.by_name.insert(name, id);
        id
    }

    /// Puts the row called `name` in place and returns its id.
    pub fn insert(&mut self, name: &str, row: T) -> I {
        let id = self.reserve(name);
        self.rows[id.into()].1 = Some(row);
        id
    }

    /// The row, unless it was removed or never there.
    #[must_use]
    pub fn get(&self, id: I) -> Option<&T> {
        self.rows.get(id.into()).and_then(|(_, row)| row.as_ref())
    }

    /// The id of a present row.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<I> {
        let id = *self.by_name.get(name)?;
        self.get(id).map(|_| id)
    }

    /// The name that goes with the id, also of a removed row; `""` for an id
    /// this table never gave.
    #[must_use]
    pub fn name(&self, id: I) -> &str {
        self.rows.get(id.into()).map_or("", |(name, _)| name)
    }

    /// The present rows in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (I, &str, &T)> {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(index, (name, row))| Some((I::from(index), &**name, row.as_ref()?)))
    }

    /// How many ids were ever given: ids are `0..capacity()`.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.rows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::TenantId;

    #[test]
    fn ids_survive_removal_and_return() {
        let mut first: Table<TenantId, u8> = Table::default();
        let a = first.insert("a", 1);
        let b = first.insert("b", 2);

        let mut second = Table::successor(&first);
        assert_eq!(second.insert("b", 3), b);
        assert_eq!(second.get(a), None);
        assert_eq!(second.id("a"), None);
        assert_eq!(second.name(a), "a");
        let c = second.insert("c", 4);
        assert_eq!(second.insert("a", 5), a);
        let rows: Vec<_> = second.iter().map(|(id, name, row)| (id, name.to_owned(), *row)).collect();
        assert_eq!(rows, [(a, "a".to_owned(), 5), (b, "b".to_owned(), 3), (c, "c".to_owned(), 4)]);
    }
}
