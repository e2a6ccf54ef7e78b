//! Small adapters by which parts that do not know each other talk.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::admin::{OperatorCommand, SourceReport};
use crate::config::merge::FoundEndpoints;
use crate::config::settings::Settings;
use crate::config::settings::identity::Listeners;
use crate::config::watch::{ReloadOutcome, ReloadReport, Reloader};
use crate::core::model::event::{Action, Event};
use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::model::overrides::Override;
use crate::core::model::time::Tick;
use crate::dispatcher::Dispatcher;
use crate::fleet::discovery::DiscoverySources;
use crate::fleet::handle::FleetMonitor;
use crate::fleet::hooks::{NoteSink, ReplicaNote, ReportSink, SourceNote};
use crate::fleet::sleep::SleepOrder;
use crate::fleet::view::FleetView;
use crate::proxy::handler::Proxy;
use crate::proxy::listener::{ListenerEvents, RequestRejected};
use crate::telemetry::Telemetry;
use crate::telemetry::event::{
    AnswerCutOff, CertificateLoaded, ConfigAudited, ConfigRejected, ConfigReloaded, ConfigUnchanged,
    ConnectionRefused, EjectionWithheld, HandshakeFailed, ModelMismatch, OverrideExpired, PoolDown,
    PoolStarted, PoolWanted, ProbeFailed, ReplicaEjected, ReplicaReadmitted, ReplicasChanged, ScrapeFailed,
    ScrapeRecovered, SleepOrderDone, SleepOrderFailed, SleepStateChanged, SleepUnsupported, SourceBack,
    SourceEmpty, SourceLost, SourceTooLarge,
};
use crate::telemetry::metrics::EngineView;
use crate::tls;

/// The fleet's reports go to the scheduler.
pub(in crate::app) struct ToScheduler(pub(in crate::app) Arc<Dispatcher>);

impl ReportSink for ToScheduler {
    fn event(&self, event: Event) {
        self.0.event(event);
    }
}

/// The fleet's notes go to people.
pub(in crate::app) struct ToTelemetry(pub(in crate::app) Telemetry);

impl NoteSink for ToTelemetry {
    fn note(&self, replica: ReplicaId, note: ReplicaNote<'_>) {
        let telemetry = &self.0;
        match note {
            ReplicaNote::ScrapeFailed { why, times } => {
                ScrapeFailed { replica, problem: &why.to_string(), first: times == 1 }.emit(telemetry);
            }
            ReplicaNote::ScrapeRecovered { .. } => ScrapeRecovered { replica }.emit(telemetry),
            ReplicaNote::ModelMismatch { missing, served } => {
                let served: Vec<String> = served.iter().map(|served| served.name.clone()).collect();
                for expected in missing {
                    ModelMismatch { replica, expected, served: &served }.emit(telemetry);
                }
            }
            ReplicaNote::ProbeFailed { why } => {
                ProbeFailed { replica, problem: &why.to_string() }.emit(telemetry);
            }
            ReplicaNote::Asleep => SleepStateChanged { replica, asleep: true }.emit(telemetry),
            ReplicaNote::Awake => SleepStateChanged { replica, asleep: false }.emit(telemetry),
            ReplicaNote::Obeyed { order, took } => {
                SleepOrderDone { replica, order: order.name(), took }.emit(telemetry);
            }
            ReplicaNote::Disobeyed { order, why } => {
                SleepOrderFailed { replica, order: order.name(), problem: &why.to_string() }.emit(telemetry);
            }
            ReplicaNote::CannotSleep => SleepUnsupported { replica }.emit(telemetry),
            ReplicaNote::InfoFailed { .. } | ReplicaNote::ModelsMatch | ReplicaNote::ProbeSucceeded => {}
        }
    }

    fn source(&self, pool: PoolId, note: SourceNote<'_>) {
        let telemetry = &self.0;
        match note {
            SourceNote::Lost { why, first } => SourceLost { pool, problem: why, first }.emit(telemetry),
            SourceNote::Back { after } => SourceBack { pool, after }.emit(telemetry),
            SourceNote::Empty { holds } => SourceEmpty { pool, holds }.emit(telemetry),
            SourceNote::TooMany { named } => SourceTooLarge { pool, named }.emit(telemetry),
        }
    }
}

/// What happens at the door goes to metrics.
pub(in crate::app) struct ListenerMetrics {
    telemetry: Telemetry,
    open: metrics::Gauge,
}

impl ListenerMetrics {
    pub(in crate::app) fn new(telemetry: &Telemetry) -> Self {
        Self { telemetry: telemetry.clone(), open: telemetry.open_connections() }
    }
}

impl ListenerEvents for ListenerMetrics {
    fn accepted(&self) {
        self.open.increment(1.0);
    }

    fn closed(&self) {
        self.open.decrement(1.0);
    }

    fn refused(&self, why: RequestRejected) {
        ConnectionRefused { reason: why.label() }.emit(&self.telemetry);
    }

    fn cut_off(&self) {
        AnswerCutOff.emit(&self.telemetry);
    }

    fn handshake_failed(&self, why: tls::HandshakeError) {
        HandshakeFailed { listener: "clients", reason: why.label() }.emit(&self.telemetry);
    }

    fn accept_failed(&self, error: &io::Error) {
        tracing::warn!(%error, "no connection could be accepted; are there enough file descriptors?");
    }
}

/// Writes down who changed what. That nothing changed is of interest only when
/// somebody asked.
fn audit(report: &ReloadReport, telemetry: &Telemetry) {
    let outcome = match report.outcome {
        ReloadOutcome::Applied => "applied",
        ReloadOutcome::Unchanged if report.asked_by.is_none() => return,
        ReloadOutcome::Unchanged => "unchanged",
        ReloadOutcome::Failed => "failed",
    };
    let changed: Vec<&str> = report.changed.iter().map(|change| &*change.path).collect();
    let (who, digest) = (report.asked_by.as_deref().unwrap_or("file"), &*report.digest);
    ConfigAudited { who, outcome, generation: report.generation, digest, changed: &changed }.emit(telemetry);
}

/// What the client listener makes handshakes with.
pub(in crate::app) fn client_tls(settings: &Arc<ArcSwap<Settings>>) -> tls::CertificateSource {
    let settings = Arc::clone(settings);
    Arc::new(move || settings.load().listeners.clients.as_ref().map(|tls| Arc::clone(&tls.config)))
}

/// What the operators' listener makes handshakes with.
pub(in crate::app) fn admin_tls(settings: &Arc<ArcSwap<Settings>>) -> tls::CertificateSource {
    let settings = Arc::clone(settings);
    Arc::new(move || settings.load().listeners.admin.as_ref().map(|tls| Arc::clone(&tls.config)))
}

/// What the scaler's listener makes handshakes with.
pub(in crate::app) fn scale_tls(settings: &Arc<ArcSwap<Settings>>) -> tls::CertificateSource {
    let settings = Arc::clone(settings);
    Arc::new(move || settings.load().listeners.scale.as_ref().map(|tls| Arc::clone(&tls.config)))
}

/// Says which listeners have another certificate than before.
pub(in crate::app) fn certificates_loaded(before: &Listeners, after: &Listeners, telemetry: &Telemetry) {
    let pairs = [
        ("clients", &before.clients, &after.clients),
        ("admin", &before.admin, &after.admin),
        ("scale", &before.scale, &after.scale),
    ];
    for (listener, before, after) in pairs {
        if let Some(tls) = after.as_ref().filter(|_| before != after) {
            CertificateLoaded { listener, ends: tls.ends }.emit(telemetry);
        }
    }
}

/// Carries the scheduler's wishes about replicas to those who fulfil them.
pub(in crate::app) async fn carry_out(
    mut actions: tokio::sync::mpsc::Receiver<Action>,
    fleet: FleetMonitor,
    telemetry: Telemetry,
) {
    while let Some(action) = actions.recv().await {
        match action {
            Action::Probe { replica } => fleet.probe(replica),
            Action::Inspect { replica } => fleet.inspect(replica),
            Action::Sleep { replica } => fleet.order(replica, SleepOrder::Sleep),
            Action::Wake { replica, .. } => {
                let policy = telemetry.policy();
                let pool = policy.replicas.get(replica).and_then(|row| policy.pools.get(row.pool));
                if let Some(rules) = pool.and_then(|pool| pool.sleep) {
                    fleet.order(replica, SleepOrder::Wake { limit: rules.wake_timeout });
                }
            }
            Action::Eject { replica, why } => ReplicaEjected { replica, fault: why }.emit(&telemetry),
            Action::Spare { replica, why } => EjectionWithheld { replica, fault: why }.emit(&telemetry),
            Action::PoolDown { pool, why } => PoolDown { pool, fault: why }.emit(&telemetry),
            Action::Readmit { replica, after } => ReplicaReadmitted { replica, after }.emit(&telemetry),
            Action::PoolWanted { pool, expected } => PoolWanted { pool, expected }.emit(&telemetry),
            Action::PoolStarted { pool, took } => PoolStarted { pool, took }.emit(&telemetry),
            Action::OverrideExpired { lever } => {
                OverrideExpired { subject: lever.name(&telemetry.policy()) }.emit(&telemetry);
            }
            // The request that is concerned tells its own story.
            Action::Dispatch { .. }
            | Action::Reject { .. }
            | Action::Requeue { .. }
            | Action::WouldLimit { .. }
            | Action::Settled { .. }
            | Action::Idled(_)
            | Action::Recall { .. }
            | Action::HandOver { .. } => {}
        }
    }
}

/// An operator's wish as the scheduler takes it.
pub(in crate::app) fn event_of(wish: OperatorCommand, now: Tick) -> Event {
    match wish {
        OperatorCommand::Set { measure, lasts, reason } => Event::Overridden(Override {
            measure,
            until: lasts.map_or(Tick::NEVER, |lasts| now + lasts),
            reason,
        }),
        OperatorCommand::End(lever) => Event::Restored(lever),
    }
}

/// Everybody who lives by the settings.
#[derive(Clone)]
pub(in crate::app) struct SettingsFollowers {
    proxy: Arc<Proxy>,
    fleet: FleetMonitor,
    sources: DiscoverySources,
    /// What the listeners had at the last reload.
    listeners: Arc<ArcSwap<Listeners>>,
    /// Held while they are told, so that nobody hears of older settings last.
    telling: Arc<Mutex<()>>,
}

impl SettingsFollowers {
    pub(in crate::app) fn new(proxy: &Arc<Proxy>, fleet: &FleetMonitor, sources: &DiscoverySources) -> Self {
        Self {
            proxy: Arc::clone(proxy),
            fleet: fleet.clone(),
            sources: sources.clone(),
            listeners: Arc::new(ArcSwap::from_pointee(proxy.settings.load().listeners.clone())),
            telling: Arc::default(),
        }
    }

    /// What was found, once that is news.
    pub(in crate::app) async fn next_found(&self) -> FoundEndpoints {
        self.sources.next().await
    }

    /// Brings the settings of this moment to everybody.
    fn tell(&self) -> Arc<Settings> {
        let _telling = self.telling.lock();
        let settings = self.proxy.settings.load_full();
        self.proxy.gate.follow(&settings.policy);
        self.proxy.doorman.follow(&settings.edge.auth, &self.proxy.telemetry);
        self.proxy.upstreams.retain(&settings.edge);
        self.proxy.paces.retain(&settings.edge);
        self.fleet.reloaded();
        self.sources.reloaded();
        settings
    }

    /// Brings a reload's result to everybody whom it concerns.
    pub(in crate::app) fn reloaded(&self, report: &ReloadReport) {
        let telemetry = &self.proxy.telemetry;
        audit(report, telemetry);
        match report.outcome {
            ReloadOutcome::Unchanged => ConfigUnchanged.emit(telemetry),
            ReloadOutcome::Failed => {
                let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
                ConfigRejected { problems: &problems }.emit(telemetry);
            }
            ReloadOutcome::Applied => {
                let before = telemetry.policy();
                let settings = self.tell();
                let listeners = self.listeners.swap(Arc::new(settings.listeners.clone()));
                certificates_loaded(&listeners, &settings.listeners, telemetry);
                let policy = &settings.policy;
                let restart_needed = &report.needs_restart;
                ConfigReloaded { policy, digest: &settings.digest, restart_needed }.emit(telemetry);
                ReplicasChanged { before: &before, after: policy }.emit(telemetry);
            }
        }
    }

    /// Brings other replicas, found beside those of the file, into force.
    pub(in crate::app) fn discovered(&self, reloader: &Reloader, found: FoundEndpoints) {
        if let Some([before, after]) = reloader.discovered(found) {
            self.tell();
            ReplicasChanged { before: &before.policy, after: &after.policy }.emit(&self.proxy.telemetry);
        }
    }
}

/// The sources of replicas as the admin side shows them.
pub(in crate::app) fn source_views(sources: &DiscoverySources) -> Vec<SourceReport> {
    let rows = sources.views().into_iter();
    rows.map(|view| SourceReport {
        pool: view.pool,
        source: view.source,
        endpoints: view.endpoints,
        age: view.age,
        problem: view.problem,
    })
    .collect()
}

/// What the engines say of themselves, for metrics and the admin API.
pub(in crate::app) fn engine_views(view: &FleetView) -> Vec<EngineView> {
    let rows = view.all().into_iter();
    rows.map(|(replica, status)| EngineView {
        replica,
        report: status.gauges_age().map(|_| status.report(true)),
        age: status.gauges_age(),
        problem: status.trouble.map(|trouble| trouble.to_string()),
    })
    .collect()
}
