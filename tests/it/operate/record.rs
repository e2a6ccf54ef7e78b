//! A gateway that records: its record replays to the same decisions, and holds nothing that is secret.

use std::path::Path;

use penstock::app::Gateway;
use penstock::config::watch::Reloader;
use penstock::record::RecordOptions;
use penstock::record::read::{RecordPart, runs};
use penstock::record::replay::exact::ExactReplay;
use penstock::record::replay::history::{History, JobEnd};
use penstock::record::replay::report::figures;
use penstock::record::replay::what_if::predict;
use penstock::sim::engine::profile::StepProfile;
use penstock::sim::faults::{Fault, FaultKind, ResetPoint};
use penstock::sim::server::{SimOptions, SimServer};
use penstock::telemetry::Telemetry;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::client::{Call, Raw};
use crate::support::gateway::{
    MODEL, PATIENCE, TENANT, chat, head, key_of, pool_lines, soon, tenant_lines, until,
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// Words of the prompts.
const WORDS: &str = "confidential-merger-of-two-banks ";

/// A file in which the second tenant has this weight.
fn file(weight: u32, urls: &[String]) -> String {
    head("")
        + "tenants:\n"
        + &tenant_lines(TENANT, "weight: 2")
        + &tenant_lines("beta", &format!("weight: {weight}\nqueue: {{requests: 12}}"))
        + "pools:\n"
        + &pool_lines("main", "engine: vllm\nmodels: [sim]\nmax_seqs: 3\nprice: 2", urls)
}

fn replayed(folder: &Path) -> (ExactReplay, History) {
    let mut begun = None;
    let tell = |part: RecordPart<'_>, _| match (part, &mut begun) {
        (RecordPart::Begin(policy), begun) => {
            *begun = Some((ExactReplay::new(policy), History::new(std::sync::Arc::new(policy.clone()))));
        }
        (RecordPart::Step(step), Some((exact, history))) => {
            exact.step(step);
            history.step(step);
        }
        (part, _) => panic!("{part:?}"),
    };
    let findings = runs(folder).unwrap().last().unwrap().each(tell).unwrap();
    assert!(findings.is_whole(), "{findings:?}");
    assert_eq!(findings.configs.len(), 2, "the file changed once");
    begun.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_run_replays_to_the_same_decisions() {
    let folder = tempfile::tempdir().unwrap();
    let (path, record) = (folder.path().join("penstock.yaml"), folder.path().join("record"));
    let options = || SimOptions { profile: StepProfile::tiny(), ..SimOptions::default() };
    let engines = [SimServer::start(options()).await.unwrap(), SimServer::start(options()).await.unwrap()];
    let urls: Vec<String> = engines.iter().map(penstock::sim::server::SimHandle::url).collect();
    std::fs::write(&path, file(1, &urls)).unwrap();
    let (reloader, _) = Reloader::start(path.clone()).unwrap_or_else(|report| panic!("{report}"));
    let to = Some(RecordOptions { folder: record.clone(), bytes: 64 << 20 });
    let gateway = Gateway::start_recorded(reloader, Telemetry::for_tests(), to).await.unwrap();
    let address = gateway.address();

    // The first engine fails some requests, which go to the other one.
    let resets = FaultKind::Reset { at: ResetPoint::Request };
    engines[0].control().add(Fault { times: Some(3), path: Some(CHAT.into()), ..resets.into() }).unwrap();
    // What nobody else asks for stops in the middle.
    for engine in &engines {
        let silent = FaultKind::Silent { after_tokens: 3, before_head: false };
        engine.control().add(Fault { path: Some(COMPLETIONS.into()), ..silent.into() }).unwrap();
    }
    let mut clients = JoinSet::new();
    for number in 0..40_u32 {
        let tenant = if number.is_multiple_of(2) { TENANT } else { "beta" };
        let mut body = chat(40 + number, !number.is_multiple_of(3));
        body["messages"] = json!([{ "role": "user", "content": WORDS.repeat(60 + number as usize) }]);
        let call = Call::post(CHAT, &body).key(&key_of(tenant).text);
        clients.spawn(async move { call.send(address).await.status });
    }
    // A client that leaves in its stream.
    let body = json!({ "model": MODEL, "prompt": WORDS, "max_tokens": 100, "stream": true });
    let call = Call::post(COMPLETIONS, &body).key(&key_of(TENANT).text);
    let mut leaver = Raw::open(address).await;
    leaver.write(call.header("connection", "close").bytes()).await.unwrap();
    soon("a token", leaver.read_past("data: ")).await.unwrap();
    drop(leaver);
    let generation = || gateway.proxy().telemetry.policy().generation;
    let before = generation();
    std::fs::write(&path, file(5, &urls)).unwrap();
    until("the reload", || generation() > before).await;
    let statuses = soon("all answers", clients.join_all()).await;
    assert!(statuses.iter().filter(|status| **status == 200).count() > 20, "{statuses:?}");
    soon("the drain", gateway.drain()).await;

    let (exact, history) = replayed(&record);
    assert_eq!((exact.differing, exact.same), (0, exact.decisions), "{:?}", exact.first);
    assert_eq!(history.jobs.len(), 41);
    let ended = |end| history.jobs.iter().filter(|job| job.end == end).count();
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!((ended(JobEnd::Done), ended(JobEnd::Left), ended(JobEnd::Open)), (served, 1, 0));
    assert_eq!(ended(JobEnd::Rejected), 40 - served);
    let rows = figures(&history, "happened");
    let all = rows.last().unwrap();
    assert!(all.cost > 0.0 && all.gpu_seconds > 0.0 && all.output_tokens > 100, "{all:?}");

    let prediction = predict(&history, &history.policy, &|_| {});
    let again = figures(&prediction.other, "predicted");
    assert_eq!(again.last().unwrap().requests, 41);
    assert_eq!(prediction.notes, Vec::<String>::new());

    for file in std::fs::read_dir(&record).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let secrets = ["merger", "confidential", &key_of(TENANT).text, &key_of(TENANT).digest];
        assert!(secrets.iter().all(|secret| !text.contains(secret)));
    }
    for engine in engines {
        tokio::time::timeout(PATIENCE, engine.stop()).await.unwrap();
    }
}
