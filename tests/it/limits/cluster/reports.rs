//! Demand reports in the store: what the script keeps, gives and forgets, in a real Redis with a time of the test's.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock::cluster::{DEMAND, DemandReportState, OwnReport, RemoteGateway, StoreNames};
use redis::{Connection, Script};

use crate::support::redis::RedisServer;

const INDEX: &str = "p:v1:{demand}";
const START: u64 = 1_795_651_200_000;

/// A gateway with its state of the exchange.
struct Member {
    id: String,
    state: DemandReportState,
    number: u64,
    text: Vec<u8>,
    leaves: bool,
}

impl Member {
    fn new(id: &str, text: &[u8]) -> Self {
        let (id, text) = (id.to_owned(), text.to_vec());
        Self { id, state: DemandReportState::default(), number: 1, text, leaves: false }
    }

    /// One exchange at this time of the store.
    fn exchange(&mut self, store: &mut Connection, at: u64) -> Vec<RemoteGateway> {
        let is_known = self.state.stored() == self.number;
        let text = if is_known { Vec::new() } else { self.text.clone() };
        let own = OwnReport { number: self.number, leaves: self.leaves, text };
        let names = StoreNames { prefix: "p", id: &self.id, name: &format!("{}:1", self.id) };
        let call = self.state.call(names, Some(own));
        let script = Script::new(&DEMAND.replace("--NOW", "local now = tonumber(table.remove(ARGV))"));
        let mut invoked = script.prepare_invoke();
        call.keys.iter().for_each(|key| _ = invoked.key(key));
        call.values.iter().for_each(|value| _ = invoked.arg(value));
        let answer: Vec<Vec<u8>> = invoked.arg(at).invoke(store).unwrap();
        self.state.receive_answer(&call, answer, []).unwrap()
    }
}

/// By gateway, the age in milliseconds and the report.
fn shown(heard: &[RemoteGateway]) -> BTreeMap<&str, (u128, Option<&[u8]>)> {
    let row = |one: &RemoteGateway| (one.age.unwrap().as_millis(), one.report.clone());
    heard.iter().map(|one| (&*one.id, (row(one).0, one.report.as_deref()))).collect()
}

#[test]
fn a_report_is_read_once_and_told_again_after_a_loss() {
    let server = RedisServer::start();
    let store = &mut server.connect();
    let (mut one, mut two) = (Member::new("a1", b"\xff one"), Member::new("a2", b"two"));
    one.exchange(store, START);
    assert_eq!(shown(&two.exchange(store, START + 100)), [("a1", (100, None))].into());
    let heard = two.exchange(store, START + 300);
    assert_eq!(shown(&heard), [("a1", (300, Some(&b"\xff one"[..])))].into());
    assert_eq!(heard[0].name, "a1:1");
    assert_eq!(shown(&two.exchange(store, START + 500)), [("a1", (500, None))].into(), "it has not changed");
    (one.number, one.text) = (2, b"more".to_vec());
    one.exchange(store, START + 600);
    let heard = two.exchange(store, START + 700);
    assert_eq!(shown(&heard), [("a1", (100, Some(&b"more"[..])))].into());
    // The store has lost its data.
    server.flush();
    assert!(two.exchange(store, START + 900).is_empty());
    one.exchange(store, START + 900);
    assert_eq!((one.state.stored(), two.state.stored()), (0, 0));
    one.exchange(store, START + 1_100);
    assert_eq!(one.state.stored(), 2);
    two.exchange(store, START + 1_200);
    let heard = two.exchange(store, START + 1_400);
    assert_eq!(shown(&heard), [("a1", (300, Some(&b"more"[..])))].into());
    // Its clock is set back, then ahead.
    assert_eq!(shown(&two.exchange(store, START - 50_000))["a1"].0, 0);
    assert!(two.exchange(store, START - 4_000_000).is_empty());
    one.exchange(store, START);
    one.exchange(store, START);
    assert_eq!(one.state.stored(), 2, "told again");
}

#[test]
fn who_has_left_and_who_is_long_silent_is_forgotten() {
    let server = RedisServer::start();
    let store = &mut server.connect();
    let (mut one, mut two, mut three) =
        (Member::new("a1", b"1"), Member::new("a2", b"2"), Member::new("a3", b"3"));
    one.exchange(store, START);
    three.exchange(store, START);
    (one.leaves, one.number) = (true, 2);
    one.exchange(store, START);
    two.exchange(store, START);
    let heard = two.exchange(store, START + 200);
    let gone: Vec<_> = heard.iter().map(|one| (&*one.id, one.is_gone, one.report.is_some())).collect();
    assert_eq!(gone.len(), 2);
    assert!(gone.contains(&("a1", true, false)) && gone.contains(&("a3", false, true)), "{gone:?}");
    let heard = two.exchange(store, START + 329_000);
    assert!(
        heard.iter().any(|one| one.id == "a1" && one.is_gone) && heard.len() == 2,
        "for as long as silence counts"
    );
    assert!(two.exchange(store, START + 331_000).is_empty());
    let fields: u64 = redis::cmd("HLEN").arg(INDEX).query(store).unwrap();
    assert_eq!(fields, 0, "its own is too old as well");
    let keys: Vec<String> = redis::cmd("KEYS").arg("p:*").query(store).unwrap();
    for key in keys {
        let left: i64 = redis::cmd("TTL").arg(&key).query(store).unwrap();
        assert!((1..=3600).contains(&left), "{key} {left}");
    }
}

#[test]
fn gateways_and_answers_are_bounded_and_other_versions_are_read() {
    let server = RedisServer::start();
    let store = &mut server.connect();
    let put = |store: &mut Connection, id: &str, value: &str| {
        redis::cmd("HSET").arg(INDEX).arg(id).arg(value).exec(store).unwrap();
    };
    for id in 0..300 {
        put(store, &format!("c{id:03}"), &format!("{} 1 0 c:1", START + id));
    }
    let mut one = Member::new("a1", b"1");
    let heard = one.exchange(store, START + 400);
    assert_eq!((heard.len(), heard.iter().any(|other| other.id == "c043")), (256, false));
    server.flush();
    // Three reports of 600 kB come in three answers.
    for id in ["b1", "b2", "b3"] {
        Member::new(id, &vec![b'x'; 600_000]).exchange(store, START);
    }
    let mut counts = Vec::new();
    for turn in 0..5 {
        let heard = one.exchange(store, START + turn);
        counts.push(heard.iter().filter(|other| other.report.is_some()).count());
    }
    assert_eq!(counts, [0, 1, 1, 1, 0]);
    // When all of them change in each turn, each has its turn.
    let mut writers = ["b1", "b2", "b3"].map(|id| Member::new(id, &vec![b'y'; 600_000]));
    let mut read = BTreeMap::<String, u32>::new();
    for turn in 0..9 {
        for writer in &mut writers {
            writer.number += 1;
            writer.exchange(store, START + turn);
        }
        let heard = one.exchange(store, START + turn);
        heard
            .into_iter()
            .filter(|other| other.report.is_some())
            .for_each(|other| *read.entry(other.id).or_default() += 1);
    }
    assert_eq!(read.into_values().collect::<Vec<_>>(), [3, 3, 3]);
    // A later version appends values, and one writes something else altogether.
    put(store, "later", &format!("{START} 7 0 host:1 and more"));
    put(store, "broken", "what is this");
    put(store, "large", &format!("{START} {} 0 host:1", "9".repeat(30)));
    redis::cmd("HSET").arg("p:v1:{demand}:later").arg("report").arg("said").exec(store).unwrap();
    one.exchange(store, START + 10);
    let heard = one.exchange(store, START + 11);
    let later = heard.iter().find(|other| other.id == "later").unwrap();
    assert_eq!((later.name.as_str(), later.report.as_deref()), ("host:1", Some(&b"said"[..])));
    assert_eq!(later.age, Some(Duration::from_millis(11)));
    assert!(heard.iter().all(|other| other.id != "broken" && other.id != "large"));
}
