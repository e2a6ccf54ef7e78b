//! Zeros: counters start at 0 for the label values that are known before their first event, since
//! `increase()` and `rate()` miss an event with which a counter appears. The values are the names of
//! the configuration and this program's own codes.

use std::collections::{HashMap, HashSet};

use metrics::Label;
use metrics_exporter_prometheus::PrometheusRecorder;
use parking_lot::Mutex;

use crate::core::billing::bill::WasteCause;
use crate::core::limits::rule::{LimitId, LimitScope};
use crate::core::model::event::{EngineFault, PreemptReason, RejectReason};
use crate::core::model::ids::ModelId;
use crate::core::model::policy::Policy;
use crate::core::placement::unattainable::ObjectiveKind;
use crate::telemetry::metrics::catalogue::{self, Metric};
use crate::telemetry::metrics::labels;
use crate::telemetry::metrics::objectives::ObjectiveCounters;
use crate::telemetry::metrics::recorder::counter;
use crate::telemetry::summary::{RequestOutcome, ShadowSide};
use crate::tokens::CountSource;

/// Most series of one counter that start at 0, over all reloads. Further ones start with their
/// first event.
const MAX_ROWS: usize = 1_000;

/// Label with its known values.
type LabelValues = (&'static str, &'static [&'static str]);

/// Counters whose labels are all this program's own codes.
const FIXED: &[(Metric, &[LabelValues])] = &[
    (catalogue::REJECTIONS, &[("reason", &RejectReason::NAMES)]),
    // The code of a refusal that is not the scheduler's: there is no memory for the body.
    (catalogue::REJECTIONS, &[("reason", &["slow_down"])]),
    (
        catalogue::GUARDRAIL_CHECKS,
        &[
            ("stage", &["prompt", "answer"]),
            (
                "outcome",
                &[
                    "allowed",
                    "denied",
                    "busy",
                    "timeout",
                    "unreachable",
                    "bad_status",
                    "malformed",
                    "too_large",
                ],
            ),
        ],
    ),
    (
        catalogue::AUTH_FAILURES,
        &[(
            "reason",
            &[
                "missing",
                "malformed",
                "unknown",
                "mismatch",
                "expired",
                "throttled",
                "certificate_unknown",
                "token_malformed",
                "token_too_long",
                "token_issuer",
                "token_audience",
                "token_algorithm",
                "token_critical",
                "token_key_unknown",
                "token_signature",
                "token_expired",
                "token_not_yet",
                "token_not_mapped",
                "token_nameless",
                "token_keys_unavailable",
            ],
        )],
    ),
    (
        catalogue::ADMIN_REFUSALS,
        &[("reason", &["missing", "wrong", "expired", "certificate", "role", "host", "site", "throttled"])],
    ),
    (
        catalogue::CONNECTIONS_REFUSED,
        &[(
            "reason",
            &[
                "address",
                "place_needed",
                "proxy_header",
                "request_line",
                "version",
                "target",
                "connect",
                "host_missing",
                "host_repeated",
                "host_invalid",
                "host_mismatch",
                "header_name",
                "space_before_colon",
                "folding",
                "control_byte",
                "bare_lf",
                "length_invalid",
                "length_repeated",
                "length_and_encoding",
                "encoding",
                "head_too_large",
                "too_many_fields",
                "chunk_size",
                "chunk_extension",
                "chunk_end",
                "trailer",
                "head_timeout",
                "body_timeout",
                "body_cut_short",
                "stream_resets",
            ],
        )],
    ),
    (
        catalogue::HANDSHAKES_FAILED,
        &[
            ("listener", &["clients", "admin", "scale"]),
            ("reason", &["timeout", "certificate", "not_tls", "given_up", "protocol", "closed"]),
        ],
    ),
    (
        catalogue::SCALER_CALLS,
        &[
            ("code", &["ok", "invalid_argument", "not_found", "resource_exhausted", "unavailable"]),
            ("method", &["GetMetricSpec", "GetMetrics", "IsActive", "StreamIsActive", "StreamMetricSpec"]),
        ],
    ),
    (catalogue::LINES_KEPT_BACK, &[]),
    (catalogue::ANSWERS_CUT_OFF, &[]),
    (catalogue::ISSUER_FAILURES, &[]),
    (catalogue::AUDIT_LOST, &[]),
];

/// Counters of each pool, with their further label.
const OF_POOLS: &[(Metric, Option<LabelValues>)] = &[
    (catalogue::REQUEUES, Some(("fault", &EngineFault::NAMES))),
    (catalogue::STREAMS_BROKEN, Some(("fault", &EngineFault::NAMES))),
    (catalogue::EJECTIONS, Some(("fault", &EngineFault::NAMES))),
    (catalogue::EJECTIONS_SPARED, Some(("fault", &EngineFault::NAMES))),
    (catalogue::RECALLS, Some(("reason", &PreemptReason::NAMES))),
    (catalogue::CONTINUATIONS, Some(("outcome", &["continued", "failed"]))),
    (catalogue::REPLICA_CHANGES, Some(("change", &["joined", "left", "draining", "spot_notice"]))),
    (catalogue::READMISSIONS, None),
    (catalogue::PROBES_FAILED, None),
    (catalogue::SCRAPES_FAILED, None),
    (catalogue::MODEL_MISMATCHES, None),
    (catalogue::POOLS_EMPTIED, None),
    (catalogue::SOURCE_FAILURES, None),
    (catalogue::SCALER_CLAMPED, None),
];

/// Why a shadow copy is skipped before the scheduler has it. The scheduler's reasons are those of
/// refusals.
const SHADOW_SKIPS: [&str; 3] = ["placement", "in_flight", "memory"];

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
        let mut start = |metric: &Metric, labels: Vec<Label>| {
            let rows = started.entry(metric.name).or_default();
            if rows.len() < MAX_ROWS && rows.insert(labels.clone()) {
                let _starts_at_zero = counter(recorder, metric, labels);
            }
        };
        for (metric, dimensions) in FIXED {
            product(dimensions).into_iter().for_each(|labels| start(metric, labels));
        }
        for cause in WasteCause::ALL {
            start(&catalogue::WASTED_TOKENS, vec![code("reason", cause.name())]);
        }
        of_pools(policy, &mut start);
        of_models(policy, pairs, &mut start);
        of_limits(policy, &mut start);
        of_owners(policy, &mut start);
        for (_, name, _) in policy.classes.iter().filter(|(_, _, class)| !class.scavenger) {
            if started.entry(catalogue::OBJECTIVES.name).or_default().insert(vec![named("class", name)]) {
                ObjectiveCounters::register(recorder, &[named("class", name)]);
            }
        }
    }
}

fn of_pools(policy: &Policy, start: &mut impl FnMut(&Metric, Vec<Label>)) {
    for (_, name, row) in policy.pools.iter() {
        let pool = named("pool", name);
        for (metric, further) in OF_POOLS {
            match further {
                None => start(metric, vec![pool.clone()]),
                Some((key, values)) => {
                    values.iter().for_each(|value| start(metric, vec![pool.clone(), code(key, value)]));
                }
            }
        }
        for order in row.sleep.iter().flat_map(|_| ["sleep", "wake"]) {
            for outcome in ["done", "failed", "unknown"] {
                let labels = vec![code("order", order), code("outcome", outcome), pool.clone()];
                start(&catalogue::REST_ORDERS, labels);
            }
        }
    }
}

fn of_models(policy: &Policy, pairs: &ModelPairs, start: &mut impl FnMut(&Metric, Vec<Label>)) {
    for (_, name, _) in policy.models.iter() {
        for source in CountSource::ALL {
            start(&catalogue::PROMPT_COUNTS, vec![named("model", name), code("source", source.name())]);
        }
        for (_, class, _) in policy.classes.iter().filter(|(_, _, class)| !class.scavenger) {
            for aim in ObjectiveKind::ALL {
                let labels = vec![named("class", class), named("model", name), code("objective", aim.name())];
                start(&catalogue::PROMISES_UNKEPT, labels);
            }
        }
    }
    for (from, to) in &pairs.fallbacks {
        let [from, to] = [("from", from), ("to", to)].map(|(key, id)| named(key, policy.models.name(*id)));
        for reason in RejectReason::NAMES {
            start(&catalogue::FALLBACKS, vec![from.clone(), code("reason", reason), to.clone()]);
        }
    }
    for (model, to) in &pairs.shadows {
        let pair = [("model", model), ("to", to)].map(|(key, id)| named(key, policy.models.name(*id)));
        let with = |key, value| pair.iter().cloned().chain([code(key, value)]).collect::<Vec<_>>();
        for reason in SHADOW_SKIPS.into_iter().chain(RejectReason::NAMES) {
            start(&catalogue::SHADOW_SKIPPED, with("reason", reason));
        }
        for side in ShadowSide::NAMES {
            start(&catalogue::SHADOW_TOKENS, with("side", side));
            for outcome in RequestOutcome::ALL {
                let mut labels = with("side", side);
                labels.push(code("outcome", outcome.name()));
                start(&catalogue::SHADOW_REQUESTS, labels);
            }
        }
    }
}

/// Starts the counters of limits of tenants, on all models or on one. Whose the limits of keys are,
/// the policy does not say.
fn of_limits(policy: &Policy, start: &mut impl FnMut(&Metric, Vec<Label>)) {
    for rule in &policy.limits {
        let LimitId { scope, unit, period, shadow } = rule.id;
        let (LimitScope::Tenant(tenant) | LimitScope::Model(tenant, _)) = scope else { continue };
        let labels = vec![
            named("tenant", policy.tenants.name(tenant)),
            code("scope", scope.name()),
            code("unit", unit.name()),
            code("period", period.name()),
            code("shadow", if shadow { "true" } else { "false" }),
        ];
        start(&catalogue::LIMITS_MET, labels);
    }
}

fn of_owners(policy: &Policy, start: &mut impl FnMut(&Metric, Vec<Label>)) {
    for owner in labels::owners(policy) {
        let mut labels = owner.labels(policy);
        let pair: Vec<Label> =
            labels.iter().filter(|label| matches!(label.key(), "tenant" | "model")).cloned().collect();
        labels.push(code("outcome", RequestOutcome::Success.name()));
        labels.push(code("reason", "none"));
        start(&catalogue::REQUESTS, labels);
        for kind in ["input", "cached", "output"] {
            let further = [code("kind", kind), code("source", "exact")];
            start(&catalogue::TOKENS, pair.iter().cloned().chain(further).collect());
        }
        start(&catalogue::USAGE_UNKNOWN, pair);
    }
}

/// Every combination of the values.
fn product(dimensions: &[LabelValues]) -> Vec<Vec<Label>> {
    dimensions.iter().fold(vec![Vec::new()], |rows, (key, values)| {
        let longer = |row: &Vec<Label>, value| row.iter().cloned().chain([code(key, value)]).collect();
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
    use crate::telemetry::summary::{RequestIds, RequestSummary};

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
