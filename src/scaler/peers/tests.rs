//! The exchange through the store: what one gateway says when others are heard, fall silent or leave, and when the
//! store is away.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, advance};

use crate::cluster::{RemoteGateway, SharedReports as _};
use crate::config::load::load_str_with;
use crate::config::secret::MachineSecrets;
use crate::core::autoscale::demand_report::{DemandReport, PoolReport};
use crate::core::autoscale::peers::{GatewayId, PeerReport};
use crate::dispatcher::Dispatcher;
use crate::dispatcher::clock::GatewayClock;
use crate::scaler::peers::exchange::{PeerExchange, PeerState, shown};
use crate::scaler::peers::wire::{MAX_REPORT, Report, encode};
use crate::scaler::proto::gateways::Pool;
use crate::scaler::source::DemandSource;
use crate::telemetry::Telemetry;

const SECOND: Duration = Duration::from_secs(1);
/// Time between two answers of the store.
const TURN: Duration = Duration::from_millis(200);

/// Another gateway: the time of its last report, and whether the store still has it.
struct Other {
    id: GatewayId,
    at: Instant,
    runs: u64,
    sequence: u64,
    /// Whether it reports once a second.
    is_live: bool,
    shares_limits: bool,
    leaving: bool,
}

/// A gateway without work of its own, and the others.
struct World {
    exchange: Arc<PeerExchange>,
    source: DemandSource,
    others: Vec<Other>,
    is_up: bool,
}

impl World {
    /// Gateways that run so many requests.
    fn new(runs: &[u64]) -> Self {
        let text = "{version: 1, auth: {mode: off}, pools: {p: {engine: vllm, models: [m], replicas: ['http://127.0.0.1:9']}}}";
        let outcome = load_str_with(text, "test", Path::new("."), None, &MachineSecrets);
        let settings = outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings;
        let clock = GatewayClock::start();
        let dispatcher = Dispatcher::new(Arc::clone(&settings.policy), clock, mpsc::channel(1).0);
        let source = DemandSource::new(dispatcher, Arc::new(ArcSwap::from_pointee(settings)));
        let other = |(at, runs): (usize, &u64)| Other {
            id: GatewayId { epoch: u64::MAX, id: at as u64 },
            at: Instant::now(),
            runs: *runs,
            sequence: 1,
            is_live: true,
            shares_limits: true,
            leaving: false,
        };
        let others = runs.iter().enumerate().map(other).collect();
        let exchange = PeerExchange::new(Telemetry::for_tests(), true);
        Self { exchange, source, others, is_up: true }
    }

    /// Lets time pass. At each turn the store answers while it is up, and the numbers are evaluated.
    async fn pass(&mut self, time: Duration) {
        let ends = Instant::now() + time;
        while Instant::now() < ends {
            advance(TURN).await;
            if self.is_up {
                self.turn();
            }
            self.says();
        }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        let mut heard = Vec::new();
        for other in &mut self.others {
            if other.is_live && now - other.at >= SECOND {
                (other.at, other.sequence) = (now, other.sequence + 1);
            }
            let part = PoolReport { in_flight: other.runs, ..PoolReport::default() };
            let report = PeerReport {
                from: other.id,
                sequence: other.sequence,
                leaving: other.leaving,
                demand: DemandReport { pools: [("p".to_owned(), part)].into(), ..DemandReport::default() },
                ..PeerReport::default()
            };
            heard.push(RemoteGateway {
                id: shown(other.id),
                name: format!("gateway-{}:1", other.id.id),
                age: Some(now - other.at),
                shares_limits: other.shares_limits,
                is_gone: other.leaving,
                report: Some(encode(&report).encode_to_vec()),
            });
        }
        self.exchange.receive_answer(heard);
    }

    /// What runs at all gateways, the number, and the state of the exchange.
    fn says(&self) -> (u64, Option<u32>, PeerState) {
        let (needs, state) = self.exchange.refresh(&self.source, Instant::now());
        (needs[0].1.in_flight, needs[0].1.desired, state)
    }
}

#[tokio::test(start_paused = true)]
async fn all_are_summed_once_the_store_has_answered_for_long_enough() {
    let mut world = World::new(&[3, 4]);
    assert!(world.says().2.lacks_store);
    world.pass(SECOND).await;
    let (runs, desired, state) = world.says();
    assert_eq!((runs, desired, state.lacks_store), (7, None, true), "others may be missing");
    world.pass(4 * SECOND).await;
    let (runs, desired, state) = world.says();
    assert_eq!((runs, state.count.known, state.count.live), (7, 3, 2));
    assert!(desired.is_some() && !state.is_isolated, "{state:?}");
    let own = world.exchange.own(0).unwrap();
    assert!(!own.text.is_empty() && world.exchange.own(own.number).unwrap().text.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_gateways_part_is_held_and_leaves() {
    let mut world = World::new(&[3, 4, 0]);
    world.pass(5 * SECOND).await;
    (world.others[0].is_live, world.others[0].shares_limits) = (false, false);
    world.pass(6 * SECOND).await;
    let (runs, desired, state) = world.says();
    assert_eq!((runs, state.count.live, state.count.replayed), (7, 2, 1));
    assert!(desired.is_some());
    world.pass(22 * SECOND).await;
    assert_eq!(world.says().0, 7);
    world.pass(5 * SECOND).await;
    let (runs, desired, state) = world.says();
    assert_eq!((runs, state.count.silent, state.count.known), (4, 1, 4));
    assert!(desired.is_some(), "one of four may be missing");
    // A second one of four is too many.
    (world.others[2].is_live, world.others[2].shares_limits) = (false, false);
    world.pass(12 * SECOND).await;
    let (_, desired, state) = world.says();
    assert_eq!((desired, state.is_isolated, state.lacks_store), (None, true, false));
    world.pass(300 * SECOND).await;
    assert!(world.says().1.is_some(), "by now they are forgotten");
}

/// Its scaler hangs, or its report has become too large: it has clients as long as it shares limits.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_no_longer_reports_is_missed_while_it_shares_limits() {
    let mut world = World::new(&[3]);
    world.pass(5 * SECOND).await;
    assert!(world.says().1.is_some());
    world.others[0].is_live = false;
    world.pass(11 * SECOND).await;
    for _ in 0..3500 {
        world.pass(TURN).await;
        let (_, desired, state) = world.says();
        assert_eq!((desired, state.count.silent, state.count.known), (None, 1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_that_is_too_large_is_told_once_and_the_departure_is_not() {
    let world = World::new(&[]);
    world.says();
    let report = Report::clone(&world.exchange.report.borrow());
    let mut large = report.clone();
    large.sequence += 1;
    large.pools.push(Pool { name: "p".repeat(MAX_REPORT), ..Pool::default() });
    world.exchange.report.send_replace(Arc::new(large));
    for _ in 0..3 {
        assert!(world.exchange.own(0).unwrap().text.is_empty());
    }
    let log = world.exchange.telemetry.captured_log();
    assert_eq!(log.matches("demand is not shared with the other gateways").count(), 1, "{log}");
    world.exchange.leave();
    let last = world.exchange.own(report.sequence).unwrap();
    assert!(last.leaves && !last.text.is_empty() && last.text.len() < 100);
}

#[tokio::test(start_paused = true)]
async fn a_departure_counts_at_once() {
    let mut world = World::new(&[3, 4]);
    world.pass(5 * SECOND).await;
    assert_eq!(world.says().0, 7);
    (world.others[0].leaving, world.others[0].sequence) = (true, 100);
    world.pass(TURN).await;
    let (runs, desired, state) = world.says();
    assert_eq!((runs, state.count.known, state.count.silent, state.count.replayed), (4, 2, 0, 0));
    assert!(desired.is_some());
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_there_is_no_number() {
    for others in [&[3][..], &[]] {
        let mut world = World::new(others);
        world.pass(5 * SECOND).await;
        assert!(world.says().1.is_some());
        world.is_up = false;
        world.pass(9 * SECOND).await;
        let (runs, desired, _) = world.says();
        assert!(runs == others.iter().sum::<u64>() && desired.is_some(), "a short pause");
        for _ in 0..40 {
            world.pass(10 * SECOND).await;
            let (_, desired, state) = world.says();
            assert_eq!((desired, state.lacks_store, state.is_isolated), (None, true, true));
        }
        world.is_up = true;
        world.pass(4 * SECOND).await;
        assert_eq!(world.says().1, None);
        world.pass(SECOND).await;
        let (runs, desired, _) = world.says();
        assert_eq!(runs, others.iter().sum::<u64>());
        assert!(desired.is_some());
    }
}

/// A gateway that shares limits and reports no demand, as an earlier version, is missed.
#[tokio::test(start_paused = true)]
async fn a_gateway_of_an_earlier_version_is_missed() {
    let mut world = World::new(&[]);
    let earlier = RemoteGateway {
        id: "00ff".to_owned(),
        name: "earlier:1".to_owned(),
        age: None,
        shares_limits: true,
        is_gone: false,
        report: None,
    };
    for _ in 0..80 {
        advance(TURN).await;
        world.exchange.receive_answer(vec![earlier.clone()]);
    }
    let (_, desired, state) = world.says();
    assert_eq!((desired, state.count.silent, state.lacks_store), (None, 1, false));
    assert!(world.exchange.telemetry.captured_log().contains("has never reported its demand"));
    // It does not count as one that comes up, however long it goes on.
    for turn in 80..3500 {
        advance(TURN).await;
        world.exchange.receive_answer(vec![earlier.clone()]);
        assert_eq!(world.says().1, None, "{:?}", turn * TURN);
    }
    for _ in 0..51 {
        advance(TURN).await;
        world.exchange.receive_answer(Vec::new());
    }
    assert!(world.says().1.is_some(), "it has left");
    // What cannot be read is no report, and harms nothing.
    let broken = RemoteGateway { age: Some(SECOND), report: Some(vec![255; 40]), ..earlier };
    world.exchange.receive_answer(vec![broken]);
    world.turn();
}
