//! Overrides that operators set at one gateway and that all gateways have, through a real Redis.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use penstock::cluster::{OVERRIDES, SharedOverride, SharedOverrides, target_name};
use penstock::config::load::load_str_with;
use penstock::config::secret::MachineSecrets;
use penstock::core::model::overrides::{Closed, OverrideChange, OverrideTarget};
use penstock::core::model::policy::Policy;
use redis::{Connection, Script};
use serde_json::{Value, json};
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::support::client::Call;
use crate::support::gateway::{PATIENCE, Rig, RigOptions, TENANT, head, pool_lines, tenant_lines, until};
use crate::support::redis::RedisServer;

/// Within this time all gateways have an override, however busy the machine is: it takes two turns of 200 ms.
const SOON: Duration = PATIENCE;
/// A stored text of a later version.
const LATER: &str = r#"{"v":2,"kind":"quarantine","of":"all"}"#;

async fn rig(server: &RedisServer) -> Rig {
    let more = format!("cluster: {{valkey: {{url: '{}'}}}}\n", server.url());
    // Names of replicas are the same at all gateways.
    let urls = vec!["http://127.0.0.1:9".to_owned(), "http://127.0.0.1:10".to_owned()];
    Rig::start(RigOptions { urls, tenants: vec![(TENANT, "")], more, ..RigOptions::default() }).await
}

async fn verb(rig: &Rig, path: &str, body: &Value) {
    let call = Call::post(&format!("/admin/v1/{path}"), body);
    call.send(rig.gateway.admin_address()).await.ok();
}

async fn overrides(rig: &Rig) -> Vec<Value> {
    let told = rig.admin(Method::GET, "/admin/v1/overrides").await.ok().json();
    told["overrides"].as_array().unwrap().clone()
}

/// Waits until the gateway has these overrides, by kind and name, and returns their rows.
async fn has(rig: &Rig, wanted: &[(&str, &str)], within: Duration) -> Vec<Value> {
    let begun = Instant::now();
    loop {
        let rows = overrides(rig).await;
        let seen: Vec<(&str, &str)> =
            rows.iter().map(|row| (row["kind"].as_str().unwrap(), row["name"].as_str().unwrap())).collect();
        if seen == wanted {
            return rows;
        }
        assert!(begun.elapsed() < within, "{seen:?} after {:?}", begun.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
}

/// The gateway's status, once a turn has told it of so many members.
async fn status_of(rig: &Rig, members: usize) -> Value {
    let begun = Instant::now();
    loop {
        let status = rig.admin(Method::GET, "/admin/v1/status").await.ok().json();
        if status["cluster"]["members"].as_array().is_some_and(|known| known.len() == members) {
            return status;
        }
        assert!(begun.elapsed() < SOON, "{status}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_override_holds_at_all_gateways_and_is_ended_at_any() {
    let server = block_in_place(RedisServer::start);
    let [one, two] = [rig(&server).await, rig(&server).await];
    verb(&one, "pools/drain", &json!({ "name": "main", "for": "30m", "reason": "a new kernel" })).await;
    let rows = has(&two, &[("drain", "main")], SOON).await;
    assert_eq!((&rows[0]["reason"], &rows[0]["set_at"]["who"]), (&json!("a new kernel"), &json!("local")));
    let left = rows[0]["ends_in_seconds"].as_f64().unwrap();
    assert!((1790.0..=1800.0).contains(&left), "{left}");
    let status = status_of(&one, 2).await;
    let (own, members) = (&status["cluster"], &status["cluster"]["members"]);
    assert_eq!(rows[0]["set_at"]["gateway"], own["id"]);
    assert_eq!(status["overrides"][0]["set_at"], rows[0]["set_at"]);
    for member in members.as_array().unwrap() {
        assert_eq!(member["version"], env!("CARGO_PKG_VERSION"));
        assert!(member["name"].as_str().unwrap().contains(':') && member["jobs"] == 0, "{member}");
        assert!(member["heard_seconds_ago"].as_f64().unwrap() < 5.0, "{member}");
    }
    assert!(two.telemetry.captured_log().contains("override changed at another gateway"));
    assert!(!one.telemetry.captured_log().contains("override changed at another gateway"), "it is its own");
    // The later one counts, wherever it is said.
    verb(&two, "pools/cordon", &json!({ "name": "main", "for": "forever" })).await;
    let rows = has(&one, &[("cordon", "main")], SOON).await;
    assert_eq!(rows[0]["ends_in_seconds"], Value::Null);
    verb(&two, "tenants/boost", &json!({ "name": TENANT, "by": 2.5, "for": "30m" })).await;
    let rows = has(&one, &[("cordon", "main"), ("boost", TENANT)], SOON).await;
    assert_eq!(rows[1]["by"], 2.5);
    // A gateway that starts has them before it serves.
    let three = rig(&server).await;
    has(&three, &[("cordon", "main"), ("boost", TENANT)], Duration::ZERO).await;
    assert_eq!(three.telemetry.captured_log().matches("override changed at another gateway").count(), 2);
    // One ends by itself, at all of them.
    verb(&two, "tenants/pause", &json!({ "name": TENANT, "for": "5s" })).await;
    has(&three, &[("cordon", "main"), ("pause", TENANT), ("boost", TENANT)], SOON).await;
    for rig in [&one, &two, &three] {
        has(rig, &[("cordon", "main"), ("boost", TENANT)], SOON).await;
    }
    verb(&three, "pools/uncordon", &json!({ "name": "main" })).await;
    verb(&three, "tenants/resume", &json!({ "name": TENANT })).await;
    for rig in [&one, &two, &three] {
        has(rig, &[], SOON).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn overrides_work_without_the_store_and_meet_when_it_is_back() {
    let mut server = block_in_place(RedisServer::start);
    let [one, two] = [rig(&server).await, rig(&server).await];
    verb(&one, "pools/drain", &json!({ "name": "main" })).await;
    has(&two, &[("drain", "main")], SOON).await;
    block_in_place(|| server.kill());
    until("it is noticed", || one.telemetry.captured_log().contains("is away")).await;
    verb(&one, "tenants/pause", &json!({ "name": TENANT })).await;
    has(&one, &[("drain", "main"), ("pause", TENANT)], SOON).await;
    verb(&two, "pools/uncordon", &json!({ "name": "main" })).await;
    has(&two, &[], SOON).await;
    // It comes back empty.
    block_in_place(|| server.restart());
    for rig in [&one, &two] {
        has(rig, &[("pause", TENANT)], SOON).await;
    }
    // It loses its data while all are there: they tell it again, for those that start.
    block_in_place(|| server.flush());
    sleep(Duration::from_millis(600)).await;
    let three = rig(&server).await;
    has(&three, &[("pause", TENANT)], SOON).await;
    // What a later version says is left alone, and disturbs nothing.
    let mut store = block_in_place(|| server.connect());
    let key = "penstock:v1:{overrides}";
    let put = |store: &mut Connection, field: &str, text: &str| {
        redis::cmd("HSET").arg(key).arg(field).arg(text).exec(store).unwrap();
    };
    block_in_place(|| {
        put(&mut store, "pool/main", &format!("1 -1 {LATER}"));
        put(&mut store, "shelf/main", "no numbers at all");
    });
    verb(&three, "tenants/boost", &json!({ "name": TENANT, "by": 3 })).await;
    has(&one, &[("pause", TENANT), ("boost", TENANT)], SOON).await;
    let stored: String = redis::cmd("HGET").arg(key).arg("pool/main").query(&mut store).unwrap();
    assert!(stored.ends_with(LATER), "{stored}");
}

/// The state of the exchange and the real script, without a gateway.
struct Member {
    state: SharedOverrides,
    policy: Arc<Policy>,
}

impl Member {
    /// One exchange at this time of the store. Returns the kinds of what begins, and `end`.
    fn exchange(&mut self, store: &mut Connection, at: u64) -> Vec<String> {
        let script = Script::new(&OVERRIDES.replace("--NOW", "local now = tonumber(table.remove(ARGV))"));
        let call = self.state.call();
        let mut invoked = script.key("overrides");
        call.values.iter().for_each(|value| _ = invoked.arg(value));
        let answer: Vec<String> = invoked.arg(at).invoke(store).unwrap();
        let heard = self.state.receive_answer(&call, &answer, &self.policy).unwrap();
        let word = |change: Option<OverrideChange>| change.map_or("end", |change| change.name()).to_owned();
        heard.into_iter().map(|heard| word(heard.change)).collect()
    }

    fn say(&mut self, closed: Option<Closed>, lasts: Option<Duration>) {
        let pool = self.policy.pools.id("p").unwrap();
        let change = closed.map(|closed| OverrideChange::ClosePool(pool, closed));
        let shared = SharedOverride::new(change, "any", "local");
        self.state.set(target_name(OverrideTarget::Pool(pool), &self.policy), shared, lasts);
    }
}

fn member() -> Member {
    let urls = ["http://127.0.0.1:9".to_owned()];
    let pools = pool_lines("p", "engine: vllm\nmodels: [m]", &urls);
    let text = head("") + "tenants:\n" + &tenant_lines(TENANT, "") + "pools:\n" + &pools;
    let outcome = load_str_with(&text, "test", Path::new("."), None, &MachineSecrets);
    let policy = outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings.policy;
    Member { state: SharedOverrides::default(), policy }
}

/// What a gateway that was away brings back does not undo what was said later, whether that still holds or
/// is over, and a store whose clock was ahead locks nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_later_word_counts_whoever_was_away() {
    let server = block_in_place(RedisServer::start);
    let mut store = block_in_place(|| server.connect());
    let (mut one, mut two) = (member(), member());
    let begin = 1_795_651_200_000;
    assert_eq!(one.exchange(&mut store, begin), Vec::<String>::new());
    // `one` is cut off when it drains the pool for an hour; a little later it is cordoned for ten minutes.
    one.say(Some(Closed::Drained), Some(Duration::from_secs(3600)));
    sleep(Duration::from_millis(300)).await;
    two.say(Some(Closed::Cordoned), Some(Duration::from_secs(600)));
    assert_eq!(two.exchange(&mut store, begin + 300), Vec::<String>::new());
    let minutes = |count: u64| begin + count * 60_000;
    // It comes back after the cordon is over. Its own drain was replaced, so it ends.
    assert_eq!(one.exchange(&mut store, begin + 320), ["cordon"]);
    assert_eq!(one.exchange(&mut store, minutes(11)), Vec::<String>::new());
    let mut three = member();
    assert_eq!(three.exchange(&mut store, minutes(11)), Vec::<String>::new());
    // Ended for good: known for a day, then forgotten.
    one.say(Some(Closed::Drained), None);
    one.exchange(&mut store, minutes(12));
    assert_eq!(three.exchange(&mut store, minutes(12)), ["drain"]);
    three.say(None, Some(Duration::ZERO));
    three.exchange(&mut store, minutes(13));
    assert_eq!(one.exchange(&mut store, minutes(13)), ["end"]);
    assert_eq!(two.exchange(&mut store, minutes(13)), Vec::<String>::new());
    let length = |store: &mut Connection| redis::cmd("HLEN").arg("overrides").query::<u64>(store).unwrap();
    assert_eq!(length(&mut store), 2, "the target and the number of the state");
    two.say(Some(Closed::SpotNotice), Some(Duration::from_secs(1)));
    two.exchange(&mut store, minutes(14));
    // Another store with a clock that is three minutes behind.
    two.say(Some(Closed::Cordoned), None);
    two.exchange(&mut store, minutes(11));
    assert_eq!(three.exchange(&mut store, minutes(11)), ["cordon"]);
    // What nobody has known for a day is gone; what is to last stays.
    let day = 24 * 60 + 20;
    three.exchange(&mut store, minutes(day));
    three.say(None, Some(Duration::ZERO));
    three.exchange(&mut store, minutes(day));
    two.exchange(&mut store, minutes(day));
    two.exchange(&mut store, minutes(2 * day));
    assert_eq!(member().exchange(&mut store, minutes(2 * day)), Vec::<String>::new());
    assert_eq!(length(&mut store), 1, "only the number of the state");
}
