//! Objective counters: for each class, how many requests kept its objectives and how many did not.

use std::time::Duration;

use metrics::{Counter, Label};
use metrics_exporter_prometheus::PrometheusRecorder;

use crate::core::model::policy::Class;
use crate::telemetry::metrics::catalogue::requests::{OBJECTIVE_KEPT, OBJECTIVE_NAMES, OBJECTIVES};
use crate::telemetry::metrics::recorder::counter;
use crate::telemetry::summary::{RequestOutcome, RequestSummary};

/// Refusals that say nothing about the gateway's capacity: the tenant's own limits and bounds, the
/// request itself, an operator's order.
const OWN_REFUSALS: [&str; 7] = [
    "rate_limited",
    "quota_spent",
    "tenant_queue_full",
    "too_many_sequences",
    "tenant_paused",
    "no_pool",
    "withdrawn",
];

/// Counters of one class, by objective and by whether it was kept.
pub(super) struct ObjectiveCounters([[Counter; 2]; 3]);

impl ObjectiveCounters {
    /// Registers the counters of the class that `class` names, which is one label.
    pub(super) fn register(recorder: &PrometheusRecorder, class: &[Label]) -> Self {
        let of = |objective, kept| {
            let mut labels = class.to_vec();
            labels.push(Label::from_static_parts("objective", objective));
            labels.push(Label::from_static_parts("kept", kept));
            counter(recorder, &OBJECTIVES, labels)
        };
        Self(OBJECTIVE_NAMES.map(|objective| OBJECTIVE_KEPT.map(|kept| of(objective, kept))))
    }

    pub(super) fn count(&self, class: &Class, event: &RequestSummary<'_>) {
        for (counters, verdict) in self.0.iter().zip(judge(class, event)) {
            let [kept, missed] = counters;
            match verdict {
                Some(true) => kept.increment(1),
                Some(false) => missed.increment(1),
                None => {}
            }
        }
    }
}

/// Whether the request kept each objective of its class, in the order of [`OBJECTIVE_NAMES`]; `None`
/// where it says nothing about one.
fn judge(class: &Class, event: &RequestSummary<'_>) -> [Option<bool>; 3] {
    let answer = answered(event);
    let within = |time: Option<Duration>, limit: Duration| time.map(|time| time <= limit);
    let ttft = within(event.timings.first_token, class.ttft_objective).or_else(|| match answer {
        Some(false) => Some(false),
        // A client that left after the objective had passed waited in vain.
        None if event.outcome == RequestOutcome::ClientGone => (event.reason != Some("superseded")
            && event.timings.total > class.ttft_objective)
            .then_some(false),
        Some(true) | None => None,
    });
    let itl = within(event.timings.gap_mean, class.itl_objective);
    let of_streams = |verdict: Option<bool>| verdict.filter(|_| event.call.stream && !class.scavenger);
    [of_streams(ttft), of_streams(itl), answer.filter(|_| !class.scavenger)]
}

/// Whether the gateway and its engines answered; `None` if it was not theirs to decide.
fn answered(event: &RequestSummary<'_>) -> Option<bool> {
    match event.outcome {
        RequestOutcome::Success => Some(true),
        RequestOutcome::Failed => Some(false),
        RequestOutcome::Rejected => {
            let own = event.reason.is_some_and(|reason| OWN_REFUSALS.contains(&reason));
            (!own).then_some(false)
        }
        RequestOutcome::ClientError | RequestOutcome::ClientGone => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::event::RejectReason;
    use crate::core::model::ids::ClassId;
    use crate::core::model::policy::Policy;
    use crate::telemetry::fixtures::{load, policy, render, samples, success, telemetry};
    use crate::telemetry::summary::{CallFacts, Timings};

    fn verdict(event: &RequestSummary<'_>) -> [Option<bool>; 3] {
        let policy = policy(1);
        judge(policy.classes.get(ClassId::new(0)).unwrap(), event)
    }

    fn ended(outcome: RequestOutcome, reason: &'static str, total: u64) -> RequestSummary<'static> {
        let timings = Timings { total: Duration::from_millis(total), ..Timings::default() };
        RequestSummary { outcome, reason: Some(reason), timings, ..success() }
    }

    #[test]
    fn a_stream_is_judged_by_its_first_token_and_its_mean_gap() {
        // 140 ms of 150 to the first token, 38 ms of 40 between tokens.
        assert_eq!(verdict(&success()), [Some(true), Some(true), Some(true)]);
        let slow = Timings {
            first_token: Some(Duration::from_millis(151)),
            gap_mean: Some(Duration::from_millis(41)),
            ..success().timings
        };
        assert_eq!(
            verdict(&RequestSummary { timings: slow, ..success() }),
            [Some(false), Some(false), Some(true)]
        );
        let plain = RequestSummary { call: CallFacts { stream: false, ..success().call }, ..success() };
        assert_eq!(verdict(&plain), [None, None, Some(true)]);
    }

    #[test]
    fn refusals_and_failures_are_not_kept_unless_they_are_the_clients_own() {
        let lost = [Some(false), None, Some(false)];
        assert_eq!(verdict(&ended(RequestOutcome::Rejected, "queue_full", 1)), lost);
        assert_eq!(verdict(&ended(RequestOutcome::Failed, "upstream_failed", 1)), lost);
        for reason in OWN_REFUSALS {
            assert!(RejectReason::NAMES.contains(&reason), "{reason}");
            assert_eq!(verdict(&ended(RequestOutcome::Rejected, reason, 1)), [None; 3], "{reason}");
        }
        assert_eq!(verdict(&ended(RequestOutcome::ClientError, "bad_request", 1)), [None; 3]);
        // A stream that broke after a timely first token kept one objective and lost the other.
        let broken = RequestSummary { outcome: RequestOutcome::Failed, ..success() };
        assert_eq!(verdict(&broken), [Some(true), Some(true), Some(false)]);
    }

    #[test]
    fn a_client_that_leaves_counts_only_after_the_objective() {
        let gone = |reason, total| verdict(&ended(RequestOutcome::ClientGone, reason, total));
        assert_eq!(gone("client_gone", 150), [None; 3]);
        assert_eq!(gone("client_gone", 151), [Some(false), None, None]);
        assert_eq!(gone("superseded", 151), [None; 3]);
    }

    #[test]
    fn each_class_has_its_rows_from_the_start_and_after_a_reload() {
        let telemetry = telemetry(1);
        let row = |class: &str, objective: &str, kept: &str| {
            format!(r#"penstock_objective_total{{class="{class}",objective="{objective}",kept="{kept}"}}"#)
        };
        let text = render(&telemetry);
        for (objective, kept) in
            OBJECTIVE_NAMES.into_iter().flat_map(|name| OBJECTIVE_KEPT.map(|kept| (name, kept)))
        {
            assert_eq!(samples(&text)[&*row("interactive", objective, kept)], 0.0);
        }
        success().emit(&telemetry);
        let text = render(&telemetry);
        assert_eq!(samples(&text)[&*row("interactive", "ttft", "true")], 1.0);
        assert_eq!(samples(&text)[&*row("interactive", "ttft", "false")], 0.0);

        let mut more: Policy = policy(1);
        let class = more.classes.get(ClassId::new(0)).unwrap().clone();
        more.classes.insert("overnight", Class { scavenger: true, ..class.clone() });
        more.classes.insert("batch", class);
        load(&telemetry, more, "d2");
        let text = render(&telemetry);
        assert_eq!(samples(&text)[&*row("batch", "answer", "false")], 0.0);
        assert_eq!(samples(&text)[&*row("interactive", "ttft", "true")], 1.0, "a reload resets nothing");
        assert!(!text.contains("overnight"), "a scavenger class has no objectives");
    }
}
