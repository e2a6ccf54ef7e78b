//! Running gateway: its start, its reloads and its shutdown.

pub(super) mod certificates;
mod cluster;
pub(super) mod descriptors;
mod reload;
mod replica_actions;
pub(super) mod signals;
pub(super) mod start_error;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::service::service_fn;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{self, AdminHandle, AdminState, AdminTls};
use crate::app::background::calendar::{self, Today};
use crate::app::background::{demand, idle, keys, objectives, refusals, scaler, upkeep};
use crate::app::gateway::certificates::{certificate_source, certificates_loaded};
use crate::app::gateway::cluster::start_cluster;
use crate::app::gateway::reload::{SettingsFollowers, follow_file, follow_sources, model_pairs};
use crate::app::gateway::start_error::StartError;
use crate::app::usage;
use crate::auth::Authenticator;
use crate::cluster::ClusterHandle;
use crate::config::settings::identity::Listeners;
use crate::config::settings::{ListenerLimits, Settings};
use crate::config::watch::{ReloadHandle, Reloader, channel};
use crate::core::model::event::{Event, RejectReason, Rejection, ReplicaAction};
use crate::dispatcher::Dispatcher;
use crate::dispatcher::clock::GatewayClock;
use crate::fleet::context::FleetTiming;
use crate::fleet::discovery::DiscoverySources;
use crate::fleet::handle::FleetMonitor;
use crate::protocol::request::prefix::PrefixHasher;
use crate::proxy::handler::CallerStatusCache;
use crate::proxy::listener::{self, ListenerShutdown, Workers};
use crate::proxy::upstream::Upstreams;
use crate::proxy::upstream::guardrails::Guardrails;
use crate::proxy::{CachedAnswers, EdgeMemory, Proxy};
use crate::record::RecordOptions;
use crate::record::writer::Recorder;
use crate::scaler::{ScalerHandle, SignalCache};
use crate::telemetry::Telemetry;
use crate::telemetry::event::{ConfigReloaded, ServerDraining, ServerStarted, ServerStopped};
use crate::tls::Handshakes;
use crate::usage::{Journal, UsageJournal};

/// Most replica actions that may wait to be carried out.
const MAX_PENDING_ACTIONS: usize = 4096;
/// Time between two checks whether a drain is done.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// Time for clients to read the last answers after the last request has ended. Each later step of
/// the shutdown has the same limit.
const STOP_GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    admin: AdminHandle,
    scale: ScalerHandle,
    proxy: Arc<Proxy>,
    fleet: FleetMonitor,
    sources: DiscoverySources,
    reload: ReloadHandle,
    shutdown: ListenerShutdown,
    workers: Arc<Workers>,
    serving: JoinHandle<()>,
    background: JoinSet<()>,
    usage: Option<UsageJournal>,
    recorder: Option<Recorder>,
    cluster: Option<ClusterHandle>,
    /// File that keeps the measured demand.
    state_file: Option<PathBuf>,
}

/// Tasks that belong to no request: what feeds the scheduler, its timer, reports and upkeep.
fn scheduler_tasks(proxy: &Arc<Proxy>, today: Today) -> JoinSet<()> {
    let dispatcher = || Arc::clone(&proxy.dispatcher);
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&proxy.engine_signals).report_forever(dispatcher()));
    tasks.spawn(calendar::follow(dispatcher(), today));
    tasks.spawn(dispatcher().run_timer());
    if proxy.journal.is_some() {
        tasks.spawn(idle::follow(Arc::clone(proxy)));
    }
    tasks.spawn(objectives::watch(Arc::clone(proxy)));
    tasks.spawn(keys::watch(Arc::clone(proxy)));
    tasks.spawn(upkeep::run(Arc::clone(proxy)));
    if let Some(path) = &proxy.settings.load().scale.state_file {
        tasks.spawn(demand::follow(path.clone(), dispatcher(), proxy.telemetry.clone()));
    }
    tasks
}

/// Measures the delays of the workers for ever, more often while there are requests.
fn measure_delays(proxy: &Proxy, workers: &Arc<Workers>, background: &mut JoinSet<()>) {
    let dispatcher = Arc::clone(&proxy.dispatcher);
    let is_busy = move || dispatcher.job_counts().1 > 0;
    background.spawn(Arc::clone(workers).measure_delays(proxy.telemetry.worker_delay(), is_busy));
}

/// The scheduler, the actions on replicas that it asks for, and its record.
type StartedDispatcher = (Arc<Dispatcher>, mpsc::Receiver<ReplicaAction>, Option<Recorder>);

/// Starts the scheduler, and its record before its first event.
fn start_dispatcher(
    settings: &Arc<ArcSwap<Settings>>,
    telemetry: &Telemetry,
    record: Option<RecordOptions>,
) -> Result<StartedDispatcher, StartError> {
    let (actions_in, actions) = mpsc::channel(MAX_PENDING_ACTIONS);
    let dispatcher = Dispatcher::new(Arc::clone(&settings.load().policy), GatewayClock::start(), actions_in);
    let recorder = record.map(|to| Recorder::start(&to, &dispatcher, settings, telemetry)).transpose()?;
    Ok((dispatcher, actions, recorder))
}

/// The request path, in its initial state.
fn make_proxy(
    dispatcher: Arc<Dispatcher>,
    settings: Arc<ArcSwap<Settings>>,
    fleet: &FleetMonitor,
    telemetry: &Telemetry,
    journal: Option<Journal>,
) -> Proxy {
    let rows = settings.load().startup.usage.as_ref().map(usage::row_source);
    Proxy {
        dispatcher,
        settings,
        authenticator: Authenticator::default(),
        upstreams: Upstreams::default(),
        guardrails: Guardrails::default(),
        memory: EdgeMemory::default(),
        pumps: TaskTracker::new(),
        telemetry: telemetry.clone(),
        token_counters: Arc::default(),
        engines: fleet.view(),
        live_requests: Arc::default(),
        prefixes: PrefixHasher::default(),
        engine_signals: Arc::default(),
        shadow_copies: Arc::default(),
        cached: CachedAnswers { caller_status: CallerStatusCache::new(rows), ..CachedAnswers::default() },
        journal,
    }
}

/// Binds the client listener. Port 0 becomes a real port here.
fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |problem| StartError::Listen { address, problem };
    let listener = listener::listen(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

impl Gateway {
    /// Starts a gateway under the reloader's settings. The call needs a tokio runtime.
    ///
    /// # Errors
    /// An address is taken, or the settings need something that is not available.
    pub async fn start(reloader: Reloader, telemetry: Telemetry) -> Result<Self, StartError> {
        // Boxed: what is started is large before each part has its place.
        Box::pin(Self::start_recorded(reloader, telemetry, None)).await
    }

    /// As [`Self::start`], with a record of what the scheduler is told and decides.
    ///
    /// # Errors
    /// As [`Self::start`], or the record's folder cannot be used.
    pub async fn start_recorded(
        reloader: Reloader,
        telemetry: Telemetry,
        record: Option<RecordOptions>,
    ) -> Result<Self, StartError> {
        let settings = reloader.current();
        let now = settings.load_full();
        let mut usage =
            now.startup.usage.as_ref().map(|usage| UsageJournal::start(usage, &telemetry)).transpose()?;
        let (dispatcher, actions, recorder) = start_dispatcher(&settings, &telemetry, record)?;
        let timing = FleetTiming::default();
        let fleet =
            FleetMonitor::start(Arc::clone(&settings), Arc::clone(&dispatcher), telemetry.clone(), timing)?;
        let sources = DiscoverySources::start(Arc::clone(&settings), telemetry.clone());
        let journal = usage.as_ref().map(|usage| usage.journal().clone());
        let proxy = Arc::new(make_proxy(dispatcher, settings, &fleet, &telemetry, journal));
        prepare(&proxy, &now)?;
        let today = calendar::report_today(&proxy.dispatcher);
        let cache = SignalCache::new(Arc::clone(&proxy.settings), proxy.telemetry.clone());
        let cluster = start_cluster(&now, &proxy, &cache).await;
        if let Some(usage) = &mut usage {
            usage::follow(usage, &proxy.dispatcher, &now.policy, today.period_starts_ms(), &telemetry)?;
        }
        let (reload, asks) = channel();
        let (listener, address) = listen(now.startup.listen)?;
        let limits = descriptors::prepare(&now.startup.listener, &telemetry);
        let admin = start_admin(&now, &proxy, &fleet, &sources, &reload, &cache, cluster.as_ref())?;
        let mut background = scheduler_tasks(&proxy, today);
        let scale = scaler::start(&now, &proxy, cache, &mut background)?;

        // SIGHUP is handled before any log line or listener shows that the process is there. Until
        // this call a SIGHUP ends the process.
        let hang_up = signals::hang_up().map_err(StartError::Signals)?;
        let pairs = &model_pairs(&now);
        ConfigReloaded { policy: &now.policy, digest: &now.digest, restart_needed: &[], changed: &[], pairs }
            .emit(&telemetry);
        ServerStarted { listen: address, admin: admin.addr(), scale: scale.address() }.emit(&telemetry);
        let shutdown = ListenerShutdown::default();
        let workers = Arc::new(Workers::start().map_err(StartError::Workers)?);
        let serving = serve_clients(listener, Arc::clone(&workers), limits, &proxy, &shutdown);
        measure_delays(&proxy, &workers, &mut background);
        background.spawn(replica_actions::carry_out(actions, fleet.clone(), telemetry));
        background.spawn(signals::reload_at(hang_up, reload.clone()));
        let followers = SettingsFollowers::new(&proxy, &fleet, &sources);
        let reloader = Arc::new(reloader);
        background.spawn(follow_sources(Arc::clone(&reloader), followers.clone()));
        background.spawn(follow_file(reloader, asks, followers));
        Ok(Self {
            address,
            admin,
            scale,
            proxy,
            fleet,
            sources,
            reload,
            shutdown,
            workers,
            serving,
            background,
            usage,
            recorder,
            cluster,
            state_file: now.scale.state_file.clone(),
        })
    }

    /// Address of the client listener.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Address of the admin listener.
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin.addr()
    }

    /// Address of the scaler; absent without one.
    pub const fn scale_address(&self) -> Option<SocketAddr> {
        self.scale.address()
    }

    /// The request path, for tests that look inside.
    pub const fn proxy(&self) -> &Arc<Proxy> {
        &self.proxy
    }

    /// Handle that reads the configuration again.
    pub fn reload_handle(&self) -> ReloadHandle {
        self.reload.clone()
    }

    /// Function that ends everything now; requests in flight are cut. Meant for a second signal.
    pub fn abort_switch(&self) -> impl Fn() + Send + use<> {
        let (grace, shutdown) = (self.proxy.dispatcher.shutdown().clone(), self.shutdown.clone());
        move || {
            grace.end();
            shutdown.abort.cancel();
        }
    }

    /// Drains; the next signal cuts the drain short.
    pub(super) async fn drain_or_abort(self, mut shutdown: signals::OsSignals) {
        let abort = self.abort_switch();
        let impatience = tokio::spawn(async move {
            shutdown.next().await;
            abort();
        });
        self.drain().await;
        impatience.abort();
    }

    /// Shuts down. New requests are refused, and the others may finish within the shutdown grace.
    /// Requests that still wait then get a retryable error.
    pub async fn drain(self) {
        let Proxy { dispatcher, telemetry, settings, .. } = &*self.proxy;
        let grace = dispatcher.shutdown();
        let allowed = settings.load().startup.drain_grace;
        grace.begin_drain();
        self.scale.drain();
        dispatcher.event(Event::Draining);
        ServerDraining { jobs: dispatcher.snapshot().jobs, grace: allowed }.emit(telemetry);
        let cut_off = wait_for_jobs(dispatcher, allowed, &self.shutdown.abort).await;
        grace.end();
        dispatcher.refuse_waiting(Rejection {
            reason: RejectReason::Draining,
            queued: Duration::ZERO,
            retry_after: Some(Duration::from_secs(1)),
        });
        self.shutdown.drain.cancel();
        let abort = self.shutdown.abort.clone();
        let mut serving = self.serving;
        if timeout(STOP_GRACE, &mut serving).await.is_err() {
            abort.cancel();
            let _ended = timeout(STOP_GRACE, serving).await;
        }
        // The pumps still record the answers of clients that left. They end before the usage
        // journal does.
        self.proxy.pumps.close();
        let _ended = timeout(STOP_GRACE, self.proxy.pumps.wait()).await;
        drop(self.workers);
        self.scale.leave();
        if let Some(cluster) = self.cluster {
            cluster.leave().await;
        }
        self.scale.stop().await;
        idle::write(&self.proxy);
        refusals::report(&self.proxy);
        self.sources.stop().await;
        self.fleet.stop().await;
        ServerStopped { cut_off }.emit(telemetry);
        let (admin, usage, state_file, recorder) = (self.admin, self.usage, self.state_file, self.recorder);
        let dispatcher = Arc::clone(dispatcher);
        let audited = telemetry.clone();
        let _stopped = spawn_blocking(move || {
            if let Some(path) = state_file {
                demand::save(&path, &dispatcher, &audited);
            }
            admin.stop();
            audited.flush_audit(STOP_GRACE);
            if let Some(usage) = usage {
                usage.stop(STOP_GRACE);
            }
            if let Some(recorder) = recorder {
                recorder.stop(STOP_GRACE);
            }
        })
        .await;
        telemetry.shutdown(STOP_GRACE).await;
        drop(self.background);
    }
}

/// Waits until all jobs have ended, for as long as is allowed. Returns the number of those that have
/// not: they are aborted.
async fn wait_for_jobs(dispatcher: &Dispatcher, allowed: Duration, abort: &CancellationToken) -> u64 {
    let deadline = Instant::now() + allowed;
    let mut cut_off = dispatcher.snapshot().jobs;
    while cut_off > 0 && Instant::now() < deadline {
        if timeout(DRAIN_POLL, abort.cancelled()).await.is_ok() {
            // Jobs that end from now on were aborted, not finished.
            break;
        }
        cut_off = dispatcher.snapshot().jobs;
    }
    cut_off
}

/// Prepares the audit file, the authenticator and the certificates, before the first client is
/// authenticated, and takes over the demand that the last process saved.
fn prepare(proxy: &Proxy, settings: &Settings) -> Result<(), StartError> {
    let telemetry = &proxy.telemetry;
    if let Some(file) = settings.startup.audit.clone() {
        telemetry.audit_to(file).map_err(StartError::Audit)?;
    }
    proxy.authenticator.set_providers(&settings.edge.auth, &settings.listeners.operators, telemetry);
    certificates_loaded(&Listeners::default(), &settings.listeners, telemetry);
    if let Some(path) = &settings.scale.state_file {
        demand::restore(path, &proxy.dispatcher, telemetry);
    }
    Ok(())
}

fn serve_clients(
    listener: TcpListener,
    workers: Arc<Workers>,
    limits: ListenerLimits,
    proxy: &Arc<Proxy>,
    shutdown: &ListenerShutdown,
) -> JoinHandle<()> {
    let service = Arc::clone(proxy);
    tokio::spawn(listener::serve(
        listener,
        workers,
        limits,
        certificate_source(&proxy.settings, |listeners| &listeners.clients),
        shutdown.clone(),
        proxy.telemetry.clone(),
        move |connection| {
            let (proxy, connection) = (Arc::clone(&service), Arc::new(connection));
            service_fn(move |request| {
                let (proxy, connection) = (Arc::clone(&proxy), Arc::clone(&connection));
                async move { proxy.handle(request, &connection).await }
            })
        },
    ))
}

fn start_admin(
    settings: &Settings,
    proxy: &Arc<Proxy>,
    fleet: &FleetMonitor,
    sources: &DiscoverySources,
    reload: &ReloadHandle,
    cache: &Arc<SignalCache>,
    cluster: Option<&ClusterHandle>,
) -> Result<AdminHandle, StartError> {
    let state = AdminState {
        dispatcher: Arc::clone(&proxy.dispatcher),
        settings: Arc::clone(&proxy.settings),
        reload: reload.clone(),
        engines: fleet.view(),
        sources: sources.clone(),
        signals: Arc::clone(cache),
        cluster: cluster.map(ClusterHandle::status),
        finder: cluster.map(ClusterHandle::request_finder),
        usage: settings.startup.usage.as_ref().map(usage::row_source),
        operator_tokens: proxy.authenticator.operator_tokens(),
        telemetry: proxy.telemetry.clone(),
    };
    let (address, limits) = (settings.startup.admin, &settings.startup.listener);
    let tls = AdminTls {
        source: certificate_source(&proxy.settings, |listeners| &listeners.admin),
        handshakes: Handshakes::new(limits.max_address_handshakes, limits.handshake_timeout),
        telemetry: proxy.telemetry.clone(),
    };
    let router = admin::router(state, crate::scaler::router(Arc::clone(cache)));
    admin::spawn(address, router, tls).map_err(|problem| StartError::Admin { address, problem })
}

/// Loads the file for a gateway to run under.
///
/// # Errors
/// The report, when the file cannot be used.
pub(super) fn load(path: PathBuf) -> Result<Reloader, crate::config::report::ConfigReport> {
    let (reloader, report) = Reloader::start(path)?;
    if !report.problems.is_empty() {
        eprint!("{report}");
    }
    Ok(reloader)
}
