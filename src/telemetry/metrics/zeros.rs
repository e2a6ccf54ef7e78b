//! Zeros: counters start at 0 for the label values that are known before their first event, since
//! `increase()` and `rate()` miss an event with which a counter appears. The values are the names of
//! the configuration and this program's own codes.

use std::collections::{HashMap, HashSet};

use metrics::Label;
use metrics_exporter_prometheus::PrometheusRecorder;
use parking_lot::Mutex;

use crate::core::limits::rule::{LimitId, LimitScope};
use crate::core::model::ids::ModelId;
use crate::core::model::policy::Policy;
use crate::telemetry::metrics::catalogue::{self, LabelKey, ZeroSeries};
use crate::telemetry::metrics::labels;
use crate::telemetry::metrics::recorder::counter;

/// Most series of one counter that start at 0, over all reloads. Further ones start with their
/// first event.
const MAX_ROWS: usize = 1_000;

/// Pairs of models whose counters have both as labels.
#[derive(Debug, Clone, Default)]
pub struct ModelPairs {
    /// A model and one that may serve its requests instead.
    pub fallbacks: Vec<(ModelId, ModelId)>,
    /// A model and the one that gets copies of its requests.
    pub shadows: Vec<(ModelId, ModelId)>,
}

/// Series that started at 0, by metric.
#[derive(Debug, Default)]
pub(super) struct Zeros(Mutex<HashMap<&'static str, HashSet<Vec<Label>>>>);

impl Zeros {
    /// Starts the counters of the policy's names, and those that need none.
    pub(super) fn register(&self, recorder: &PrometheusRecorder, policy: &Policy, pairs: &ModelPairs) {
        let mut started = self.0.lock();
        for metric in catalogue::all() {
            let rows = started.entry(metric.name).or_default();
            for subject in subjects(metric.zeros, policy, pairs) {
                for labels in combinations(metric.labels, &subject) {
                    if rows.len() < MAX_ROWS && rows.insert(labels.clone()) {
                        let _starts_at_zero = counter(recorder, metric, labels);
                    }
                }
            }
        }
    }
}

/// Labels of each subject whose series start at 0.
fn subjects(zeros: ZeroSeries, policy: &Policy, pairs: &ModelPairs) -> Vec<Vec<Label>> {
    let pool = |name: &str| vec![named("pool", name)];
    let classes = || policy.classes.iter().filter(|(_, _, class)| !class.scavenger);
    let classes = || classes().map(|(_, name, _)| named("class", name));
    let models = || policy.models.iter().map(|(_, name, _)| named("model", name));
    match zeros {
        ZeroSeries::None => Vec::new(),
        ZeroSeries::Codes => vec![Vec::new()],
        ZeroSeries::Pools => policy.pools.iter().map(|(_, name, _)| pool(name)).collect(),
        ZeroSeries::PoolsWithSleep => {
            let with_sleep = policy.pools.iter().filter(|(_, _, row)| row.sleep.is_some());
            with_sleep.map(|(_, name, _)| pool(name)).collect()
        }
        ZeroSeries::Models => models().map(|model| vec![model]).collect(),
        ZeroSeries::ObjectiveClasses => classes().map(|class| vec![class]).collect(),
        ZeroSeries::ObjectiveClassModels => {
            models().flat_map(|model| classes().map(move |class| vec![class, model.clone()])).collect()
        }
        ZeroSeries::Fallbacks => of_pairs(policy, &pairs.fallbacks, ["from", "to"]),
        ZeroSeries::Shadows => of_pairs(policy, &pairs.shadows, ["model", "to"]),
        ZeroSeries::TenantLimits => of_limits(policy),
        ZeroSeries::Owners => labels::owners(policy).map(|owner| owner.labels(policy)).collect(),
    }
}

fn of_pairs(policy: &Policy, pairs: &[(ModelId, ModelId)], keys: [&'static str; 2]) -> Vec<Vec<Label>> {
    let [first, second] = keys;
    let labels = |(one, other): &(ModelId, ModelId)| {
        vec![named(first, policy.models.name(*one)), named(second, policy.models.name(*other))]
    };
    pairs.iter().map(labels).collect()
}

fn of_limits(policy: &Policy) -> Vec<Vec<Label>> {
    let labels = |id: LimitId| {
        let LimitId { scope, unit, period, shadow } = id;
        let (LimitScope::Tenant(tenant) | LimitScope::Model(tenant, _)) = scope else { return None };
        Some(vec![
            named("tenant", policy.tenants.name(tenant)),
            code("scope", scope.name()),
            code("unit", unit.name()),
            code("period", period.name()),
            code("shadow", if shadow { "true" } else { "false" }),
        ])
    };
    policy.limits.iter().filter_map(|rule| labels(rule.id)).collect()
}

/// Series of a subject: its own labels, and every combination of the codes of the others.
fn combinations(keys: &[LabelKey], subject: &[Label]) -> Vec<Vec<Label>> {
    keys.iter().fold(vec![Vec::new()], |rows, key| {
        let values: Vec<Label> = match subject.iter().find(|label| label.key() == key.name) {
            Some(label) => vec![label.clone()],
            None => (key.codes)().into_iter().map(|value| code(key.name, value)).collect(),
        };
        let longer = |row: &Vec<Label>, value: &Label| row.iter().chain([value]).cloned().collect();
        rows.iter().flat_map(|row| values.iter().map(move |value| longer(row, value))).collect()
    })
}

fn code(key: &'static str, value: &'static str) -> Label {
    Label::from_static_parts(key, value)
}

fn named(key: &'static str, name: &str) -> Label {
    Label::new(key, name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::core::limits::rule::{LimitPeriod, LimitRule, LimitUnit};
    use crate::core::model::event::{EngineFault, PreemptReason, RejectReason};
    use crate::core::model::ids::{ReplicaId, TenantId};
    use crate::core::model::policy::sleep::SleepPolicy;
    use crate::core::model::policy::{Model, Pool};
    use crate::telemetry::Telemetry;
    use crate::telemetry::event::{
        AuthFailed, ConfigReloaded, ConnectionRefused, HandshakeFailed, LimitMet, ModelMismatch, ProbeFailed,
        ReplicaEjected, ReplicaReadmitted, RequestFellBack, RequestPreempted, RequestRequeued, ScrapeFailed,
        ShadowSkipped, SleepOrderFailed, StreamBroken,
    };
    use crate::telemetry::fixtures::{load, policy, render, samples, success, telemetry};
    use crate::telemetry::summary::{RequestIds, RequestOutcome, RequestSummary};

    /// The series of counters, with labels.
    fn counters(telemetry: &Telemetry) -> BTreeSet<String> {
        let text = render(telemetry);
        let of_counters = |key: &&&str| key.split('{').next().unwrap().ends_with("_total");
        samples(&text).keys().filter(of_counters).map(|key| (*key).to_owned()).collect()
    }

    #[test]
    fn events_of_known_names_add_no_series() {
        let mut policy = policy(1);
        let pools = policy.models.get(ModelId::new(0)).unwrap().pools.clone();
        let small = policy.models.insert("small", Model { pools, max_model_len: None });
        let rule = LimitId {
            scope: LimitScope::Tenant(TenantId::new(0)),
            unit: LimitUnit::Requests,
            period: LimitPeriod::Minute,
            shadow: false,
        };
        policy.limits = vec![LimitRule { id: rule, amount: 5 }];
        let pool = policy.pools.id("a100").unwrap();
        policy.pools.insert(
            "a100",
            Pool {
                sleep: Some(SleepPolicy {
                    after_idle: Duration::from_secs(60),
                    keep_awake: 0,
                    wake_timeout: Duration::from_secs(60),
                }),
                ..policy.pools.get(pool).unwrap().clone()
            },
        );
        let both = vec![(ModelId::new(0), small)];
        let pairs = &ModelPairs { fallbacks: both.clone(), shadows: both };
        let telemetry = Telemetry::for_tests();
        ConfigReloaded { policy: &Arc::new(policy), digest: "d", restart_needed: &[], changed: &[], pairs }
            .emit(&telemetry);
        let before = counters(&telemetry);
        for metric in catalogue::all().filter(|metric| metric.zeros != ZeroSeries::None) {
            let is_its = |key: &String| key.split('{').next() == Some(metric.name);
            assert!(before.iter().any(is_its), "{} has no zeros", metric.name);
        }

        let (replica, fault, problem) = (ReplicaId::new(0), EngineFault::Refused, "refused");
        let (model, why) = (ModelId::new(0), PreemptReason::Stalled);
        let ids = RequestIds { request: "r", ..RequestIds::default() };
        success().emit(&telemetry);
        AuthFailed { reason: "unknown", key_id: None }.emit(&telemetry);
        ConnectionRefused { reason: "bare_lf" }.emit(&telemetry);
        HandshakeFailed { listener: "admin", reason: "timeout" }.emit(&telemetry);
        LimitMet { ids, tenant: Some(TenantId::new(0)), rule, is_logged: true }.emit(&telemetry);
        ReplicaEjected { replica, fault }.emit(&telemetry);
        ReplicaReadmitted { replica, after: Duration::ZERO }.emit(&telemetry);
        ProbeFailed { replica, problem }.emit(&telemetry);
        ScrapeFailed { replica, problem, first: true }.emit(&telemetry);
        ModelMismatch { replica, expected: "llama", served: &[] }.emit(&telemetry);
        RequestRequeued { ids, replica, fault, attempt: 1 }.emit(&telemetry);
        RequestPreempted { ids, replica, why, attempt: 1 }.emit(&telemetry);
        StreamBroken { ids, replica, fault, output_tokens: 7 }.emit(&telemetry);
        RequestFellBack { ids, from: model, to: small, why: RejectReason::NoReplica }.emit(&telemetry);
        ShadowSkipped { model, to: small, reason: "memory" }.emit(&telemetry);
        SleepOrderFailed { replica, order: "wake", problem }.emit(&telemetry);
        let after = counters(&telemetry);
        assert_eq!(after.difference(&before).collect::<Vec<_>>(), Vec::<&String>::new());

        // A refusal has its own row from the start; that of its tenant comes with the first one.
        RequestSummary { outcome: RequestOutcome::Rejected, reason: Some("queue_full"), ..success() }
            .emit(&telemetry);
        let new = counters(&telemetry);
        let new: Vec<_> = new.difference(&before).collect();
        assert!(new.len() == 1 && new[0].starts_with("penstock_requests_total{"), "{new:?}");
    }

    #[test]
    fn a_reload_adds_its_own_names_and_keeps_the_counts() {
        let telemetry = telemetry(1);
        ReplicaEjected { replica: ReplicaId::new(0), fault: EngineFault::Reset }.emit(&telemetry);
        load(&telemetry, policy(2), "d2");
        let text = render(&telemetry);
        let of = |pool: &str| format!(r#"penstock_ejections_total{{pool="{pool}",fault="reset"}}"#);
        assert_eq!(samples(&text)[&*of("a100")], 1.0);
        let tokens = r#"penstock_tokens_total{tenant="team-1",model="llama",kind="input",source="exact"}"#;
        assert_eq!(samples(&text)[tokens], 0.0);
    }

    #[test]
    fn the_zeros_of_a_counter_are_bounded() {
        let telemetry = telemetry(3 * MAX_ROWS);
        let of = |name: &str, text: &str| samples(text).keys().filter(|key| key.starts_with(name)).count();
        let text = render(&telemetry);
        assert_eq!(of("penstock_requests_total{", &text), MAX_ROWS);
        assert_eq!(of("penstock_tokens_total{", &text), MAX_ROWS);
        assert!(of("penstock_cost_total{", &text) < MAX_ROWS);
    }
}
