//! Exact replay: the recorded events, given to a new scheduler, must lead to the recorded decisions.

use std::sync::Arc;

use crate::core::model::event::{Action, Event};
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::core::scheduler::Scheduler;
use crate::dispatcher::event_log::{Decision, Decisions, LoggedStep};

/// Comparison of a record's decisions with those of a new scheduler.
#[derive(Debug)]
pub struct ExactReplay {
    scheduler: Scheduler,
    actions: Vec<Action>,
    /// Steps that were compared.
    pub steps: u64,
    /// Recorded decisions, and those of them that the new scheduler made in the same step.
    pub decisions: u64,
    pub same: u64,
    /// Steps that led to other decisions.
    pub differing: u64,
    pub first: Option<Difference>,
}

/// Step that led to other decisions than recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub at: Tick,
    /// Kind of the event.
    pub event: &'static str,
    pub recorded: Decisions,
    pub replayed: Decisions,
}

impl ExactReplay {
    /// A replay that begins under the policy.
    pub fn new(policy: &Policy) -> Self {
        Self {
            scheduler: Scheduler::new(Arc::new(policy.clone())),
            actions: Vec::new(),
            steps: 0,
            decisions: 0,
            same: 0,
            differing: 0,
            first: None,
        }
    }

    /// Replays one step.
    pub fn step(&mut self, step: &LoggedStep) {
        self.scheduler.handle(step.at, step.event.clone(), &mut self.actions);
        let replayed: Decisions = self.actions.drain(..).filter_map(|action| Decision::of(&action)).collect();
        self.steps += 1;
        self.decisions += step.decisions.len() as u64;
        if replayed == step.decisions {
            self.same += replayed.len() as u64;
            return;
        }
        let repeated = step.decisions.iter().filter(|decision| replayed.contains(decision));
        self.same += repeated.count() as u64;
        self.differing += 1;
        self.first.get_or_insert_with(|| Difference {
            at: step.at,
            event: kind(&step.event),
            recorded: step.decisions.clone(),
            replayed,
        });
    }
}

/// Kind of an event, as the record names it.
fn kind(event: &Event) -> &'static str {
    match event {
        Event::Arrived(..) => "arrived",
        Event::Abandoned { .. } => "client_left",
        Event::FirstToken { .. } => "first_token",
        Event::Finished { .. } => "finished",
        Event::ItlSampled { .. } => "itl_sampled",
        Event::BytesReceived { .. } => "bytes_received",
        Event::StreamsPaused { .. } => "streams_paused",
        Event::ReplicaReported { .. } => "replica_reported",
        Event::AdaptersReported { .. } => "adapters_reported",
        Event::ReplicaLost { .. } => "replica_lost",
        Event::ProbeSucceeded { .. } => "probe_succeeded",
        Event::SleepAnswered { .. } => "sleep_answered",
        Event::Overridden(_) => "overridden",
        Event::OverrideEnded(_) => "override_ended",
        Event::PeriodBegan { .. } => "period_began",
        Event::UsageRestored { .. } => "usage_restored",
        Event::PromptDenied { .. } => "prompt_denied",
        Event::LimitsLeased { .. } => "limits_leased",
        Event::ServedElsewhere(_) => "served_elsewhere",
        Event::UsedBeforeStart(_) => "used_before_start",
        Event::HeldElsewhere(_) => "held_elsewhere",
        Event::LoadElsewhere(_) => "load_elsewhere",
        Event::StartsRestored(_) => "starts_restored",
        Event::PolicyChanged(_) => "policy_changed",
        Event::GrowthExpected(_) => "growth_expected",
        Event::Draining => "draining",
        Event::Timer => "timer",
    }
}
