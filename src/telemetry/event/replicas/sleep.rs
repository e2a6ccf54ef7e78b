//! Sleep events: replicas that the gateway or others put to sleep or woke.

use std::time::Duration;

use tracing::{info, warn};

use crate::core::model::ids::ReplicaId;
use crate::telemetry::Telemetry;
use crate::telemetry::text::{millis, pool_of, shorten};

/// A replica carried out an order to sleep or to wake.
#[derive(Debug, Clone, Copy)]
pub struct SleepOrderDone {
    pub replica: ReplicaId,
    /// `sleep` or `wake`.
    pub order: &'static str,
    /// Time that the replica took.
    pub took: Duration,
}

impl SleepOrderDone {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (replica, order) = (policy.replicas.name(self.replica), self.order);
        telemetry.log(|| info!(replica, order, took_ms = millis(self.took), "replica told to sleep or wake"));
        telemetry.metrics().sleep_result(&policy, pool_of(&policy, self.replica), order, "done");
    }
}

/// A replica failed to carry out an order to sleep or to wake.
#[derive(Debug, Clone, Copy)]
pub struct SleepOrderFailed<'a> {
    pub replica: ReplicaId,
    /// `sleep` or `wake`.
    pub order: &'static str,
    pub problem: &'a str,
}

impl SleepOrderFailed<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (replica, order) = (policy.replicas.name(self.replica), self.order);
        telemetry.log(|| {
            warn!(replica, order, problem = shorten(self.problem), "replica does not sleep or wake");
        });
        telemetry.metrics().sleep_result(&policy, pool_of(&policy, self.replica), order, "failed");
    }
}

/// A replica does not support sleep. The gateway does not order it to sleep again until the replica
/// is replaced.
#[derive(Debug, Clone, Copy)]
pub struct SleepUnsupported {
    pub replica: ReplicaId,
}

impl SleepUnsupported {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let replica = policy.replicas.name(self.replica);
        let hint = "start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1, or take `sleep` away";
        telemetry.log(|| warn!(replica, hint, "replica cannot sleep: it does not know /sleep"));
        telemetry.metrics().sleep_result(&policy, pool_of(&policy, self.replica), "sleep", "unknown");
    }
}

/// A replica fell asleep or woke without an order of the gateway, as the engine's metrics show.
#[derive(Debug, Clone, Copy)]
pub struct SleepStateChanged {
    pub replica: ReplicaId,
    /// Whether the replica sleeps now.
    pub asleep: bool,
}

impl SleepStateChanged {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (replica, asleep) = (policy.replicas.name(self.replica), self.asleep);
        telemetry.log(|| info!(replica, asleep, "replica was put to sleep or woken by others"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::telemetry::fixtures;

    #[test]
    fn each_event_is_a_line() {
        let telemetry = fixtures::telemetry(1);
        let replica = ReplicaId::new(0);
        let last =
            || serde_json::from_str::<Value>(telemetry.captured_log().lines().last().unwrap()).unwrap();
        SleepOrderDone { replica, order: "wake", took: Duration::from_millis(1500) }.emit(&telemetry);
        assert_eq!((&last()["order"], &last()["took_ms"]), (&"wake".into(), &1500.0.into()));
        SleepOrderFailed { replica, order: "sleep", problem: "status 500" }.emit(&telemetry);
        assert_eq!((&last()["level"], &last()["problem"]), (&"WARN".into(), &"status 500".into()));
        SleepUnsupported { replica }.emit(&telemetry);
        assert!(last()["hint"].as_str().unwrap().contains("VLLM_SERVER_DEV_MODE=1"));
        SleepStateChanged { replica, asleep: true }.emit(&telemetry);
        assert_eq!(last()["asleep"], true);
    }
}
