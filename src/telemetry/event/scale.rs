//! The scale signal: what it says, and who asked.

use std::path::Path;

use tracing::{debug, info, warn};

use crate::telemetry::Telemetry;
use crate::telemetry::event::shorten;

/// A pool needs another number of replicas than before.
#[derive(Debug, Clone, Copy)]
pub struct DesiredChanged<'a> {
    /// The pool.
    pub pool: &'a str,
    /// What it needed; absent = that was not known.
    pub from: Option<u32>,
    /// What it needs.
    pub to: u32,
    /// Where the number comes from.
    pub reason: &'static str,
    /// Replicas in service.
    pub ready: u32,
}

impl DesiredChanged<'_> {
    /// Writes the event; the metric is read at each scrape.
    pub fn emit(&self, telemetry: &Telemetry) {
        let Self { pool, from, to, reason, ready } = self;
        telemetry.log(|| info!(pool, from, to, reason, ready, "desired replicas changed"));
    }
}

/// A scaler's client was told a number.
#[derive(Debug, Clone, Copy)]
pub struct ScalerAnswered<'a> {
    /// The pool.
    pub pool: &'a str,
    /// The ScaledObject that asked, as it calls itself.
    pub scaled_object: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// The number.
    pub value: u64,
    /// Whether the pool is active.
    pub active: bool,
    /// Where the number comes from.
    pub reason: &'static str,
    /// Whether the ScaledObject's own bounds changed it.
    pub clamped: bool,
    /// Whether it is a raw number, not one of replicas.
    pub raw: bool,
}

impl ScalerAnswered<'_> {
    /// Writes the event, and counts it where the number was bounded.
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

/// A call of the scaler was answered.
#[derive(Debug, Clone, Copy)]
pub struct ScalerAsked<'a> {
    /// The call.
    pub method: &'static str,
    /// How it ended, as a stable code.
    pub code: &'static str,
    /// What was wrong with it.
    pub problem: Option<&'a str>,
}

impl ScalerAsked<'_> {
    /// Counts the event, and writes it where something was wrong.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.metrics().scaler_asked(self.method, self.code);
        if let Some(problem) = self.problem {
            telemetry.log(|| debug!(method = self.method, code = self.code, problem, "scaler call refused"));
        }
    }
}

/// A trigger has a key that means nothing here.
#[derive(Debug, Clone, Copy)]
pub struct ScalerKeyUnknown<'a> {
    /// The key.
    pub key: &'a str,
}

impl ScalerKeyUnknown<'_> {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| {
            warn!(
                key = shorten(self.key),
                "a trigger's metadata has a key that means nothing here; is it spelled right?"
            );
        });
    }
}

/// Another gateway that serves the same demand cannot be heard.
#[derive(Debug, Clone, Copy)]
pub struct PeerLost<'a> {
    /// Where it should be.
    pub place: &'a str,
    /// What is wrong.
    pub problem: &'a str,
    /// Whether it was heard before this.
    pub first: bool,
}

impl PeerLost<'_> {
    /// Writes the event, once for a loss.
    pub fn emit(&self, telemetry: &Telemetry) {
        let (place, problem) = (self.place, shorten(self.problem));
        if self.first {
            telemetry.log(|| warn!(place, problem, "another gateway cannot be heard"));
        } else {
            telemetry.log(|| debug!(place, problem, "another gateway still cannot be heard"));
        }
    }
}

/// Another gateway is heard.
#[derive(Debug, Clone, Copy)]
pub struct PeerHeard<'a> {
    /// Where.
    pub place: &'a str,
    /// Its id.
    pub id: &'a str,
}

impl PeerHeard<'_> {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.log(|| info!(place = self.place, id = self.id, "another gateway is heard"));
    }
}

/// Another gateway decides than before.
#[derive(Debug, Clone, Copy)]
pub struct DeciderChanged<'a> {
    /// Its id; absent = nobody does.
    pub id: Option<&'a str>,
    /// Whether that is this gateway.
    pub own: bool,
}

impl DeciderChanged<'_> {
    /// Writes the event.
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

/// How many other gateways there are.
#[derive(Debug, Clone, Copy)]
pub struct PeersSeen {
    /// With a young report.
    pub live: usize,
    /// Whose last report still counts.
    pub replayed: usize,
    /// That should be there and say nothing.
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

/// The demand that the last process has seen was taken over.
#[derive(Debug, Clone, Copy)]
pub struct DemandRestored<'a> {
    /// From where.
    pub path: &'a Path,
    /// Its profiles.
    pub rows: usize,
}

impl DemandRestored<'_> {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let Self { path, rows } = self;
        telemetry.log(|| info!(path = %path.display(), rows, "demand restored"));
    }
}

/// The demand that was seen could not be read or written; the gateway goes on
/// without.
#[derive(Debug, Clone, Copy)]
pub struct DemandNotKept<'a> {
    /// The file.
    pub path: &'a Path,
    /// Why.
    pub reason: &'a str,
}

impl DemandNotKept<'_> {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let Self { path, reason } = self;
        telemetry.log(|| warn!(path = %path.display(), reason, "demand not kept"));
    }
}
