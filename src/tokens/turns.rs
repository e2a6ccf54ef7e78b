//! Turns of tenants: a bounded queue from which each tenant gets one entry in turn.

use std::collections::VecDeque;

/// The most entries of one tenant.
const MAX_OF_TENANT: usize = 16;
/// The most entries of all tenants.
const MAX: usize = 256;

/// A bounded queue. Each tenant's entries leave in the order in which they came.
#[derive(Debug)]
pub(super) struct TenantTurns<T> {
    /// The tenants with entries, the next one first.
    tenants: VecDeque<(u32, VecDeque<T>)>,
    len: usize,
}

impl<T> Default for TenantTurns<T> {
    fn default() -> Self {
        Self { tenants: VecDeque::new(), len: 0 }
    }
}

impl<T> TenantTurns<T> {
    /// Adds an entry. Returns false, and drops the entry, if the tenant or the queue has too many.
    pub(super) fn push(&mut self, tenant: u32, entry: T) -> bool {
        if self.len >= MAX {
            return false;
        }
        match self.tenants.iter_mut().find(|(id, _)| *id == tenant) {
            Some((_, own)) if own.len() >= MAX_OF_TENANT => return false,
            Some((_, own)) => own.push_back(entry),
            None => self.tenants.push_back((tenant, VecDeque::from([entry]))),
        }
        self.len += 1;
        true
    }

    /// Takes the next entry of the tenant whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        let (tenant, mut own) = self.tenants.pop_front()?;
        let entry = own.pop_front()?;
        if !own.is_empty() {
            self.tenants.push_back((tenant, own));
        }
        self.len -= 1;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_take_turns_and_none_fills_the_queue() {
        let mut turns = TenantTurns::default();
        let taken = (0..40).filter(|number| turns.push(7, (7, *number))).count();
        assert_eq!(taken, MAX_OF_TENANT);
        assert!(turns.push(8, (8, 0)) && turns.push(8, (8, 1)));
        let order: Vec<_> = (0..5).filter_map(|_| turns.pop()).collect();
        assert_eq!(order, [(7, 0), (8, 0), (7, 1), (8, 1), (7, 2)]);
        let others = (100..200).map(|tenant| (0..9).filter(|_| turns.push(tenant, (tenant, 0))).count());
        assert!(others.sum::<usize>() < MAX);
        assert_eq!((0..2 * MAX).filter_map(|_| turns.pop()).count(), MAX);
        assert_eq!((turns.pop(), turns.len), (None, 0));
    }
}
