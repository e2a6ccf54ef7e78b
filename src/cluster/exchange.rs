//! Exchange with the store: reports what this gateway uses and takes over the leases that it gets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::iter;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::cluster::demand::reports::StoreNames;
use crate::cluster::leases::reports::{LeaseCall, LeaseReportState};
use crate::cluster::leases::shortfalls::LeaseShortfalls;
use crate::cluster::messages::{Questions, RequestFinder};
use crate::cluster::parts::{ClusterMember, ClusterParts, ClusterStatus, machine_name};
use crate::cluster::shared_overrides::RemoteOverride;
use crate::cluster::shares::ClusterShares;
use crate::cluster::store::connection::{CONNECT_TIMEOUT, StoreConnection};
use crate::cluster::store::scripts::{LEASES, MEMBERS, OVERRIDES, StoreScript};
use crate::cluster::store::server::ANSWER_TIMEOUT;
use crate::config::settings::cluster::{ClusterSettings, ValkeySettings};
use crate::core::limits::lease::{LeaseGrant, LimitReports};
use crate::core::limits::rule::{LimitId, LimitRule};
use crate::core::model::event::Event;
use crate::core::model::overrides::Override;
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::telemetry::event::{ClusterSeen, LeasesEnded, OverrideHeard, StoreBack, StoreLost};
use crate::telemetry::wall;

/// Time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
/// Shortest time between two reports.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
/// Time after which all limits are reported again, so that the store keeps them.
const REPORT_ALL_INTERVAL: Duration = Duration::from_secs(600);
/// Shortest and longest pause before the store is called again. All gateways connect and report within the
/// time that the script of leases gives them after the store has lost its data.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(500)];
/// Time within which every gateway has reported its demand once the store answers: also one whose call was lost with
/// the store, and whose next try was late.
pub const ALL_REPORT: Duration = ANSWER_TIMEOUT
    .saturating_add(RETRY_PAUSES[1])
    .saturating_add(CONNECT_TIMEOUT)
    .saturating_add(REPORT_INTERVAL.saturating_mul(2));
/// Time that a start waits for the store.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the last report of a gateway that leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Calls of scripts in progress at once.
const MAX_CALLS: usize = 32;
/// Limits of one part of a report of all limits. Requests wait while a part is made.
const LIMITS_A_PART: usize = 256;
/// Version of what this gateway reports.
const VERSION: &str = "1";

/// Answer of the script of the gateways: whether it knew this one, their ids, the limits that are missed, what
/// they tell, and the time.
type MembersAnswer = (u8, Vec<String>, Vec<String>, Vec<String>, i64);

/// The store's clock as it was at a moment.
#[derive(Debug, Clone, Copy)]
struct StoreClock {
    read_at: Instant,
    /// Milliseconds since 1970.
    store_ms: i64,
}

/// Handle of the running exchange.
#[derive(Debug)]
pub struct ClusterHandle {
    status: Arc<Mutex<ClusterStatus>>,
    first: Arc<Notify>,
    questions: Arc<Questions>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl ClusterHandle {
    /// The state of the exchange, for operators.
    pub fn status(&self) -> Arc<Mutex<ClusterStatus>> {
        Arc::clone(&self.status)
    }

    /// Finds requests of the other gateways.
    pub fn request_finder(&self) -> RequestFinder {
        RequestFinder { status: Arc::clone(&self.status), questions: Arc::clone(&self.questions) }
    }

    /// Waits for the first leases, but not long: without the store, the gateway starts with a part of
    /// each limit.
    pub async fn ready(&self) {
        let _late = timeout(START_TIMEOUT, self.first.notified()).await;
    }

    /// Gives all leases back and ends.
    pub async fn leave(self) {
        self.stop.cancel();
        let _late = timeout(LEAVE_TIMEOUT, self.task).await;
    }
}

/// Starts the exchange. From now on, limits are shared.
pub fn start(settings: &ClusterSettings, parts: ClusterParts) -> ClusterHandle {
    let id = format!("{:016x}", parts.reports.id());
    let name = format!("{}:{}", machine_name(), parts.settings.load().startup.listen.port());
    let status = Arc::new(Mutex::new(ClusterStatus::new(id, name)));
    let (first, stop) = (Arc::new(Notify::new()), CancellationToken::new());
    let exchange = LeaseExchange::new(settings, parts, &status, &first);
    let questions = Arc::clone(exchange.shares.messages.questions());
    exchange.lease(Vec::new());
    exchange.parts.dispatcher.record_service();
    let stopped = stop.clone();
    let task = tokio::spawn(exchange.run(stopped));
    ClusterHandle { status, first, questions, stop, task }
}

/// Why the exchange goes on.
enum Wake {
    /// Something is due.
    Due,
    /// A limit needs a lease.
    LeaseWanted,
    /// An operator asks for a request.
    Question,
}

struct LeaseExchange {
    id: String,
    /// The settings of the start.
    cluster: ClusterSettings,
    parts: ClusterParts,
    scripts: [StoreScript; 3],
    lease_reports: LeaseReportState,
    shares: ClusterShares,
    missed: LeaseShortfalls,
    /// Gateways that are there.
    others: Vec<String>,
    /// Time at which this gateway last told that it is there; absent = not on this connection.
    announced: Option<Instant>,
    store_clock: Option<StoreClock>,
    /// Time of the last report of all limits; absent = the store may know nothing.
    reported_all: Option<Instant>,
    /// Whether the gateway drains and keeps no lease that it does not use.
    is_leaving: bool,
    status: Arc<Mutex<ClusterStatus>>,
    first: Arc<Notify>,
}

impl LeaseExchange {
    fn new(
        settings: &ClusterSettings,
        parts: ClusterParts,
        status: &Arc<Mutex<ClusterStatus>>,
        first: &Arc<Notify>,
    ) -> Self {
        Self {
            id: status.lock().id.clone(),
            cluster: settings.clone(),
            parts,
            scripts: [LEASES, MEMBERS, OVERRIDES].map(StoreScript::new),
            lease_reports: LeaseReportState::default(),
            shares: ClusterShares::new(),
            missed: LeaseShortfalls::default(),
            others: Vec::new(),
            announced: None,
            store_clock: None,
            reported_all: None,
            is_leaving: false,
            status: Arc::clone(status),
            first: Arc::clone(first),
        }
    }

    /// Connects again and again until stopped.
    async fn run(mut self, stop: CancellationToken) {
        let (mut pause, mut away) = (RETRY_PAUSES[0], None);
        loop {
            let connection = tokio::select! {
                connection = self.connect() => connection,
                () = stop.cancelled() => return,
            };
            let problem = match connection {
                Ok(connection) => match self.serve(&connection, &stop, &mut away).await {
                    Ok(()) => return,
                    Err(problem) => problem,
                },
                Err(problem) => problem,
            };
            if away.is_none() {
                pause = RETRY_PAUSES[0];
            }
            self.note_loss(problem, &mut away);
            (self.announced, self.reported_all) = (None, None);
            self.shares.start_over(&self.parts);
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => return,
            }
            pause = (pause * 2).min(RETRY_PAUSES[1]);
        }
    }

    /// Tells operators that the store is away, and once that the leases have ended.
    fn note_loss(&self, problem: String, away: &mut Option<Instant>) {
        let telemetry = &self.parts.telemetry;
        StoreLost { problem: &problem, first: away.is_none() }.emit(telemetry);
        let since = *away.get_or_insert_with(Instant::now);
        let mut status = self.status.lock();
        status.problem = Some(problem);
        if status.leases_end <= Instant::now() && !std::mem::replace(&mut status.leases_over, true) {
            drop(status);
            LeasesEnded { after: since.elapsed() }.emit(telemetry);
        }
    }

    /// Connects to the store of the start, with the password and the certificates of the settings in
    /// force. Another store needs a restart: two stores would hand out each limit twice.
    async fn connect(&self) -> Result<StoreConnection, String> {
        let settings = self.parts.settings.load_full();
        let now = settings.cluster.as_ref().map_or(&self.cluster.valkey, |cluster| &cluster.valkey);
        let ValkeySettings { servers, database, .. } = self.cluster.valkey.clone();
        StoreConnection::open(&ValkeySettings { servers, database, ..now.clone() }).await
    }

    /// Reports until the connection fails, or the gateway leaves.
    async fn serve(
        &mut self,
        connection: &StoreConnection,
        stop: &CancellationToken,
        away: &mut Option<Instant>,
    ) -> Result<(), String> {
        let (mut due, mut wants_lease) = (Instant::now(), false);
        loop {
            let (leaves, begun) = (stop.is_cancelled(), Instant::now());
            if leaves || begun >= due {
                due = begun + REPORT_INTERVAL;
                self.share_overrides(connection).await?;
                self.exchange(connection, leaves).await?;
                self.note_answer(away);
            } else if wants_lease {
                let policy = Arc::clone(&self.parts.settings.load().policy);
                self.learn_names(&policy);
                if self.report(connection, &policy, &[], 0).await?.is_some() {
                    self.note_answer(away);
                }
            }
            if leaves {
                return Ok(());
            }
            let names = StoreNames { prefix: &self.cluster.prefix, id: &self.id, name: "" };
            if begun >= self.shares.load.due() {
                self.shares.load.share(connection, names, &self.parts, &self.others).await?;
            }
            if begun >= self.shares.messages.due() {
                self.shares.messages.share(connection, names, &self.parts, &self.others).await?;
            }
            let wake = tokio::select! {
                () = sleep_until(due.min(self.shares.due())) => Wake::Due,
                () = self.parts.dispatcher.lease_wanted() => Wake::LeaseWanted,
                () = self.shares.messages.asked() => Wake::Question,
                () = stop.cancelled() => Wake::Due,
            };
            wants_lease = matches!(wake, Wake::LeaseWanted);
            match wake {
                Wake::Due => {}
                Wake::LeaseWanted => sleep_until(begun + MIN_INTERVAL).await,
                Wake::Question => self.shares.messages.hurry(),
            }
        }
    }

    fn note_answer(&self, away: &mut Option<Instant>) {
        if let Some(since) = away.take() {
            StoreBack { after: since.elapsed() }.emit(&self.parts.telemetry);
        }
        let mut status = self.status.lock();
        (status.problem, status.heard, status.leases_over) = (None, Instant::now(), false);
        drop(status);
        ClusterSeen { gateways: self.others.len() }.emit(&self.parts.telemetry);
        self.first.notify_one();
    }

    /// Reports what has changed: the demand first, then limits, and all of them where that is due, in parts.
    async fn exchange(&mut self, connection: &StoreConnection, leaves: bool) -> Result<(), String> {
        let policy = Arc::clone(&self.parts.settings.load().policy);
        self.learn_names(&policy);
        let mut wanted = if leaves { Vec::new() } else { self.announce(connection, false).await? };
        self.share_demand(connection).await?;
        let names = StoreNames { prefix: &self.cluster.prefix, id: &self.id, name: "" };
        self.shares.service.share(connection, names, &self.parts, &self.others).await?;
        let is_due =
            leaves || self.reported_all.is_none_or(|reported| reported.elapsed() >= REPORT_ALL_INTERVAL);
        let all: &[LimitRule] = if is_due { &policy.limits } else { &[] };
        let mut parts = all.chunks(LIMITS_A_PART);
        if is_due {
            self.reported_all = Some(Instant::now());
        }
        let mut left = usize::MAX;
        loop {
            let part = parts.next();
            wanted.extend(part.into_iter().flatten().map(|rule| rule.id));
            left = self.report(connection, &policy, &wanted, left).await?.unwrap_or(0);
            wanted.clear();
            if left == 0 && part.is_none() {
                break;
            }
            // A long report of limits must not make the others take this gateway for lost.
            if self.announced.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
                wanted = self.announce(connection, false).await?;
                self.share_demand(connection).await?;
            }
        }
        if leaves {
            // What was used is reported before the gateway is gone for the others.
            self.announce(connection, true).await?;
            let names = StoreNames { prefix: &self.cluster.prefix, id: &self.id, name: "" };
            self.shares.load.leave(connection, names, &self.parts).await?;
        }
        Ok(())
    }

    /// Tells the others that this gateway is there. Returns the limits of which others miss something.
    async fn announce(&mut self, connection: &StoreConnection, leaves: bool) -> Result<Vec<LimitId>, String> {
        self.announced = Some(Instant::now());
        let keys = ["", ":missed"].map(|name| format!("{}:v1:{{gateways}}{name}", self.cluster.prefix));
        let missed = self.missed.take();
        let status = self.status_text();
        let mut values = vec![&*self.id, &*status, if leaves { "1" } else { "0" }];
        values.extend(missed.iter().map(String::as_str));
        let keys = [&*keys[0], &*keys[1]];
        let answer = connection.run(&self.scripts[1], &keys, &values).await?;
        let (known, ids, names, said, store_ms): MembersAnswer = answer;
        self.store_clock = Some(StoreClock { read_at: Instant::now(), store_ms });
        if known == 0 {
            // The store has lost its data, or has taken this gateway for lost.
            self.reported_all = None;
        }
        let members = ids.into_iter().zip(&said).map(|(id, said)| ClusterMember::read(id, said));
        let mut members: Vec<ClusterMember> = members.collect();
        members.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        self.others = members.iter().map(|member| member.id.clone()).collect();
        self.status.lock().gateways = members;
        let others = names.iter().filter(|name| !missed.contains(*name));
        Ok(others.filter_map(|name| self.missed.id(name)).collect())
    }

    /// Status that this gateway reports of itself: words with spaces between them.
    fn status_text(&self) -> String {
        let (waiting, unfinished) = self.parts.dispatcher.job_counts();
        let program = env!("CARGO_PKG_VERSION");
        format!("{VERSION} {} {program} {waiting} {unfinished}", self.status.lock().name)
    }

    /// Tells the store which overrides operators have set and ended here, and brings those of others into
    /// force.
    async fn share_overrides(&self, connection: &StoreConnection) -> Result<(), String> {
        let call = self.status.lock().overrides.call();
        let key = format!("{}:v1:{{overrides}}", self.cluster.prefix);
        let values: Vec<&str> = call.values.iter().map(String::as_str).collect();
        let answer: Vec<String> = connection.run(&self.scripts[2], &[&*key], &values).await?;
        let policy = Arc::clone(&self.parts.settings.load().policy);
        let mut status = self.status.lock();
        for heard in status.overrides.receive_answer(&call, &answer, &policy).unwrap_or_default() {
            self.bring_into_force(&heard, &policy);
        }
        Ok(())
    }

    async fn share_demand(&mut self, connection: &StoreConnection) -> Result<(), String> {
        let (name, members) = {
            let status = self.status.lock();
            (status.name.clone(), status.gateways.clone())
        };
        let names = StoreNames { prefix: &self.cluster.prefix, id: &self.id, name: &name };
        let ClusterParts { reports, telemetry, .. } = &self.parts;
        self.shares.demand.share(connection, names, &members, &**reports, telemetry).await
    }

    fn bring_into_force(&self, heard: &RemoteOverride, policy: &Policy) {
        let RemoteOverride { target, change, left, shared } = heard;
        let result = self.parts.dispatcher.override_with(|now| match *change {
            None => Event::OverrideEnded(*target),
            Some(change) => {
                let until = left.map_or(Tick::NEVER, |left| now + left);
                Event::Overridden(Override { change, until, reason: (&*shared.reason).into() })
            }
        });
        OverrideHeard {
            who: &shared.who,
            gateway: &shared.gateway,
            gateway_name: &shared.gateway_name,
            verb: change.as_ref().map_or("end", |change| change.name()),
            subject: target.name(policy),
            lasts: change.and(*left),
            reason: &shared.reason,
            requeued: result.requeued,
        }
        .emit(&self.parts.telemetry);
    }

    /// Reports one part of the limits, and takes over the leases that the answers grant. Returns how
    /// many of those that had changed are left; `None` if there was nothing to report, and the store was not
    /// asked.
    async fn report(
        &mut self,
        connection: &StoreConnection,
        policy: &Policy,
        wanted: &[LimitId],
        most: usize,
    ) -> Result<Option<usize>, String> {
        let LimitReports { reports, left, leaves } = self.parts.dispatcher.take_limit_use(wanted, most);
        if leaves && !std::mem::replace(&mut self.is_leaving, true) {
            self.reported_all = None;
        }
        let (now, store_ms) = (self.parts.dispatcher.clock().now(), self.store_ms());
        let mut calls: BTreeMap<String, Vec<LeaseCall>> = BTreeMap::new();
        for report in &reports {
            let Some(call) = self.lease_reports.call(report, &self.cluster.prefix, policy, now, store_ms)
            else {
                continue;
            };
            let tag = call.key.split_inclusive('}').next().unwrap_or_default().to_owned();
            calls.entry(tag).or_default().push(call);
        }
        if calls.is_empty() && most == 0 {
            return Ok(None);
        }
        let gateways = self.others.join(",");
        let (id, script) = (&self.id, &self.scripts[0]);
        let gateways = &gateways;
        let answers = iter(calls.into_values()).map(|calls| async move {
            let keys: Vec<&str> = calls.iter().map(|call| &*call.key).collect();
            let mut values = vec![&**id, &**gateways];
            values.extend(calls.iter().flat_map(|call| &call.values).map(String::as_str));
            let answers: Vec<String> = connection.run(script, &keys, &values).await?;
            Ok::<_, String>((calls, answers))
        });
        let answers: Vec<_> = answers.buffer_unordered(MAX_CALLS).collect().await;
        let mut grants = Vec::with_capacity(reports.len());
        for answer in answers {
            let (calls, answers) = answer?;
            for (call, answer) in calls.iter().zip(&answers) {
                let Some(grant) = self.lease_reports.grant(call, answer) else { continue };
                self.missed.note(grant.rule, call.misses(&grant), policy);
                grants.push(grant);
            }
        }
        self.lease(grants);
        Ok(Some(left))
    }

    /// The store's time in milliseconds since 1970; before it has said it, that of this machine.
    fn store_ms(&self) -> i64 {
        match self.store_clock {
            Some(clock) => clock.store_ms + clock.read_at.elapsed().as_millis() as i64,
            None => (wall::unix_seconds(wall::now()) * 1e3) as i64,
        }
    }

    /// Passes leases on. Those in force hold until the store has been away for too long.
    fn lease(&self, grants: Vec<LeaseGrant>) {
        let dispatcher = &self.parts.dispatcher;
        let until = dispatcher.clock().now() + self.cluster.outage;
        self.status.lock().leases_end = Instant::now() + self.cluster.outage;
        dispatcher.event(Event::LimitsLeased { grants, until });
    }

    fn learn_names(&mut self, policy: &Policy) {
        if self.missed.learn(policy) {
            self.lease_reports.retain(policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report without limits asks the store nothing, and says nothing of it.
    #[tokio::test]
    async fn an_empty_report_is_no_answer() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let text = format!(
            "{{version: 1, auth: {{mode: off}}, cluster: {{valkey: {{url: 'redis://{}'}}}}, pools: {{p: {{engine: vllm, models: [m], replicas: ['http://127.0.0.1:9']}}}}}}",
            silent.local_addr().unwrap()
        );
        let parts = ClusterParts::for_tests(&text);
        let settings = parts.settings.load_full();
        let (policy, cluster) = (Arc::clone(&settings.policy), settings.cluster.clone().unwrap());
        let status = ClusterStatus::new("a".to_owned(), "one:8080".to_owned());
        let status = Arc::new(Mutex::new(ClusterStatus { problem: Some("it is away".to_owned()), ..status }));
        let mut exchange = LeaseExchange::new(&cluster, parts, &status, &Arc::default());
        exchange.lease(Vec::new());
        let connection = StoreConnection::open(&cluster.valkey).await.unwrap();
        assert_eq!(exchange.report(&connection, &policy, &[], 0).await, Ok(None));
        assert_eq!(exchange.announce(&connection, false).await.unwrap_err(), "timed out");
        assert_eq!(status.lock().problem.as_deref(), Some("it is away"));
    }

    /// After the store has lost its data, no lease grows until all gateways have reported, those too that
    /// were just about to try once more.
    #[test]
    fn all_gateways_are_back_before_a_lease_grows() {
        let line = LEASES.lines().find_map(|line| line.strip_prefix("local GRACE = ")).unwrap();
        let grace = line.split(' ').next().unwrap().parse().unwrap();
        let back = RETRY_PAUSES[1] + CONNECT_TIMEOUT + REPORT_INTERVAL;
        assert!(back + Duration::from_millis(250) <= Duration::from_millis(grace), "{back:?} of {grace} ms");
    }
}
