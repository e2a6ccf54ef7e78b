//! Events of a request: from the proxy over HTTP, and from the simulated world for the same request
//! under the same policy. A difference marks something that no simulation can find.

use std::sync::Arc;
use std::time::Duration;

use penstock::core::model::event::{AttemptOutcome, Event};
use penstock::core::model::policy::Policy;
use penstock::core::model::time::Tick;
use penstock::dispatcher::event_log::EventLog;
use penstock::sim::engine::EngineOptions;
use penstock::sim::engine::profile::StepProfile;
use penstock::sim::faults::{Fault as EngineFault, FaultKind as Breaks, ResetPoint};
use penstock::sim::server::SimOptions;
use penstock::sim::world::arrival::Arrival;
use penstock::sim::world::gateway::{EventTrace, SimGateway};
use penstock::sim::world::replica::{ReplicaSetup, WorldFault, WorldFaultKind};
use penstock::sim::world::router::Router;
use penstock::sim::world::run::run;
use penstock::sim::world::setup::Setup;
use serde_json::Value;

use crate::support::client::{Call, Raw};
use crate::support::gateway::{Rig, RigOptions, TENANT, chat, until};

/// What becomes of the request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Served,
    /// Its engine does not want it.
    Unfit,
    /// The first engine that has it dies.
    Broken,
    /// Its client leaves while the engine works on it.
    Left,
}

/// One request in both worlds.
struct Case {
    stream: bool,
    n: u32,
    fate: Fate,
    told: &'static [&'static str],
}

const CASES: [Case; 12] = [
    Case { stream: true, n: 1, fate: Fate::Served, told: &["stream of 1", "first token", "done", "paced"] },
    Case { stream: false, n: 1, fate: Fate::Served, told: &["plain of 1", "done"] },
    Case { stream: true, n: 2, fate: Fate::Served, told: &["stream of 2", "first token", "done"] },
    Case { stream: false, n: 2, fate: Fate::Served, told: &["plain of 2", "done"] },
    Case { stream: true, n: 1, fate: Fate::Unfit, told: &["stream of 1", "done"] },
    Case { stream: false, n: 1, fate: Fate::Unfit, told: &["plain of 1", "done"] },
    Case { stream: true, n: 1, fate: Fate::Broken, told: &["stream of 1", "first token", "failed", "paced"] },
    Case { stream: false, n: 1, fate: Fate::Broken, told: &["plain of 1", "failed", "done"] },
    Case { stream: true, n: 2, fate: Fate::Broken, told: &["stream of 2", "first token", "failed"] },
    Case { stream: true, n: 1, fate: Fate::Left, told: &["stream of 1", "first token", "left", "paced"] },
    Case { stream: false, n: 1, fate: Fate::Left, told: &["plain of 1", "left"] },
    Case { stream: true, n: 2, fate: Fate::Left, told: &["stream of 2", "first token", "left"] },
];

/// Time between two tokens of the engine behind HTTP: much more than the gateway takes for one, on a
/// busy machine too.
const PACE: Duration = Duration::from_millis(10);
/// Tokens of an answer: more than a sample of the pace takes.
const TOKENS: u32 = 60;
/// Tokens of an answer whose client leaves before its end.
const ENDLESS: u32 = 6_000;
/// A stream breaks off after so many of them.
const SEEN: u32 = 20;

/// The kinds of the events of the only job, in their order; at the end whether its
/// replica showed a pace, which is told at moments of its own.
fn kinds<'a>(mut events: impl Iterator<Item = &'a Event> + Clone) -> Vec<String> {
    let of_job = events.clone().filter_map(|event| match event {
        Event::Arrived(spec, _) => {
            let kind = if spec.streams { "stream" } else { "plain" };
            Some(format!("{kind} of {}", spec.sequences))
        }
        Event::FirstToken { .. } => Some("first token".to_owned()),
        Event::Finished { outcome: AttemptOutcome::Done(_), .. } => Some("done".to_owned()),
        Event::Finished { .. } => Some("failed".to_owned()),
        Event::Abandoned { .. } => Some("left".to_owned()),
        _ => None,
    });
    let paced = events.any(|event| matches!(event, Event::ItlSampled { .. }));
    of_job.chain(paced.then(|| "paced".to_owned())).collect()
}

fn engine() -> SimOptions {
    let speed = step().as_secs_f64() / PACE.as_secs_f64();
    SimOptions { profile: StepProfile::tiny(), speed, ..SimOptions::default() }
}

/// Time that a token takes in the world.
fn step() -> Duration {
    Duration::from_secs_f64(StepProfile::tiny().step_ms(&Default::default()) / 1e3)
}

impl Case {
    /// What the proxy tells the scheduler, and the policy under which it does.
    async fn over_http(&self) -> (Vec<String>, Policy) {
        let more = "retry: {continue_streams: false}\n".to_owned();
        let options = RigOptions { engines: vec![engine(), engine()], more, ..RigOptions::default() };
        let rig = Rig::start(options).await;
        let told = Arc::<EventLog>::default();
        rig.gateway.proxy().dispatcher.log_events(&told);
        if self.fate == Fate::Broken {
            let fault = match self.stream {
                true => Breaks::Cut { after_tokens: SEEN },
                false => Breaks::Reset { at: ResetPoint::Request },
            };
            let path = Some("/v1/chat/completions".to_owned());
            rig.engine(0).add(EngineFault { path, ..EngineFault::from(fault).times(1) }).unwrap();
        }
        let mut body = chat(if self.fate == Fate::Left { ENDLESS } else { TOKENS }, self.stream);
        body["n"] = Value::from(self.n);
        if self.fate == Fate::Unfit {
            body["temperature"] = Value::from(-1);
        }
        let call = Call::post("/v1/chat/completions", &body).key(rig.key(TENANT));
        let mut client = Raw::open(rig.address()).await;
        client.write(call.header("connection", "close").bytes()).await.unwrap();
        let now = || kinds(told.steps().iter().map(|step| &step.event));
        match self.fate {
            Fate::Left if self.stream => {
                let seen = ["first token", "paced"].into_iter().filter(|kind| self.told.contains(kind));
                for kind in seen {
                    until(kind, || now().contains(&kind.to_owned())).await;
                }
            }
            Fate::Left => {
                let runs = || rig.snapshot().replicas.iter().any(|replica| replica.running > 0);
                until("it is at an engine", runs).await;
            }
            _ => {
                client.read_to_end().await;
            }
        }
        drop(client);
        until("it has ended", || rig.is_empty()).await;
        if self.told.contains(&"paced") {
            until("its pace is told", || now().contains(&"paced".to_owned())).await;
        }
        (now(), Policy::clone(&rig.gateway.proxy().settings.load().policy))
    }

    /// What the simulated world tells it.
    fn in_the_world(&self, policy: Policy) -> Vec<String> {
        // More than a sample of the pace takes.
        let seen = 300 * step();
        let mut replicas = vec![ReplicaSetup::new(StepProfile::tiny(), EngineOptions::default()); 2];
        if self.fate == Fate::Broken {
            let at = Tick::ZERO + seen;
            let fault =
                WorldFault { at, lasts: Duration::from_secs(60), every: None, kind: WorldFaultKind::Crashed };
            replicas[0].fault = Some(fault);
        }
        let arrival = Arrival {
            prompt: if self.fate == Fate::Unfit { 1_000_000 } else { 20 },
            output: 1_000,
            n: self.n,
            streams: self.stream,
            leaves: (self.fate == Fate::Left).then_some(seen),
            ..Arrival::default()
        };
        let log = EventTrace::default();
        let mut routers = [Box::new(SimGateway::new(policy).recorded(&log)) as Box<dyn Router>];
        run(&Setup { replicas, arrivals: vec![arrival], ..Setup::default() }, &mut routers);
        let log = log.lock();
        kinds(log.iter().map(|step| &step.event))
    }
}

#[tokio::test]
async fn the_proxy_and_the_world_tell_the_scheduler_the_same() {
    for case in CASES {
        let what = format!("{} choices, stream: {}, {:?}", case.n, case.stream, case.fate);
        let (over_http, policy) = case.over_http().await;
        assert_eq!(over_http, case.told, "{what}: the proxy");
        assert_eq!(case.in_the_world(policy), case.told, "{what}: the world");
    }
}
