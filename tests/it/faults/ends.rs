//! Ends of an engine's process: clients of running streams get an error, and requests that wait
//! inside the engine move to another. Streams of every protocol and plain answers are tested.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use penstock::core::model::snapshot::ReplicaStatus;
use penstock::sim::faults::{Fault, FaultKind};
use penstock::sim::server::{SimOptions, Terminate};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::before::{assert_good, calls};
use super::reply::End;
use super::setup::{Rig, Setup, chat, engine};
use crate::support::gateway::{TENANT, until};

/// For the engine that says nothing; others may be as slow as the machine is.
const LIMITS: &str = "upstream: {first_token_timeout: 4s, stream_idle_timeout: 2s}\n";
/// Tokens of the stream that runs, of 2.5 ms each: enough that the others come while it does.
const RUNNING: u32 = 8_000;
/// Its tokens where it is waited for.
const RUNNING_TO_ITS_END: u32 = 2_000;

/// How an engine ends, what becomes of its running stream, and of what waits
/// inside.
struct Case {
    end: Terminate,
    running: Option<&'static str>,
    waiting: &'static [&'static str],
}

const fn case(end: Terminate, running: Option<&'static str>, waiting: &'static [&'static str]) -> Case {
    Case { end, running, waiting }
}

const CASES: [Case; 6] = [
    case(Terminate::Sigterm, Some("aborted"), &["aborted"]),
    case(Terminate::Drain { grace_ms: 60_000 }, None, &[]),
    case(Terminate::KillEngine, Some("error_event"), &["error_event", "server_error"]),
    case(Terminate::KillServer, Some("reset"), &["reset"]),
    case(Terminate::Hang, Some("silent"), &["silent"]),
    case(Terminate::Restart { down_ms: 500 }, Some("reset"), &["reset"]),
];

async fn run(Case { end, running, waiting }: Case) {
    let mut one_at_a_time = SimOptions { speed: 0.2, ..engine() };
    one_at_a_time.engine.max_seqs = Some(1);
    let rig = Rig::start(Setup {
        engines: vec![one_at_a_time, engine()],
        pool: "max_seqs: 16",
        yaml: if waiting.contains(&"silent") { LIMITS } else { "" }.into(),
        ..Setup::default()
    });
    let rig = Arc::new(rig.await);
    // The other engine is not there at first.
    let (control, other) = (rig.engine(0), rig.engine(1));
    other.add(FaultKind::Refuse).unwrap();
    let tokens = if running.is_none() { RUNNING_TO_ITS_END } else { RUNNING };
    let mut long = rig.open("/v1/chat/completions", &chat(tokens, true)).await;
    long.until("\"content\":\"").await;
    let mut held = JoinSet::new();
    for (path, body) in calls() {
        let rig = Arc::clone(&rig);
        held.spawn(async move { (path, rig.post(path, &body).await) });
    }
    until("requests wait inside", || control.state().waiting >= calls().len() as u64).await;
    // It is there before the first one ends: an engine that is about to close its port would otherwise be
    // tried again and again.
    other.clear();
    until("the other engine is there", || rig.snapshot().replicas[1].state != ReplicaStatus::Ejected).await;
    control.terminate(end);

    let long = long.finish().await;
    let line = rig.line_of(long.request_id()).await;
    match running {
        None => assert_good("chat", &long),
        Some(fault) => {
            assert_eq!((long.end, &line["reason"]), (End::Short, &fault.into()), "{end:?}: {line}");
            assert!(long.text().contains("upstream_broken") && !long.text().contains("[DONE]"), "{end:?}");
        }
    }
    while let Some(reply) = held.join_next().await {
        let (path, reply) = reply.unwrap();
        assert_good(path, &reply);
    }
    rig.settled().await;
    let gone = rig.replica(0);
    let moved: Vec<_> =
        rig.log("request requeued").into_iter().filter(|line| line["replica"] == gone.as_str()).collect();
    let after_end = |fault: &str| ["refused", "draining", "busy"].contains(&fault);
    for line in &moved {
        let fault = line["fault"].as_str().unwrap();
        assert!(waiting.contains(&fault) || after_end(fault), "{end:?}: {line}");
    }
    let expected = if waiting.is_empty() { 0 } else { calls().len() };
    let recalled = rig.log("request recalled").into_iter().filter(|line| line["replica"] == gone.as_str());
    let stalled = recalled.filter(|_| waiting.contains(&"silent"));
    let failed = moved.iter().filter(|line| waiting.contains(&line["fault"].as_str().unwrap())).cloned();
    // A dead engine answers until its port closes: a request may come back to it.
    let lost: BTreeSet<String> = stalled.chain(failed).map(|line| line["request_id"].to_string()).collect();
    assert_eq!(lost.len(), expected, "{end:?}: {moved:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_inside_an_engine_outlives_it() {
    let mut cases = JoinSet::new();
    for case in CASES {
        cases.spawn(run(case));
    }
    while let Some(done) = cases.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http2_a_broken_stream_has_no_good_end_either() {
    let rig = Rig::start(Setup { engines: vec![engine()], ..Setup::default() }).await;
    let tcp = TcpStream::connect(rig.address()).await.unwrap();
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.unwrap();
    let connection = tokio::spawn(connection);
    for (fault, breaks) in [(Some(FaultKind::Cut { after_tokens: 3 }), true), (None, false)] {
        if let Some(fault) = fault {
            rig.engine(0).add(Fault::from(fault).times(1)).unwrap();
        }
        let request = Request::post(format!("http://{}/v1/chat/completions", rig.address()))
            .header("authorization", format!("Bearer {}", rig.key(TENANT)))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(chat(20, true).to_string())))
            .unwrap();
        let mut body = client.send_request(request).await.unwrap().into_body();
        let (mut text, mut broken) = (String::new(), false);
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => text.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap())),
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        assert_eq!(broken, breaks, "{text}");
        assert_eq!(text.contains("upstream_broken"), breaks, "{text}");
        assert_eq!(text.contains("[DONE]"), !breaks, "{text}");
        // The engine was ejected for the first; the second waits for it.
    }
    rig.settled().await;
    connection.abort();
}
