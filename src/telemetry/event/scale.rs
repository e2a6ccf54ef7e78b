//! Scale events: changes of desired replicas, calls of the external scaler, peers, and the saved
//! demand.

use std::path::Path;

use tracing::{debug, info, warn};

use crate::telemetry::Telemetry;
use crate::telemetry::text::shorten;

/// The desired replicas of a pool changed.
#[derive(Debug, Clone, Copy)]
pub struct DesiredChanged<'a> {
    pub pool: &'a str,
    /// Desired replicas before; absent = unknown.
    pub from: Option<u32>,
    /// Desired replicas now.
    pub to: u32,
    /// Source of the number.
    pub reason: &'static str,
    /// Replicas in service.
    pub ready: u32,
}

impl DesiredChanged<'_> {
    /// Writes the event. The metric is read at each scrape.
    pub fn emit(&self, telemetry: &Telemetry) {
        let Self { pool, from, to, reason, ready } = self;
        telemetry.changed("desired", pool, || format!("{to} replicas ({reason}), {ready} in service"));
        telemetry.log(|| info!(pool, from, to, reason, ready, "desired replicas changed"));
    }
}

/// The external scaler answered a client with a number.
#[derive(Debug, Clone, Copy)]
pub struct ScalerAnswered<'a> {
    pub pool: &'a str,
    /// Name of the ScaledObject that asked, as given in the call.
    pub scaled_object: &'a str,
    /// Namespace of the ScaledObject.
    pub namespace: &'a str,
    pub value: u64,
    pub active: bool,
    /// Source of the number.
    pub reason: &'static str,
    /// Whether `minReplicas` or `maxReplicas` of the trigger changed the number.
    pub clamped: bool,
    /// Whether the number is a raw metric value, not a number of replicas.
    pub raw: bool,
}

impl ScalerAnswered<'_> {
    /// Writes the event, and counts it when the number was clamped.
    pub fn emit(&self, telemetry: &Telemetry) {
        let Self { pool, value, active, reason, clamped, raw, .. } = self;
        let (namespace, name) = (shorten(self.namespace), shorten(self.scaled_object));
        telemetry.log(|| {
            debug!(
                pool,
                namespace,
                scaled_object = name,
                value,
                active,
                reason,
                clamped,
                raw,
                "scaler answered"
            );
        });
        if self.clamped {
            telemetry.metrics().scaler_clamped(self.pool);
        }
    }
}

/// A call of the external scaler was answered.
#[derive(Debug, Clone, Copy)]
pub struct ScalerAsked<'a> {
    /// Method of the call.
    pub method: &'static str,
    /// Outcome of the call, as a stable code.
    pub code: &'static str,
    /// Problem with the call; absent = none.
    pub problem: Option<&'a str>,
}

impl ScalerAsked<'_> {
    /// Counts the event, and writes it when there was a problem.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.metrics().scaler_asked(self.method, self.code);
        if let Some(problem) = self.problem {
            telemetry.log(|| debug!(method = self.method, code = self.code, problem, "scaler call refused"));
        }
    }
}

/// The metadata of a trigger has an unknown key.
#[derive(Debug, Clone, Copy)]
pub struct ScalerKeyUnknown<'a> {
    pub key: &'a str,
}

impl ScalerKeyUnknown<'_> {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| {
            warn!(
                key = shorten(self.key),
                "a trigger's metadata has a key that means nothing here; is it spelled right?"
            );
        });
    }
}

/// A peer cannot be reached.
#[derive(Debug, Clone, Copy)]
pub struct PeerLost<'a> {
    /// Address of the peer.
    pub place: &'a str,
    pub problem: &'a str,
    /// Whether the peer was reachable until now.
    pub first: bool,
}

impl PeerLost<'_> {
    /// Writes the event. The first failure in a row is a warning, the others are debug lines.
    pub fn emit(&self, telemetry: &Telemetry) {
        let (place, problem) = (self.place, shorten(self.problem));
        if self.first {
            telemetry.log(|| warn!(place, problem, "another gateway cannot be heard"));
        } else {
            telemetry.log(|| debug!(place, problem, "another gateway still cannot be heard"));
        }
    }
}

/// The demand of this gateway does not reach the others through the store.
#[derive(Debug, Clone, Copy)]
pub struct DemandNotShared<'a> {
    pub problem: &'a str,
}

impl DemandNotShared<'_> {
    /// Writes the event to the log.
    pub fn emit(&self, telemetry: &Telemetry) {
        let problem = shorten(self.problem);
        telemetry.log(|| warn!(problem, "demand is not shared with the other gateways"));
    }
}

/// A peer was reached, for the first time or again.
#[derive(Debug, Clone, Copy)]
pub struct PeerHeard<'a> {
    /// Address of the peer.
    pub place: &'a str,
    /// Gateway id of the peer.
    pub id: &'a str,
}

impl PeerHeard<'_> {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| info!(place = self.place, id = self.id, "another gateway is heard"));
    }
}

/// The decider changed.
#[derive(Debug, Clone, Copy)]
pub struct DeciderChanged<'a> {
    /// Gateway id of the decider; absent = no gateway decides.
    pub id: Option<&'a str>,
    /// Whether this gateway is the decider.
    pub own: bool,
}

impl DeciderChanged<'_> {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| {
            info!(
                id = self.id,
                own = self.own,
                "the gateway that decides how many replicas are needed changed"
            );
        });
    }
}

/// Number of peers by state.
#[derive(Debug, Clone, Copy)]
pub struct PeersSeen {
    /// Peers with a recent demand report.
    pub live: usize,
    /// Peers that stopped reporting and whose last demand report still counts.
    pub replayed: usize,
    /// Peers that should exist and do not report.
    pub silent: usize,
}

impl PeersSeen {
    /// Sets the metric.
    pub fn emit(&self, telemetry: &Telemetry) {
        for (state, count) in [("live", self.live), ("replayed", self.replayed), ("silent", self.silent)] {
            telemetry.metrics().scale_peers(state, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::fixtures;

    #[test]
    fn calls_are_counted_and_numbers_that_change_are_told() {
        let telemetry = fixtures::telemetry(1);
        DesiredChanged { pool: "h100", from: None, to: 3, reason: "sustained", ready: 1 }.emit(&telemetry);
        ScalerKeyUnknown { key: "keeplast" }.emit(&telemetry);
        let log = telemetry.captured_log();
        assert!(log.contains(r#""to":3"#) && log.contains(r#""reason":"sustained""#), "{log}");
        assert!(log.contains(r#""key":"keeplast""#), "{log}");
        for (code, problem) in [("ok", None), ("not_found", Some("no pool is called x"))] {
            ScalerAsked { method: "GetMetrics", code, problem }.emit(&telemetry);
        }
        let answered = ScalerAnswered {
            pool: "h100",
            scaled_object: "llama",
            namespace: "ml",
            value: 4,
            active: true,
            reason: "sustained",
            clamped: true,
            raw: false,
        };
        answered.emit(&telemetry);
        ScalerAnswered { clamped: false, ..answered }.emit(&telemetry);
        PeersSeen { live: 2, replayed: 1, silent: 0 }.emit(&telemetry);
        for first in [true, false] {
            PeerLost { place: "10.0.0.5:8082", problem: "connection refused", first }.emit(&telemetry);
        }
        PeerHeard { place: "10.0.0.5:8082", id: "00ff" }.emit(&telemetry);
        DeciderChanged { id: None, own: false }.emit(&telemetry);
        let log = telemetry.captured_log();
        assert_eq!(log.matches(r#""message":"another gateway cannot be heard""#).count(), 1, "{log}");
        assert!(log.contains(r#""id":"00ff""#), "{log}");
        let text = fixtures::render(&telemetry);
        let samples = fixtures::samples(&text);
        let calls =
            |code| samples[&*format!(r#"penstock_scaler_calls_total{{code="{code}",method="GetMetrics"}}"#)];
        assert_eq!([calls("ok"), calls("not_found")], [1.0, 1.0]);
        let peers = |state| samples[&*format!(r#"penstock_scale_peers{{state="{state}"}}"#)];
        assert_eq!([peers("live"), peers("replayed"), peers("silent")], [2.0, 1.0, 0.0]);
        assert_eq!(samples[r#"penstock_scaler_clamped_total{pool="h100"}"#], 1.0);
    }
}

/// The demand that the previous process saved was restored.
#[derive(Debug, Clone, Copy)]
pub struct DemandRestored<'a> {
    /// File with the saved demand.
    pub path: &'a Path,
    /// Number of demand profiles restored.
    pub rows: usize,
}

impl DemandRestored<'_> {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        let Self { path, rows } = self;
        telemetry.log(|| info!(path = %path.display(), rows, "demand restored"));
    }
}

/// The saved demand could not be read or written. The gateway goes on without it.
#[derive(Debug, Clone, Copy)]
pub struct DemandNotKept<'a> {
    pub path: &'a Path,
    pub reason: &'a str,
}

impl DemandNotKept<'_> {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        let Self { path, reason } = self;
        telemetry.log(|| warn!(path = %path.display(), reason, "demand not kept"));
    }
}
