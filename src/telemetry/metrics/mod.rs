//! Prometheus metrics of the process.
//!
//! Handles of hot series are resolved once for each owner of series and kept. Values that change
//! without an event (queues, ledgers, engine reports) are read at each scrape.

mod catalogue;
mod cost;
mod exposition;
mod labels;
mod objectives;
mod recorder;
mod scale;
mod scrape;
mod series;
mod shadow;
mod usage;
mod zeros;

use std::fmt;

use metrics::{Counter, Gauge, Histogram, Label};
use metrics_exporter_prometheus::{PrometheusHandle, PrometheusRecorder};

use crate::core::billing::bill::AttemptBill;
use crate::core::model::ids::{PoolId, TenantId};
use crate::core::model::policy::Policy;
use crate::telemetry::metrics::catalogue::Metric;
use crate::telemetry::metrics::cost::Costs;
use crate::telemetry::metrics::scrape::SeenQueues;
use crate::telemetry::metrics::series::{GenAiCache, RequestCache};
use crate::telemetry::metrics::zeros::Zeros;
use crate::telemetry::status::ConfigStatus;
use crate::telemetry::summary::{GuardrailCheck, RequestSummary, ShadowSide};

use self::recorder::{counter, gauge, histogram, recorder};
pub use crate::telemetry::metrics::scrape::{EngineView, Scrape};
pub use crate::telemetry::metrics::usage::{RecordMeters, UsageMeters};
pub use crate::telemetry::metrics::zeros::ModelPairs;

/// `Content-Type` of the text that [`crate::telemetry::Telemetry::render`] returns.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of the process.
pub(super) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    requests: RequestCache,
    gen_ai: GenAiCache,
    open_connections: Gauge,
    worker_delay: Histogram,
    costs: Costs,
    seen_queues: SeenQueues,
    zeros: Zeros,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let recorder = recorder();
        Self {
            handle: recorder.handle(),
            open_connections: gauge(&recorder, &catalogue::access::OPEN_CONNECTIONS, Vec::new()),
            worker_delay: histogram(&recorder, &catalogue::process::WORKER_DELAY, Vec::new()),
            recorder,
            requests: RequestCache::default(),
            gen_ai: GenAiCache::default(),
            costs: Costs::default(),
            seen_queues: SeenQueues::default(),
            zeros: Zeros::default(),
        }
    }

    pub(super) fn open_connections(&self) -> &Gauge {
        &self.open_connections
    }

    pub(super) const fn worker_delay(&self) -> &Histogram {
        &self.worker_delay
    }

    pub(super) fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    pub(super) fn render(&self, policy: &Policy, config: &ConfigStatus, scrape: &Scrape<'_>) -> String {
        let mut text = self.handle.render();
        self.costs.write(policy, &mut text);
        scrape.write(policy, config, &self.seen_queues, &mut text);
        text
    }

    /// Starts the counters of the labels that the policy names at 0.
    pub(super) fn config_loaded(&self, policy: &Policy, pairs: &ModelPairs) {
        self.zeros.register(&self.recorder, policy, pairs);
        self.costs.register(policy);
    }

    pub(super) fn request_finished(&self, policy: &Policy, event: &RequestSummary<'_>) {
        self.requests.record(&self.recorder, policy, event);
        self.gen_ai.record(&self.recorder, policy, event);
    }

    pub(super) fn requeued(&self, policy: &Policy, pool: Option<PoolId>, fault: &'static str) {
        self.of_pool(&catalogue::replicas::REQUEUES, policy, pool, Some(("fault", fault)));
    }

    pub(super) fn fell_back(&self, from: &str, to: &str, reason: &'static str) {
        let model = |key: &'static str, name: &str| Label::new(key, name.to_owned());
        let labels = vec![model("from", from), Label::from_static_parts("reason", reason), model("to", to)];
        counter(&self.recorder, &catalogue::requests::FALLBACKS, labels).increment(1);
    }

    pub(super) fn limit_met(&self, tenant: &str, [scope, unit, period]: [&'static str; 3], shadow: bool) {
        let labels = vec![
            Label::new("tenant", tenant.to_owned()),
            Label::from_static_parts("scope", scope),
            Label::from_static_parts("unit", unit),
            Label::from_static_parts("period", period),
            Label::from_static_parts("shadow", if shadow { "true" } else { "false" }),
        ];
        counter(&self.recorder, &catalogue::requests::LIMITS_MET, labels).increment(1);
    }

    pub(super) fn preempted(&self, policy: &Policy, pool: Option<PoolId>, reason: &'static str) {
        self.of_pool(&catalogue::replicas::RECALLS, policy, pool, Some(("reason", reason)));
    }

    pub(super) fn stream_broken(&self, policy: &Policy, pool: Option<PoolId>, fault: &'static str) {
        self.of_pool(&catalogue::replicas::STREAMS_BROKEN, policy, pool, Some(("fault", fault)));
    }

    pub(super) fn continuation(&self, policy: &Policy, pool: Option<PoolId>, outcome: &'static str) {
        self.of_pool(&catalogue::replicas::CONTINUATIONS, policy, pool, Some(("outcome", outcome)));
    }

    pub(super) fn ejected(&self, policy: &Policy, pool: Option<PoolId>, fault: &'static str) {
        self.of_pool(&catalogue::replicas::EJECTIONS, policy, pool, Some(("fault", fault)));
    }

    pub(super) fn spared(&self, policy: &Policy, pool: Option<PoolId>, fault: &'static str) {
        self.of_pool(&catalogue::replicas::EJECTIONS_SPARED, policy, pool, Some(("fault", fault)));
    }

    pub(super) fn sleep_result(
        &self,
        policy: &Policy,
        pool: Option<PoolId>,
        order: &'static str,
        outcome: &'static str,
    ) {
        let pool = Label::new("pool", labels::pool(policy, pool).to_owned());
        let order = Label::from_static_parts("order", order);
        let outcome = Label::from_static_parts("outcome", outcome);
        counter(&self.recorder, &catalogue::replicas::REST_ORDERS, vec![order, outcome, pool]).increment(1);
    }

    pub(super) fn readmitted(&self, policy: &Policy, pool: Option<PoolId>) {
        self.of_pool(&catalogue::replicas::READMISSIONS, policy, pool, None);
    }

    pub(super) fn probe_failed(&self, policy: &Policy, pool: Option<PoolId>) {
        self.of_pool(&catalogue::replicas::PROBES_FAILED, policy, pool, None);
    }

    pub(super) fn scrape_failed(&self, policy: &Policy, pool: Option<PoolId>) {
        self.of_pool(&catalogue::replicas::SCRAPES_FAILED, policy, pool, None);
    }

    pub(super) fn model_mismatch(&self, policy: &Policy, pool: Option<PoolId>) {
        self.of_pool(&catalogue::replicas::MODEL_MISMATCHES, policy, pool, None);
    }

    pub(super) fn replicas_changed(&self, policy: &Policy, pool: PoolId, change: &'static str, count: usize) {
        let counter = self.pool_counter(
            &catalogue::pools::REPLICA_CHANGES,
            policy,
            Some(pool),
            Some(("change", change)),
        );
        counter.increment(count as u64);
    }

    pub(super) fn pool_emptied(&self, policy: &Policy, pool: PoolId) {
        self.of_pool(&catalogue::pools::POOLS_EMPTIED, policy, Some(pool), None);
    }

    pub(super) fn source_failed(&self, policy: &Policy, pool: PoolId) {
        self.of_pool(&catalogue::pools::SOURCE_FAILURES, policy, Some(pool), None);
    }

    pub(super) fn promise_unkept(&self, class: &str, model: &str, objective: &'static str) {
        let labels = vec![
            Label::new("class", class.to_owned()),
            Label::new("model", model.to_owned()),
            Label::from_static_parts("objective", objective),
        ];
        counter(&self.recorder, &catalogue::pools::PROMISES_UNKEPT, labels).increment(1);
    }

    pub(super) fn shadow_skipped(&self, model: &str, to: &str, reason: &'static str) {
        let labels = shadow::labels(model, to, Label::from_static_parts("reason", reason));
        counter(&self.recorder, &catalogue::shadows::SHADOW_SKIPPED, labels).increment(1);
    }

    pub(super) fn shadow_compared(&self, model: &str, to: &str, sides: [&ShadowSide; 2]) {
        for (name, side) in ShadowSide::NAMES.into_iter().zip(sides) {
            let labels = shadow::labels(model, to, Label::from_static_parts("side", name));
            shadow::record(&self.recorder, &labels, side);
        }
    }

    pub(super) fn auth_failed(&self, reason: &'static str) {
        let labels = vec![Label::from_static_parts("reason", reason)];
        counter(&self.recorder, &catalogue::access::AUTH_FAILURES, labels).increment(1);
    }

    pub(super) fn line_kept_back(&self) {
        counter(&self.recorder, &catalogue::access::LINES_KEPT_BACK, Vec::new()).increment(1);
    }

    pub(super) fn guardrail_checked(&self, check: &GuardrailCheck) {
        let stage = Label::from_static_parts("stage", check.stage.name());
        let outcome = Label::from_static_parts("outcome", check.outcome.name());
        counter(&self.recorder, &catalogue::requests::GUARDRAIL_CHECKS, vec![stage.clone(), outcome])
            .increment(1);
        histogram(&self.recorder, &catalogue::requests::GUARDRAIL_DURATION, vec![stage]).record(check.took);
    }

    pub(super) fn handshake_failed(&self, listener: &'static str, reason: &'static str) {
        let label = Label::from_static_parts;
        let labels = vec![label("listener", listener), label("reason", reason)];
        counter(&self.recorder, &catalogue::access::HANDSHAKES_FAILED, labels).increment(1);
    }

    pub(super) fn certificate_ends(&self, listener: &'static str, unix_seconds: f64) {
        let labels = vec![Label::from_static_parts("listener", listener)];
        gauge(&self.recorder, &catalogue::access::CERTIFICATE_ENDS, labels).set(unix_seconds);
    }

    pub(super) fn keys(&self, states: [(&'static str, u64); 3], next_end: f64, problems: usize) {
        let set = |metric: &Metric, labels, value| gauge(&self.recorder, metric, labels).set(value);
        for (state, count) in states {
            set(&catalogue::access::KEYS, vec![Label::from_static_parts("state", state)], count as f64);
        }
        set(&catalogue::access::KEY_NEXT_EXPIRY, Vec::new(), next_end);
        set(&catalogue::access::KEY_FILE_PROBLEMS, Vec::new(), problems as f64);
    }

    pub(super) fn issuer_failed(&self) {
        counter(&self.recorder, &catalogue::access::ISSUER_FAILURES, Vec::new()).increment(1);
    }

    pub(super) fn admin_refused(&self, reason: &'static str) {
        let labels = vec![Label::from_static_parts("reason", reason)];
        counter(&self.recorder, &catalogue::access::ADMIN_REFUSALS, labels).increment(1);
    }

    pub(super) fn scaler_asked(&self, method: &'static str, code: &'static str) {
        let label = Label::from_static_parts;
        let labels = vec![label("code", code), label("method", method)];
        counter(&self.recorder, &catalogue::pools::SCALER_CALLS, labels).increment(1);
    }

    pub(super) fn scale_peers(&self, state: &'static str, count: usize) {
        let labels = vec![Label::from_static_parts("state", state)];
        gauge(&self.recorder, &catalogue::pools::SCALE_PEERS, labels).set(count as f64);
    }

    pub(super) fn cluster_store(&self, is_up: bool) {
        gauge(&self.recorder, &catalogue::cluster::CLUSTER_STORE_UP, Vec::new())
            .set(f64::from(u8::from(is_up)));
    }

    pub(super) fn cluster_leases_over(&self, are_over: bool) {
        gauge(&self.recorder, &catalogue::cluster::CLUSTER_LEASES_OVER, Vec::new())
            .set(f64::from(u8::from(are_over)));
    }

    pub(super) fn cluster_gateways(&self, count: usize) {
        gauge(&self.recorder, &catalogue::cluster::CLUSTER_GATEWAYS, Vec::new()).set(count as f64);
    }

    pub(super) fn scaler_clamped(&self, pool: &str) {
        let labels = vec![Label::new("pool", pool.to_owned())];
        counter(&self.recorder, &catalogue::pools::SCALER_CLAMPED, labels).increment(1);
    }

    pub(super) fn audit_lost(&self) -> Counter {
        counter(&self.recorder, &catalogue::process::AUDIT_LOST, Vec::new())
    }

    /// Renders only the metrics that events feed.
    #[cfg(test)]
    pub(super) fn render_events(&self) -> String {
        self.handle.render()
    }

    pub(super) fn answer_cut_off(&self) {
        counter(&self.recorder, &catalogue::access::ANSWERS_CUT_OFF, Vec::new()).increment(1);
    }

    pub(super) fn connection_refused(&self, reason: &'static str) {
        let labels = vec![Label::from_static_parts("reason", reason)];
        counter(&self.recorder, &catalogue::access::CONNECTIONS_REFUSED, labels).increment(1);
    }

    /// Counts a rare event of a pool, with one further label if given.
    fn of_pool(
        &self,
        metric: &Metric,
        policy: &Policy,
        pool: Option<PoolId>,
        label: Option<(&'static str, &'static str)>,
    ) {
        self.pool_counter(metric, policy, pool, label).increment(1);
    }

    /// Registers the counter of a pool's rare event. The event is rare, so the handle is not kept.
    fn pool_counter(
        &self,
        metric: &Metric,
        policy: &Policy,
        pool: Option<PoolId>,
        label: Option<(&'static str, &'static str)>,
    ) -> Counter {
        let mut labels = vec![Label::new("pool", labels::pool(policy, pool).to_owned())];
        labels.extend(label.map(|(name, value)| Label::from_static_parts(name, value)));
        counter(&self.recorder, metric, labels)
    }

    /// Adds the time, cost and waste of an attempt.
    pub(super) fn billed(&self, policy: &Policy, tenant: Option<TenantId>, bill: &AttemptBill) {
        self.costs.add(policy, tenant, bill);
        if let Some(waste) = bill.waste.filter(|waste| waste.tokens > 0) {
            let reason = vec![Label::from_static_parts("reason", waste.why.name())];
            counter(&self.recorder, &catalogue::usage::WASTED_TOKENS, reason).increment(waste.tokens);
        }
    }

    pub(super) fn usage_meters(&self) -> UsageMeters {
        UsageMeters::register(&self.recorder)
    }

    pub(super) fn record_meters(&self) -> RecordMeters {
        RecordMeters::register(&self.recorder)
    }

    pub(super) fn usage_database(&self, database: &'static str, up: bool) {
        let labels = vec![Label::from_static_parts("database", database)];
        gauge(&self.recorder, &catalogue::usage::USAGE_DATABASE_UP, labels).set(if up { 1.0 } else { 0.0 });
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests;
