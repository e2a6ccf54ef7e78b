//! Queue bounds: whether a job may wait.

use crate::model::event::{QueueBound, RejectReason};
use crate::model::ids::TenantId;
use crate::model::policy::{Policy, QueueBounds};
use crate::queue::{Queue, QueuedLoad};

/// The first bound that the load exceeds.
pub fn exceeded_bound(load: &QueuedLoad, bounds: &QueueBounds) -> Option<QueueBound> {
    if load.requests > bounds.requests {
        return Some(QueueBound::Requests);
    }
    if load.bytes > u128::from(bounds.bytes) {
        return Some(QueueBound::Bytes);
    }
    (load.tokens > u128::from(bounds.tokens)).then_some(QueueBound::Tokens)
}

/// The bound that the tenant's newest job, already counted in the queue, exceeds. Bounds limit what
/// waits: a job that was dispatched at once is never checked.
pub fn exceeded_queue_bound(policy: &Policy, queue: &Queue, tenant: TenantId) -> Option<RejectReason> {
    let own =
        policy.tenants.get(tenant).and_then(|row| exceeded_bound(&queue.tenant_load(tenant), &row.bounds));
    own.map(RejectReason::TenantQueueFull)
        .or_else(|| exceeded_bound(&queue.total(), &policy.bounds).map(RejectReason::QueueFull))
}

/// Whether one more small request may wait. An empty queue always has space, since the request may
/// be dispatched at once.
pub fn has_space(total: &QueuedLoad, bounds: &QueueBounds) -> bool {
    let next = QueuedLoad { requests: total.requests + 1, bytes: total.bytes + 1, tokens: total.tokens + 1 };
    total.requests == 0 || exceeded_bound(&next, bounds).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_named() {
        let bounds = QueueBounds { requests: 2, bytes: 10, tokens: 10 };
        let load = |requests, bytes, tokens| QueuedLoad { requests, bytes, tokens };
        assert_eq!(exceeded_bound(&load(2, 10, 10), &bounds), None);
        assert_eq!(exceeded_bound(&load(3, 10, 10), &bounds), Some(QueueBound::Requests));
        assert_eq!(exceeded_bound(&load(2, 11, 10), &bounds), Some(QueueBound::Bytes));
        assert_eq!(exceeded_bound(&load(2, 10, 11), &bounds), Some(QueueBound::Tokens));
    }

    #[test]
    fn an_empty_queue_always_lets_one_try() {
        let none = QueueBounds { requests: 0, bytes: 0, tokens: 0 };
        assert!(has_space(&QueuedLoad::default(), &none));
        assert!(!has_space(&QueuedLoad { requests: 1, bytes: 1, tokens: 1 }, &none));
    }
}
