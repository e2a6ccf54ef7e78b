//! Refusal sampler: bounds what is written about requests that no engine got, whose number is up to
//! their clients. The first of each kind in a second are written whole, the others are counted.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::core::model::ids::TenantId;

/// Kind of refusals: what has a number of its own in each second. Tenants come from the
/// configuration and the other values from the program's own text, so that clients cannot make kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefusalKind {
    /// `clients` or `admin`.
    pub listener: &'static str,
    /// Tenant; absent = no known tenant.
    pub tenant: Option<TenantId>,
    /// Reason, as a stable code.
    pub reason: &'static str,
    /// Outcome of the requests; absent at the admin listener.
    pub outcome: Option<&'static str>,
    /// HTTP status that the clients got; absent at the admin listener.
    pub status: Option<u16>,
}

/// State of one kind.
#[derive(Debug, Default)]
struct KindState {
    /// The latest second with a refusal.
    second: u64,
    /// Refusals written whole in that second.
    written: u32,
    /// Refusals that were only counted, since the last report.
    counted: u64,
}

/// Sampler of refusals.
#[derive(Debug)]
pub(in crate::telemetry) struct RefusalSampler {
    /// Refusals of one kind that are written whole in a second.
    most: u32,
    /// Kinds since the last report.
    kinds: Mutex<BTreeMap<RefusalKind, KindState>>,
}

impl RefusalSampler {
    pub(in crate::telemetry) fn new(most: u32) -> Self {
        Self { most, kinds: Mutex::default() }
    }

    /// Counts a refusal; returns whether to log it in full. `second` may come from any clock; when it goes
    /// back, the refusal belongs to the latest second.
    pub(in crate::telemetry) fn count_and_sample(&self, kind: RefusalKind, second: u64) -> bool {
        let mut kinds = self.kinds.lock();
        let state = kinds.entry(kind).or_default();
        if second > state.second {
            (state.second, state.written) = (second, 0);
        }
        let is_logged = state.written < self.most;
        if is_logged {
            state.written += 1;
        } else {
            state.counted += 1;
        }
        is_logged
    }

    /// Takes the numbers of refusals that were only counted since the last call. Forgets the kinds whose
    /// latest refusal was before `second`.
    pub(in crate::telemetry) fn take_counted(&self, second: u64) -> Vec<(RefusalKind, u64)> {
        let mut counted = Vec::new();
        self.kinds.lock().retain(|kind, state| {
            if state.counted > 0 {
                counted.push((*kind, std::mem::take(&mut state.counted)));
            }
            state.second >= second
        });
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: RefusalKind = RefusalKind {
        listener: "clients",
        tenant: None,
        reason: "missing_api_key",
        outcome: Some("client_error"),
        status: Some(401),
    };

    fn passed(sampler: &RefusalSampler, kind: RefusalKind, second: u64, refusals: usize) -> usize {
        (0..refusals).filter(|_| sampler.count_and_sample(kind, second)).count()
    }

    #[test]
    fn the_first_of_a_second_pass_and_the_others_are_counted() {
        let sampler = RefusalSampler::new(10);
        assert_eq!(passed(&sampler, KIND, 0, 3), 3);
        assert_eq!(passed(&sampler, KIND, 0, 100), 7);
        let other = RefusalKind { tenant: Some(TenantId::new(1)), ..KIND };
        assert_eq!(passed(&sampler, other, 0, 11), 10, "another kind has its own");
        assert_eq!(sampler.take_counted(1), [(KIND, 93), (other, 1)]);
        assert_eq!(passed(&sampler, KIND, 1, 12), 10);
        assert_eq!(passed(&sampler, KIND, 0, 3), 0, "a clock that goes back counts for the latest second");
        assert_eq!(sampler.take_counted(1), [(KIND, 5)]);
        assert_eq!(passed(&sampler, KIND, 1, 2), 0, "a report in between begins no second");
        assert_eq!(sampler.take_counted(9), [(KIND, 2)]);
        assert_eq!(sampler.take_counted(9), []);
    }

    #[test]
    fn kinds_of_earlier_seconds_are_forgotten() {
        let sampler = RefusalSampler::new(1);
        for tenant in 0..1_000 {
            assert!(sampler.count_and_sample(RefusalKind { tenant: Some(TenantId::new(tenant)), ..KIND }, 5));
        }
        assert!(sampler.count_and_sample(KIND, 6));
        assert_eq!(sampler.take_counted(6), []);
        assert_eq!(sampler.kinds.lock().len(), 1);
    }
}
