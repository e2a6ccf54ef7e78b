//! Fault table: everything that a simulated engine can do wrong, and the outcome.

use std::collections::BTreeSet;
use std::time::Duration;

use penstock::sim::faults::Fault;
use penstock::sim::server::{SimControl, SimHandle, Terminate};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) what: What,
    /// What it does to requests whose first token has not come.
    pub(super) before: Effect,
    /// What it does to streams that have begun.
    pub(super) after: Effect,
}

/// How to make it happen.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// A fault of single requests; `late` ones can wait for tokens.
    Request { json: &'static str, late: bool },
    /// A fault of connections that were used before.
    Reuse { json: &'static str },
    /// A fault of the whole engine while it lasts.
    Engine { json: &'static str },
    /// The end of its process.
    End { json: &'static str },
}

/// What becomes of requests.
#[derive(Debug, Clone, Copy)]
pub(super) enum Effect {
    /// Nothing.
    None,
    /// They fail in one of these ways, and the replica is not ejected.
    Fails(&'static [&'static str]),
    /// They fail in one of these ways, and the replica is ejected.
    Ejects(&'static [&'static str]),
    /// They fail in one of these ways; which depends on timing, and with it
    /// whether the replica is ejected.
    Either(&'static [&'static str]),
}

const RESET: Effect = Effect::Ejects(&["reset"]);
/// An engine that shows life meanwhile, by bytes or gauges, stays; `silence` has the
/// tests of who goes.
const SILENT: Effect = Effect::Either(&["silent"]);
/// Three in a row eject.
const MALFORMED: Effect = Effect::Either(&["malformed"]);
const ABORTED: Effect = Effect::Ejects(&["aborted"]);
const DRAINING: Effect = Effect::Ejects(&["draining"]);
const BUSY: Effect = Effect::Fails(&["busy"]);
/// An event inside a stream, a status for a plain answer.
const ERROR: Effect = Effect::Ejects(&["error_event", "server_error"]);
const NONE: Effect = Effect::None;

const fn request(json: &'static str, before: Effect) -> Row {
    Row { what: What::Request { json, late: false }, before, after: NONE }
}

const fn late(json: &'static str, before: Effect, after: Effect) -> Row {
    Row { what: What::Request { json, late: true }, before, after }
}

const fn engine(json: &'static str, before: Effect, after: Effect) -> Row {
    Row { what: What::Engine { json }, before, after }
}

const fn end(json: &'static str, before: Effect, after: Effect) -> Row {
    Row { what: What::End { json }, before, after }
}

const fn reuse(json: &'static str) -> Row {
    Row { what: What::Reuse { json }, before: NONE, after: NONE }
}

pub(super) const TABLE: &[Row] = &[
    engine(r#"{"kind":"refuse"}"#, Effect::Ejects(&["refused"]), NONE),
    request(r#"{"kind":"reset","at":"accept"}"#, Effect::Ejects(&["reset", "refused"])),
    request(r#"{"kind":"reset","at":"request"}"#, RESET),
    request(r#"{"kind":"reset","at":"head"}"#, RESET),
    engine(r#"{"kind":"slow","factor":100000}"#, SILENT, SILENT),
    engine(r#"{"kind":"freeze"}"#, SILENT, SILENT),
    engine(r#"{"kind":"drain"}"#, DRAINING, NONE),
    request(r#"{"kind":"status","status":429}"#, BUSY),
    request(r#"{"kind":"status","status":429,"retry_after":1}"#, BUSY),
    request(r#"{"kind":"status","status":503}"#, BUSY),
    request(r#"{"kind":"status","status":503,"retry_after":1}"#, BUSY),
    request(r#"{"kind":"status","status":500}"#, Effect::Ejects(&["server_error"])),
    request(
        r#"{"kind":"status","status":500,"message":"cannot schedule new futures after shutdown"}"#,
        DRAINING,
    ),
    request(r#"{"kind":"status","status":502}"#, Effect::Ejects(&["server_error"])),
    request(r#"{"kind":"status","status":401}"#, Effect::Ejects(&["server_error"])),
    late(r#"{"kind":"error_event"}"#, BUSY, BUSY),
    late(r#"{"kind":"error_event","status":500}"#, ERROR, ERROR),
    late(r#"{"kind":"engine_dead"}"#, ERROR, ERROR),
    late(r#"{"kind":"abort"}"#, ABORTED, ABORTED),
    late(r#"{"kind":"no_finish"}"#, ABORTED, ABORTED),
    late(r#"{"kind":"cut"}"#, RESET, RESET),
    late(r#"{"kind":"silent"}"#, SILENT, SILENT),
    request(r#"{"kind":"silent","before_head":true}"#, SILENT),
    late(r#"{"kind":"malformed_chunk"}"#, Effect::Either(&["reset", "malformed"]), RESET),
    late(r#"{"kind":"malformed_sse"}"#, Effect::Either(&["aborted", "malformed"]), ABORTED),
    late(r#"{"kind":"malformed_json"}"#, MALFORMED, MALFORMED),
    reuse(r#"{"kind":"close_idle"}"#),
    reuse(r#"{"kind":"close_idle","reset":true}"#),
    engine(r#"{"kind":"lying_metrics","running":0,"waiting":100000,"kv_usage":1.0}"#, NONE, NONE),
    engine(r#"{"kind":"frozen_metrics"}"#, NONE, NONE),
    engine(r#"{"kind":"missing_metrics"}"#, NONE, NONE),
    end(r#"{"kind":"spot_notice","grace_ms":0}"#, ABORTED, ABORTED),
    end(r#"{"mode":"sigterm"}"#, ABORTED, ABORTED),
    end(r#"{"mode":"drain","grace_ms":400}"#, Effect::Ejects(&["aborted", "draining"]), ABORTED),
    end(r#"{"mode":"kill_engine"}"#, ERROR, ERROR),
    end(r#"{"mode":"kill_server"}"#, RESET, RESET),
    end(r#"{"mode":"hang"}"#, SILENT, SILENT),
    end(r#"{"mode":"restart","down_ms":300}"#, RESET, RESET),
];

impl What {
    pub(super) const fn json(self) -> &'static str {
        match self {
            Self::Request { json, .. }
            | Self::Reuse { json }
            | Self::Engine { json }
            | Self::End { json } => json,
        }
    }

    /// Makes it happen, and returns when it does.
    pub(super) async fn begin(self, engine: &SimHandle) {
        begin(self.json(), &engine.control());
        if self.json().contains("refuse") {
            while TcpStream::connect(engine.addr).await.is_ok() {
                sleep(Duration::from_millis(2)).await;
            }
        }
    }

    /// Makes it happen to one request, after it has generated `tokens`.
    pub(super) fn begin_after(self, tokens: u32, control: &SimControl) {
        let json = format!("{},\"after_tokens\":{tokens},\"times\":1}}", self.json().trim_end_matches('}'));
        begin(&json, control);
    }
}

fn begin(json: &str, control: &SimControl) {
    if json.contains("\"mode\"") {
        control.terminate(Terminate::from_json(json.as_bytes()).expect(json));
    } else {
        control.add(Fault::from_json(json.as_bytes()).expect(json)).expect(json);
    }
}

impl Effect {
    pub(super) const fn faults(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Fails(faults) | Self::Ejects(faults) | Self::Either(faults) => faults,
        }
    }

    /// Whether only a time limit can tell.
    pub(super) fn is_silence(self) -> bool {
        self.faults().contains(&"silent")
    }

    /// Whether the replica is ejected, where that is certain.
    pub(super) const fn ejects(self) -> Option<bool> {
        match self {
            Self::None | Self::Fails(_) => Some(false),
            Self::Ejects(_) => Some(true),
            Self::Either(_) => None,
        }
    }
}

/// The values of a tag that the simulator knows, from what it says when it
/// gets another.
fn known(error: &str) -> BTreeSet<String> {
    let (_, list) = error.split_once("expected one of ").unwrap_or_else(|| panic!("{error}"));
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn listed(key: &str) -> BTreeSet<String> {
    let values = TABLE.iter().filter_map(|row| {
        let json: Value = serde_json::from_str(row.what.json()).expect("JSON");
        json[key].as_str().map(str::to_owned)
    });
    values.collect()
}

#[test]
fn the_table_has_every_fault_that_the_simulator_knows() {
    let error = |json: &str| Fault::from_json(json.as_bytes()).expect_err(json).to_string();
    assert_eq!(listed("kind"), known(&error(r#"{"kind":"?"}"#)));
    assert_eq!(listed("at"), known(&error(r#"{"kind":"reset","at":"?"}"#)));
    let error = Terminate::from_json(br#"{"mode":"?"}"#).expect_err("unknown").to_string();
    assert_eq!(listed("mode"), known(&error));
}
