//! Request series: counters and histograms that every finished request feeds, with kept handles.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dashmap::DashMap;
use metrics::{Counter, Histogram, Label};
use metrics_exporter_prometheus::PrometheusRecorder;
use parking_lot::RwLock;

use crate::core::model::ids::ModelId;
use crate::core::model::job::{JobUsage, TokenCounts};
use crate::core::model::policy::Policy;
use crate::telemetry::metrics::catalogue;
use crate::telemetry::metrics::labels::{self, MAX_OWNERS, SeriesOwner};
use crate::telemetry::metrics::objectives::ObjectiveCounters;
use crate::telemetry::metrics::recorder::{counter, histogram};
use crate::telemetry::summary::{RequestOutcome, RequestSummary};
use crate::tokens::CountSource;

/// Cache of the `penstock_*` series of requests, by owner.
#[derive(Default)]
pub(super) struct RequestCache(DashMap<SeriesOwner, Arc<RequestSeries>>);

impl RequestCache {
    pub(super) fn record(&self, recorder: &PrometheusRecorder, policy: &Policy, event: &RequestSummary<'_>) {
        let series = self.series(policy, SeriesOwner::of(policy, event));
        series.record(recorder, policy, event);
    }

    fn series(&self, policy: &Policy, owner: SeriesOwner) -> Arc<RequestSeries> {
        if let Some(series) = self.0.get(&owner) {
            return Arc::clone(&series);
        }
        let owner = if self.0.len() < MAX_OWNERS { owner } else { owner.without_tenant() };
        let fresh = || Arc::new(RequestSeries::new(owner.labels(policy)));
        Arc::clone(&self.0.entry(owner).or_insert_with(fresh))
    }
}

/// Series of one owner. A series is registered with its first sample.
struct RequestSeries {
    /// Labels of the owner: tenant, class, model, pool.
    labels: Vec<Label>,
    ends: RwLock<Vec<EndCounters>>,
    queue_wait: OnceLock<Histogram>,
    first_token: OnceLock<Histogram>,
    inter_token: OnceLock<Histogram>,
    inter_token_max: OnceLock<Histogram>,
    duration: OnceLock<Histogram>,
    exact: OnceLock<TokenCounters>,
    partial: OnceLock<TokenCounters>,
    unknown: OnceLock<Counter>,
    objectives: OnceLock<ObjectiveCounters>,
    /// Prompts by the source of their token count, indexed by `CountSource`.
    counted: [OnceLock<Counter>; 5],
}

/// Counters of one outcome and reason. Their number is bounded: reasons are this program's text.
struct EndCounters {
    outcome: RequestOutcome,
    reason: &'static str,
    requests: Counter,
    rejections: Option<Counter>,
}

impl EndCounters {
    fn count(&self) {
        self.requests.increment(1);
        if let Some(rejections) = &self.rejections {
            rejections.increment(1);
        }
    }
}

struct TokenCounters {
    input: Counter,
    cached: Counter,
    output: Counter,
}

impl RequestSeries {
    fn new(labels: Vec<Label>) -> Self {
        Self {
            labels,
            ends: RwLock::default(),
            queue_wait: OnceLock::new(),
            first_token: OnceLock::new(),
            inter_token: OnceLock::new(),
            inter_token_max: OnceLock::new(),
            duration: OnceLock::new(),
            exact: OnceLock::new(),
            partial: OnceLock::new(),
            unknown: OnceLock::new(),
            objectives: OnceLock::new(),
            counted: Default::default(),
        }
    }

    fn record(&self, recorder: &PrometheusRecorder, policy: &Policy, event: &RequestSummary<'_>) {
        self.count_end(recorder, event);
        if let Some(class) = event.caller.class.and_then(|id| policy.classes.get(id)) {
            let name = || self.only(&["class"]);
            self.objectives
                .get_or_init(|| ObjectiveCounters::register(recorder, &name()))
                .count(class, event);
        }
        self.count_usage(recorder, event.tokens.usage);
        self.count_source(recorder, event.tokens.prompt.map(|prompt| prompt.source));
        let times = &event.timings;
        for (handle, metric, sample) in [
            (&self.queue_wait, &catalogue::requests::QUEUE_WAIT, times.queue),
            (&self.first_token, &catalogue::requests::FIRST_TOKEN, times.first_token),
            (&self.inter_token, &catalogue::requests::INTER_TOKEN, times.gap_mean),
            (&self.inter_token_max, &catalogue::requests::INTER_TOKEN_MAX, times.gap_max),
            (&self.duration, &catalogue::requests::REQUEST_DURATION, Some(times.total)),
        ] {
            if let Some(sample) = sample {
                handle.get_or_init(|| histogram(recorder, metric, self.labels.clone())).record(sample);
            }
        }
    }

    fn count_end(&self, recorder: &PrometheusRecorder, event: &RequestSummary<'_>) {
        let (outcome, reason) = (event.outcome, event.error_type().unwrap_or("none"));
        let is_it = |end: &&EndCounters| end.outcome == outcome && end.reason == reason;
        if let Some(end) = self.ends.read().iter().find(is_it) {
            return end.count();
        }
        let mut ends = self.ends.write();
        if let Some(end) = ends.iter().find(is_it) {
            return end.count();
        }
        let end = self.end(recorder, outcome, reason);
        end.count();
        ends.push(end);
    }

    fn end(
        &self,
        recorder: &PrometheusRecorder,
        outcome: RequestOutcome,
        reason: &'static str,
    ) -> EndCounters {
        let mut labels = self.labels.clone();
        labels.push(Label::from_static_parts("outcome", outcome.name()));
        labels.push(Label::from_static_parts("reason", reason));
        let rejections = (outcome == RequestOutcome::Rejected).then(|| {
            counter(
                recorder,
                &catalogue::requests::REJECTIONS,
                vec![Label::from_static_parts("reason", reason)],
            )
        });
        EndCounters {
            outcome,
            reason,
            requests: counter(recorder, &catalogue::requests::REQUESTS, labels),
            rejections,
        }
    }

    fn count_usage(&self, recorder: &PrometheusRecorder, usage: Option<JobUsage>) {
        match usage {
            None => {}
            Some(JobUsage::Exact(tokens)) => {
                self.exact.get_or_init(|| self.tokens(recorder, "exact")).count(tokens);
            }
            Some(JobUsage::Partial(tokens)) => {
                self.partial.get_or_init(|| self.tokens(recorder, "partial")).count(tokens);
            }
            Some(JobUsage::Unknown) => {
                let labels = || self.only(&["tenant", "model"]);
                self.unknown
                    .get_or_init(|| counter(recorder, &catalogue::requests::USAGE_UNKNOWN, labels()))
                    .increment(1);
            }
        }
    }

    fn count_source(&self, recorder: &PrometheusRecorder, source: Option<CountSource>) {
        let Some(source) = source else { return };
        let labels = || {
            let mut labels = self.only(&["model"]);
            labels.push(Label::from_static_parts("source", source.name()));
            labels
        };
        if let Some(place) = self.counted.get(source as usize) {
            place
                .get_or_init(|| counter(recorder, &catalogue::requests::PROMPT_COUNTS, labels()))
                .increment(1);
        }
    }

    fn tokens(&self, recorder: &PrometheusRecorder, source: &'static str) -> TokenCounters {
        let of = |kind: &'static str| {
            let mut labels = self.only(&["tenant", "model"]);
            labels.push(Label::from_static_parts("kind", kind));
            labels.push(Label::from_static_parts("source", source));
            counter(recorder, &catalogue::requests::TOKENS, labels)
        };
        TokenCounters { input: of("input"), cached: of("cached"), output: of("output") }
    }

    /// Selects some of the owner's labels by name.
    fn only(&self, names: &[&str]) -> Vec<Label> {
        self.labels.iter().filter(|label| names.contains(&label.key())).cloned().collect()
    }
}

impl TokenCounters {
    fn count(&self, tokens: TokenCounts) {
        self.input.increment(tokens.input);
        self.cached.increment(tokens.from_cache());
        self.output.increment(tokens.output);
    }
}

/// Cache of the series of the OpenTelemetry GenAI conventions, in Prometheus spelling.
#[derive(Default)]
pub(super) struct GenAiCache(DashMap<GenAiKey, Arc<GenAiSeries>>);

/// Key of the GenAI series. Its parts are this program's text and the policy's names, so the number
/// of keys is bounded.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct GenAiKey {
    operation: &'static str,
    provider: &'static str,
    model: Option<ModelId>,
    error: Option<&'static str>,
}

#[derive(Default)]
struct GenAiSeries {
    duration: OnceLock<Histogram>,
    first_token: OnceLock<Histogram>,
    per_token: OnceLock<Histogram>,
}

impl GenAiCache {
    pub(super) fn record(&self, recorder: &PrometheusRecorder, policy: &Policy, event: &RequestSummary<'_>) {
        let key = GenAiKey {
            operation: event.call.operation,
            provider: event.dispatch.engine.unwrap_or("penstock"),
            model: SeriesOwner::of(policy, event).model,
            error: event.error_type(),
        };
        let series = self.series(key);
        let success = event.outcome == RequestOutcome::Success;
        let times = &event.timings;
        for (handle, metric, sample) in [
            (&series.duration, &catalogue::gen_ai::GEN_AI_DURATION, Some(times.total)),
            (
                &series.first_token,
                &catalogue::gen_ai::GEN_AI_FIRST_TOKEN,
                times.first_token.filter(|_| success),
            ),
            (&series.per_token, &catalogue::gen_ai::GEN_AI_PER_TOKEN, per_token(event).filter(|_| success)),
        ] {
            if let Some(sample) = sample {
                handle.get_or_init(|| histogram(recorder, metric, key.labels(policy))).record(sample);
            }
        }
    }

    fn series(&self, key: GenAiKey) -> Arc<GenAiSeries> {
        if let Some(series) = self.0.get(&key) {
            return Arc::clone(&series);
        }
        Arc::clone(&self.0.entry(key).or_default())
    }
}

impl GenAiKey {
    fn labels(&self, policy: &Policy) -> Vec<Label> {
        let mut labels = vec![
            Label::from_static_parts("gen_ai_operation_name", self.operation),
            Label::from_static_parts("gen_ai_provider_name", self.provider),
            Label::new("gen_ai_request_model", labels::model(policy, self.model).to_owned()),
        ];
        labels.extend(self.error.map(|error| Label::from_static_parts("error_type", error)));
        labels
    }
}

/// Time per output token: the time after the first token, divided by the tokens after the first.
/// Absent unless the engine counted at least two tokens.
fn per_token(event: &RequestSummary<'_>) -> Option<Duration> {
    let Some(JobUsage::Exact(tokens)) = event.tokens.usage else { return None };
    let after_first = u32::try_from(tokens.output.checked_sub(1)?).ok()?;
    event.timings.total.checked_sub(event.timings.first_token?)?.checked_div(after_first)
}
