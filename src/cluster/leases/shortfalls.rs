//! Lease shortfalls: limits for which this gateway needs a larger lease, by the names that all gateways
//! have for them.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use crate::cluster::leases::reports::scope_of;
use crate::core::limits::rule::LimitId;
use crate::core::model::policy::Policy;

/// Limits whose lack is told to the others at once.
const MAX_TOLD: usize = 64;

#[derive(Debug, Default)]
pub(in crate::cluster) struct LeaseShortfalls {
    /// Generation of the policy that the names are of.
    generation: u64,
    names: HashMap<String, LimitId>,
    /// Limits of which this gateway misses something, and has not told so since it noticed.
    missed: BTreeSet<String>,
    /// The last name that was told: those after it are told next.
    last: String,
}

impl LeaseShortfalls {
    /// Takes the limits of a policy over. Returns whether it is a new one.
    pub(in crate::cluster) fn learn(&mut self, policy: &Policy) -> bool {
        if self.generation == policy.generation {
            return false;
        }
        let names = policy.limits.iter().filter_map(|rule| Some((name_of(rule.id, policy)?, rule.id)));
        (self.generation, self.names) = (policy.generation, names.collect());
        self.missed.retain(|name| self.names.contains_key(name));
        true
    }

    /// The limit of this name; `None` if the policy has none.
    pub(in crate::cluster) fn id(&self, name: &str) -> Option<LimitId> {
        self.names.get(name).copied()
    }

    /// Notes whether this gateway misses something of the limit.
    pub(in crate::cluster) fn note(&mut self, id: LimitId, misses: bool, policy: &Policy) {
        if !misses && self.missed.is_empty() {
            return;
        }
        match name_of(id, policy) {
            Some(name) if misses => _ = self.missed.insert(name),
            Some(name) => _ = self.missed.remove(&name),
            None => {}
        }
    }

    /// Names to tell now: in turn, so that each one's time comes.
    pub(in crate::cluster) fn take(&mut self) -> Vec<String> {
        let after = (Bound::Excluded(self.last.clone()), Bound::Unbounded);
        let upto = (Bound::Unbounded, Bound::Included(self.last.clone()));
        let turn = self.missed.range::<String, _>(after).chain(self.missed.range::<String, _>(upto));
        let told: Vec<String> = turn.take(MAX_TOLD).cloned().collect();
        if let Some(last) = told.last() {
            self.last.clone_from(last);
        }
        told.iter().for_each(|name| _ = self.missed.remove(name));
        told
    }
}

/// Name of a limit for the other gateways.
fn name_of(id: LimitId, policy: &Policy) -> Option<String> {
    let shadow = if id.shadow { ":shadow" } else { "" };
    Some(format!("{}:{}:{}{shadow}", scope_of(id, policy)?, id.unit.name(), id.period.name()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::load::load_str_with;
    use crate::config::secret::MachineSecrets;

    #[test]
    fn what_many_limits_miss_is_told_in_turn() {
        let tenants: Vec<String> = (0..150)
            .map(|at| format!("t{at:03}: {{weight: 1, limits: {{per_minute: {{requests: 9}}}}}}"))
            .collect();
        let text = format!(
            "{{version: 1, auth: {{mode: off, tenant: t000}}, tenants: {{{}}}, pools: {{p: {{engine: vllm, models: [m], replicas: ['http://127.0.0.1:9']}}}}}}",
            tenants.join(", ")
        );
        let outcome = load_str_with(&text, "test", Path::new("."), None, &MachineSecrets);
        let policy = outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings.policy;
        let mut missed = LeaseShortfalls::default();
        assert!(missed.learn(&policy) && !missed.learn(&policy));
        assert_eq!(policy.limits.len(), 150);
        let mut told = BTreeSet::new();
        for turn in 0..3 {
            // All of them go on missing something.
            policy.limits.iter().for_each(|rule| missed.note(rule.id, true, &policy));
            let names = missed.take();
            assert_eq!(names.len(), MAX_TOLD);
            told.extend(names);
            assert_eq!(told.len(), (64 * (turn + 1)).min(150));
        }
        // What is no longer missed is not told.
        let [first, second] = [policy.limits[0].id, policy.limits[1].id];
        policy.limits.iter().for_each(|rule| missed.note(rule.id, rule.id == first, &policy));
        missed.note(second, true, &policy);
        missed.note(second, false, &policy);
        let names = missed.take();
        assert_eq!(names.iter().filter_map(|name| missed.id(name)).collect::<Vec<_>>(), [first]);
        assert_eq!(missed.take(), Vec::<String>::new());
    }
}
