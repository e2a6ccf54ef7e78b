//! Loads of gateways in the store: what the script keeps, gives and forgets, in a real Redis with a time of the
//! test's.

use penstock::cluster::LOAD;
use redis::{Connection, Script};

use crate::support::redis::RedisServer;

const KEY: &str = "p:v1:{load}";
const START: u64 = 1_795_651_200_000;

/// Tells a load at this time of the store, and returns the other gateways with theirs.
fn tell(store: &mut Connection, at: u64, id: &str, load: &str) -> Vec<(String, String)> {
    let script = Script::new(&LOAD.replace("--NOW", "local now = tonumber(table.remove(ARGV))"));
    let answer: Vec<String> = script.key(KEY).arg(id).arg(load).arg(START + at).invoke(store).unwrap();
    let mut rows: Vec<(String, String)> =
        answer.chunks_exact(2).map(|row| (row[0].clone(), row[1].clone())).collect();
    rows.sort();
    rows
}

fn row(id: &str, load: &str) -> (String, String) {
    (id.to_owned(), load.to_owned())
}

fn rows(store: &mut Connection) -> u64 {
    redis::cmd("HLEN").arg(KEY).query(store).unwrap()
}

#[test]
fn a_gateway_hears_the_last_loads_of_the_others_until_they_are_silent() {
    let server = RedisServer::start();
    let store = &mut server.connect();
    assert_eq!(tell(store, 0, "a", "one"), []);
    assert_eq!(tell(store, 10, "b", "two"), [row("a", "one")]);
    assert_eq!(tell(store, 50, "a", "{\"three\": 3}"), [row("b", "two")]);
    assert_eq!(tell(store, 60, "b", "four"), [row("a", "{\"three\": 3}")]);
    assert_eq!(tell(store, 2_050, "a", "five"), [row("b", "four")]);
    assert_eq!(tell(store, 2_070, "a", "six"), [], "it is silent for two seconds");
    assert_eq!(rows(store), 1);
    tell(store, 2_080, "b", "seven");
    assert_eq!(tell(store, 2_090, "b", ""), [row("a", "six")]);
    assert_eq!(tell(store, 2_100, "a", "eight"), [], "it has left");
    let ttl: u64 = redis::cmd("TTL").arg(KEY).query(store).unwrap();
    assert!((3_000..=3_600).contains(&ttl), "{ttl}");
}

#[test]
fn loads_of_a_wrong_clock_and_broken_ones_are_dropped_and_an_answer_is_bounded() {
    let server = RedisServer::start();
    let store = &mut server.connect();
    for (id, value) in [("future", START + 60_000), ("past", START - 60_000)] {
        redis::cmd("HSET").arg(KEY).arg(id).arg(format!("{value} load")).exec(store).unwrap();
    }
    redis::cmd("HSET").arg(KEY).arg("broken").arg("load").exec(store).unwrap();
    assert_eq!((tell(store, 0, "a", "one"), rows(store)), (Vec::new(), 1));
    for id in 0..300 {
        redis::cmd("HSET").arg(KEY).arg(format!("c{id}")).arg(format!("{START} x")).exec(store).unwrap();
    }
    assert_eq!(tell(store, 1, "a", "one").len(), 256);
}
