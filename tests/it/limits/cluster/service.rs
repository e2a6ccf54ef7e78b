//! Work of tenants in the store: what the script keeps, gives and forgets, in a real Redis with a time of the test's.

use std::path::Path;
use std::sync::Arc;

use penstock::cluster::{SERVICE, ServiceBatches, StoreNames};
use penstock::config::load::load_str_with;
use penstock::config::secret::MachineSecrets;
use penstock::core::model::policy::Policy;
use penstock::core::queue::fairness::service::{ServiceAccount, ServiceReport};
use redis::{Connection, Script};

use crate::support::gateway::{TENANT, head, pool_lines, tenant_lines};
use crate::support::redis::RedisServer;

const INDEX: &str = "p:v1:{service}";
const START: u64 = 1_795_651_200_000;
/// No reports.
const NONE: [i64; 0] = [];

fn policy() -> Arc<Policy> {
    let urls = ["http://127.0.0.1:9".to_owned()];
    let text = head("")
        + "tenants:\n"
        + &tenant_lines(TENANT, "")
        + "pools:\n"
        + &pool_lines("p", "engine: vllm\nmodels: [m]", &urls);
    let outcome = load_str_with(&text, "test", Path::new("."), None, &MachineSecrets);
    outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings.policy
}

/// A gateway with its state of the exchange.
struct Member {
    id: &'static str,
    batches: ServiceBatches,
    policy: Arc<Policy>,
}

impl Member {
    fn new(id: &'static str) -> Self {
        Self { id, batches: ServiceBatches::default(), policy: policy() }
    }

    /// One exchange at this time of the store, with a batch of so many tokens, if there are any. Returns the
    /// tokens of each report of the others.
    fn exchange(&mut self, store: &mut Connection, at: u64, tokens: i64) -> Vec<i64> {
        let pool = self.policy.pools.id("p").unwrap();
        let class = self.policy.classes.id("interactive").unwrap();
        let tenant = self.policy.tenants.id(TENANT).unwrap();
        let report = ServiceReport { account: ServiceAccount::Tenant { pool, class, tenant }, tokens };
        let names = StoreNames { prefix: "p", id: self.id, name: "" };
        let reports = if tokens == 0 { Vec::new() } else { vec![report] };
        let call = self.batches.call(names, &reports, &[], &self.policy);
        let script = Script::new(&SERVICE.replace("--NOW", "local now = tonumber(table.remove(ARGV))"));
        let mut invoked = script.prepare_invoke();
        call.keys.iter().for_each(|key| _ = invoked.key(key));
        call.values.iter().for_each(|value| _ = invoked.arg(value));
        let answer: Vec<Vec<u8>> = invoked.arg(at).invoke(store).unwrap();
        let heard = self.batches.receive_answer(&call, answer, &self.policy).unwrap();
        heard.iter().map(|report| report.tokens).collect()
    }
}

fn fields(store: &mut Connection, key: &str) -> u64 {
    redis::cmd("HLEN").arg(key).query(store).unwrap()
}

#[test]
fn work_is_heard_once_and_who_joins_begins_there() {
    let server = RedisServer::start();
    let store = &mut server.connect();
    let [mut one, mut two, mut three] = ["a1", "a2", "a3"].map(Member::new);
    two.exchange(store, START, 0);
    one.exchange(store, START, 0);
    one.exchange(store, START + 10, 5);
    one.exchange(store, START + 20, -7);
    assert_eq!(two.exchange(store, START + 30, 11), NONE, "it learns that there is another one");
    assert_eq!(two.exchange(store, START + 40, 0), [5, -7]);
    assert_eq!(one.exchange(store, START + 50, 0), NONE);
    assert_eq!(one.exchange(store, START + 60, 0), [11]);
    for at in [70, 80] {
        assert_eq!(
            (one.exchange(store, START + at, 0), two.exchange(store, START + at, 0)),
            (vec![], vec![])
        );
    }
    three.exchange(store, START + 90, 0);
    assert_eq!(three.exchange(store, START + 100, 0), NONE, "it was told before");
    one.exchange(store, START + 110, 3);
    assert_eq!(
        (two.exchange(store, START + 120, 0), three.exchange(store, START + 120, 0)),
        (vec![3], vec![3])
    );
    // After a loss of the connection, and one of the store's data.
    two.batches.start_over();
    one.exchange(store, START + 130, 9);
    assert_eq!((two.exchange(store, START + 140, 0), two.exchange(store, START + 150, 0)), (vec![], vec![]));
    server.flush();
    assert_eq!(two.exchange(store, START + 160, 0), NONE);
    one.exchange(store, START + 170, 13);
    two.exchange(store, START + 180, 0);
    assert_eq!(two.exchange(store, START + 190, 0), [13]);
}

#[test]
fn what_the_store_keeps_is_bounded() {
    let server = RedisServer::start();
    let store = &mut server.connect();
    let [mut one, mut two] = ["a1", "a2"].map(Member::new);
    two.exchange(store, START, 0);
    one.exchange(store, START, 0);
    for turn in 1..=40 {
        one.exchange(store, START + turn, i64::try_from(turn).unwrap());
    }
    assert_eq!(fields(store, &format!("{INDEX}:a1")), 16);
    two.exchange(store, START + 50, 0);
    assert_eq!(two.exchange(store, START + 60, 0), (25..=40).collect::<Vec<i64>>(), "what is older is lost");
    let ttl: u64 = redis::cmd("TTL").arg(format!("{INDEX}:a1")).query(store).unwrap();
    assert!((1..=30).contains(&ttl), "{ttl}");
    assert_eq!(fields(store, INDEX), 1, "who tells nothing is not listed");
    two.exchange(store, START + 59_000, 0);
    assert_eq!(fields(store, INDEX), 1);
    two.exchange(store, START + 61_000, 0);
    assert_eq!(fields(store, INDEX), 0);
    for id in 0..300 {
        let value = format!("{} 1", START + id);
        redis::cmd("HSET").arg(INDEX).arg(format!("c{id:03}")).arg(value).exec(store).unwrap();
    }
    redis::cmd("HSET").arg(INDEX).arg("broken").arg("x").exec(store).unwrap();
    two.exchange(store, START + 400, 0);
    assert_eq!(fields(store, INDEX), 256);
}
