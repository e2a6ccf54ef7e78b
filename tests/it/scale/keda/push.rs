//! Push stream of an `external-push` trigger.

use std::time::Duration;

use penstock::sim::server::{SimHandle, SimOptions, start_fleet};
use tokio::time::{Instant, timeout};
use tonic::{Code, Streaming};

use super::setup::{Keda, apply, file, rig, trigger, wire};
use crate::support::client::Call;
use crate::support::gateway::{Rig, TENANT, chat, head, pool_lines, soon, tenant_lines, until};

const MAIN: &[(&str, &str)] = &[("pool", "main")];
const CHAT: &str = "/v1/chat/completions";

type Stream = Streaming<wire::IsActiveResponse>;

async fn open(keda: &Keda, keys: &[(&str, &str)]) -> Stream {
    soon("a stream", keda.client.clone().stream_is_active(trigger(keys))).await.unwrap().into_inner()
}

async fn word(stream: &mut Stream) -> bool {
    soon("a word", stream.message()).await.unwrap().unwrap().result
}

async fn is_silent(stream: &mut Stream, time: Duration) -> bool {
    timeout(time, stream.message()).await.is_err()
}

fn begin(rig: &Rig) -> tokio::task::JoinHandle<crate::support::client::Answer> {
    tokio::spawn(Call::post(CHAT, &chat(3, true)).key(rig.key(TENANT)).send(rig.address()))
}

#[tokio::test]
async fn the_first_request_of_a_pool_at_zero_is_told_at_once_and_only_once() {
    let engines = start_fleet(vec![SimOptions::default()]).await.unwrap();
    let urls: Vec<String> = engines.iter().map(SimHandle::url).collect();
    let rig = rig(engines, &[], "").await;
    let keda = Keda::of(&rig).await;
    let (mut stream, mut other) = (open(&keda, MAIN).await, open(&keda, &[("pool", "other")]).await);
    assert!(!word(&mut stream).await && !word(&mut other).await, "the state, at once");

    let begun = Instant::now();
    let held = [begin(&rig), begin(&rig)];
    assert!(word(&mut stream).await);
    println!("first request to `true`: {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
    keda.wants(1).await;
    until("both are held", || rig.waiting() == 2).await;
    assert!(is_silent(&mut stream, Duration::from_millis(700)).await, "edges only");

    apply(&rig, &file(&urls, "")).await;
    for answer in held {
        assert!(soon("a held request", answer).await.unwrap().is_done());
    }
    assert!(!word(&mut stream).await, "it is idle again");
    assert!(is_silent(&mut other, Duration::from_millis(1)).await, "another pool is no business of this one");
}

#[tokio::test]
async fn a_pool_that_stays_without_replicas_is_told_of_again() {
    let rig = rig(Vec::new(), &[], "").await;
    let keda = Keda::of(&rig).await;
    let mut stream = open(&keda, MAIN).await;
    assert!(!word(&mut stream).await);
    let begun = Instant::now();
    let held = begin(&rig);
    assert!(word(&mut stream).await);
    assert!(word(&mut stream).await, "KEDA may not have known the metric's name");
    let after = begun.elapsed().as_secs_f64();
    assert!(after > 9.0, "{after}");
    held.abort();
    assert!(!word(&mut stream).await);
}

#[tokio::test]
async fn streams_end_well_when_the_gateway_does() {
    let rig = rig(Vec::new(), &[], "").await;
    let keda = Keda::of(&rig).await;
    let mut stream = open(&keda, MAIN).await;
    let specs = keda.client.clone().stream_metric_spec(trigger(MAIN)).await.unwrap();
    let mut specs = specs.into_inner();
    assert_eq!(specs.message().await.unwrap().unwrap().metric_specs.len(), 1);
    assert!(!word(&mut stream).await);
    let Rig { gateway, .. } = rig;
    let drained = tokio::spawn(gateway.drain());
    // `None` is the status OK; KEDA then comes back without a penalty.
    assert_eq!(soon("the end", stream.message()).await.unwrap(), None);
    assert_eq!(soon("the end", specs.message()).await.unwrap(), None);
    soon("the drain", drained).await.unwrap();
    assert!(keda.specs(MAIN).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn while_it_drains_the_numbers_go_on_and_new_streams_end_after_their_first_word() {
    let engines = start_fleet(vec![SimOptions::default()]).await.unwrap();
    let urls: Vec<String> = engines.iter().map(SimHandle::url).collect();
    let rig = rig(engines, &urls, "").await;
    let keda = Keda::of(&rig).await;
    rig.engine(0).add(penstock::sim::faults::FaultKind::Slow { factor: 50.0 }).unwrap();
    let call = Call::post(CHAT, &chat(2_000, true)).key(rig.key(TENANT)).send(rig.address());
    let running = tokio::spawn(call);
    until("it runs", || rig.snapshot().replicas[0].running == 1).await;
    keda.becomes(true).await;
    let control = rig.engine(0);
    let Rig { gateway, engines: _engines, .. } = rig;
    let drained = tokio::spawn(gateway.drain());
    let ended = async {
        loop {
            let mut stream = open(&keda, MAIN).await;
            assert!(word(&mut stream).await);
            if let Ok(end) = timeout(Duration::from_millis(50), stream.message()).await {
                return end;
            }
        }
    };
    assert_eq!(soon("a short stream", ended).await.unwrap(), None);
    assert_eq!(keda.desired().await, 1, "what runs is counted to its end");
    control.clear();
    assert!(soon("the answer", running).await.unwrap().is_done());
    soon("the drain", drained).await.unwrap();
}

#[tokio::test]
async fn a_pool_that_leaves_the_file_ends_its_streams_as_not_found() {
    let rig = rig(Vec::new(), &[], "").await;
    let keda = Keda::of(&rig).await;
    let mut stream = open(&keda, &[("pool", "other")]).await;
    let mut specs =
        keda.client.clone().stream_metric_spec(trigger(&[("pool", "other")])).await.unwrap().into_inner();
    assert!(!word(&mut stream).await && specs.message().await.unwrap().is_some());
    let text = head("")
        + "scale: {listen: \"127.0.0.1:0\"}\ntenants:\n"
        + &tenant_lines(TENANT, "")
        + "pools:\n"
        + &pool_lines("main", "engine: vllm\nmodels: [sim]\nmax_seqs: 4\ncold_start: 3m", &[]);
    apply(&rig, &text).await;
    assert_eq!(soon("the end", stream.message()).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(soon("the end", specs.message()).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(keda.is_active(&[("pool", "other")]).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn streams_are_bounded() {
    let rig = rig(Vec::new(), &[], ", max_streams: 2").await;
    let keda = Keda::of(&rig).await;
    let first = open(&keda, MAIN).await;
    let _second = open(&keda, MAIN).await;
    let refused = keda.client.clone().stream_is_active(trigger(MAIN)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(keda.desired().await, 0, "calls go on");
    drop(first);
    let again = async {
        while keda.client.clone().stream_is_active(trigger(MAIN)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("room for another", again).await;
}
