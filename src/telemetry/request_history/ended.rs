//! Ended requests: the last ones, of which one tenant has at most half.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::core::model::ids::TenantId;

/// Number of ended requests in the history.
pub const MAX_STORIES: usize = 10_000;

/// The last [`MAX_STORIES`] requests that ended, numbered in the order of their ends. `T` is what is
/// kept of each.
#[derive(Debug)]
pub(super) struct EndedRequests<T> {
    next: u64,
    requests: BTreeMap<u64, EndedRequest<T>>,
    /// Numbers of each tenant's requests, in order.
    of_tenant: HashMap<TenantId, VecDeque<u64>>,
}

#[derive(Debug)]
struct EndedRequest<T> {
    tenant: TenantId,
    kept: T,
}

impl<T> Default for EndedRequests<T> {
    fn default() -> Self {
        Self { next: 0, requests: BTreeMap::new(), of_tenant: HashMap::new() }
    }
}

impl<T: Clone> EndedRequests<T> {
    pub(super) fn push(&mut self, tenant: TenantId, kept: T) {
        self.make_room(tenant);
        self.requests.insert(self.next, EndedRequest { tenant, kept });
        self.of_tenant.entry(tenant).or_default().push_back(self.next);
        self.next += 1;
    }

    /// Drops the tenant's own oldest request if it has half of all, else the oldest of all.
    fn make_room(&mut self, tenant: TenantId) {
        if self.requests.len() < MAX_STORIES {
            return;
        }
        let own = self.of_tenant.get(&tenant).filter(|own| own.len() >= MAX_STORIES / 2);
        let oldest = own.and_then(|own| own.front()).or(self.requests.keys().next());
        let Some(dropped) = oldest.copied().and_then(|number| self.requests.remove(&number)) else { return };
        if let Some(numbers) = self.of_tenant.get_mut(&dropped.tenant) {
            numbers.pop_front();
            if numbers.is_empty() {
                self.of_tenant.remove(&dropped.tenant);
            }
        }
    }

    /// The last `most` requests before the one with this number, the last one first, with their
    /// numbers.
    pub(super) fn before(&self, number: u64, most: usize) -> Vec<(u64, T)> {
        let page = self.requests.range(..number).rev().take(most);
        page.map(|(number, request)| (*number, request.kept.clone())).collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let counts: usize = self.of_tenant.values().map(VecDeque::len).sum();
        assert_eq!(counts, self.requests.len());
        counts
    }
}
