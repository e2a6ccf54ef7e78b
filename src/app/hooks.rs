//! Small adapters by which parts that do not know each other talk.

use std::io;
use std::sync::Arc;

use crate::admin::Wish;
use crate::config::watch::{ReloadOutcome, ReloadReport};
use crate::core::event::{Action, Event};
use crate::core::ids::ReplicaId;
use crate::core::overrides::Override;
use crate::core::time::Tick;
use crate::fleet::handle::Fleet;
use crate::fleet::hooks::{Note, Sink, Watch};
use crate::fleet::view::FleetView;
use crate::proxy::gate::Gate;
use crate::proxy::handler::Proxy;
use crate::proxy::server::{DoorEvents, Refusal};
use crate::telemetry::Telemetry;
use crate::telemetry::event::{
    ConfigRejected, ConfigReloaded, ConfigUnchanged, ConnectionRefused, ModelMismatch, OverrideExpired,
    ProbeFailed, ReplicaEjected, ReplicaReadmitted, ScrapeFailed, ScrapeRecovered,
};
use crate::telemetry::metrics::EngineView;

/// The fleet's reports go to the scheduler.
pub(super) struct ToScheduler(pub(super) Arc<Gate>);

impl Sink for ToScheduler {
    fn event(&self, event: Event) {
        self.0.event(event);
    }
}

/// The fleet's notes go to people.
pub(super) struct ToTelemetry(pub(super) Telemetry);

impl Watch for ToTelemetry {
    fn note(&self, replica: ReplicaId, note: Note<'_>) {
        let telemetry = &self.0;
        match note {
            Note::ScrapeFailed { why, times } => {
                ScrapeFailed { replica, problem: &why.to_string(), first: times == 1 }.emit(telemetry);
            }
            Note::ScrapeRecovered { .. } => ScrapeRecovered { replica }.emit(telemetry),
            Note::ModelMismatch { missing, served } => {
                let served: Vec<String> = served.iter().map(|served| served.name.clone()).collect();
                for expected in missing {
                    ModelMismatch { replica, expected, served: &served }.emit(telemetry);
                }
            }
            Note::ProbeFailed { why } => ProbeFailed { replica, problem: &why.to_string() }.emit(telemetry),
            Note::Asleep => ScrapeFailed { replica, problem: "asleep", first: true }.emit(telemetry),
            Note::Awake => ScrapeRecovered { replica }.emit(telemetry),
            Note::InfoFailed { .. } | Note::ModelsMatch | Note::ProbeSucceeded => {}
        }
    }
}

/// What happens at the door goes to metrics.
pub(super) struct DoorWatch {
    telemetry: Telemetry,
    open: metrics::Gauge,
}

impl DoorWatch {
    pub(super) fn new(telemetry: &Telemetry) -> Self {
        Self { telemetry: telemetry.clone(), open: telemetry.open_connections() }
    }
}

impl DoorEvents for DoorWatch {
    fn accepted(&self) {
        self.open.increment(1.0);
    }

    fn closed(&self) {
        self.open.decrement(1.0);
    }

    fn refused(&self, why: Refusal) {
        ConnectionRefused { reason: why.label() }.emit(&self.telemetry);
    }

    fn accept_failed(&self, error: &io::Error) {
        tracing::warn!(%error, "no connection could be accepted; are there enough file descriptors?");
    }
}

/// Carries the scheduler's wishes about replicas to those who fulfil them.
pub(super) async fn carry_out(
    mut actions: tokio::sync::mpsc::Receiver<Action>,
    fleet: Fleet,
    telemetry: Telemetry,
) {
    while let Some(action) = actions.recv().await {
        match action {
            Action::Probe { replica } => fleet.probe(replica),
            Action::Eject { replica, why } => ReplicaEjected { replica, fault: why }.emit(&telemetry),
            Action::Readmit { replica, after } => ReplicaReadmitted { replica, after }.emit(&telemetry),
            Action::OverrideExpired { lever } => {
                OverrideExpired { subject: lever.name(&telemetry.policy()) }.emit(&telemetry);
            }
            // The request that is concerned tells its own story.
            Action::Dispatch { .. }
            | Action::Reject { .. }
            | Action::Requeue { .. }
            | Action::Recall { .. } => {}
        }
    }
}

/// An operator's wish as the scheduler takes it.
pub(super) fn event_of(wish: Wish, now: Tick) -> Event {
    match wish {
        Wish::Set { measure, lasts, reason } => Event::Overridden(Override {
            measure,
            until: lasts.map_or(Tick::NEVER, |lasts| now + lasts),
            reason,
        }),
        Wish::End(lever) => Event::Restored(lever),
    }
}

/// Brings a reload's result to everybody whom it concerns.
pub(super) fn apply_reload(report: &ReloadReport, proxy: &Proxy, fleet: &Fleet) {
    let telemetry = &proxy.telemetry;
    match report.outcome {
        ReloadOutcome::Unchanged => ConfigUnchanged.emit(telemetry),
        ReloadOutcome::Failed => {
            let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
            ConfigRejected { problems: &problems }.emit(telemetry);
        }
        ReloadOutcome::Applied => {
            let settings = proxy.settings.load_full();
            proxy.gate.follow(&settings.policy);
            proxy.upstreams.retain(&settings.edge);
            proxy.paces.retain(&settings.edge);
            fleet.reloaded();
            ConfigReloaded {
                policy: &settings.policy,
                digest: &settings.digest,
                restart_needed: &report.needs_restart,
            }
            .emit(telemetry);
        }
    }
}

/// What the engines say of themselves, for metrics and the admin API.
pub(super) fn engine_views(view: &FleetView) -> Vec<EngineView> {
    let rows = view.all().into_iter();
    rows.map(|(replica, status)| EngineView {
        replica,
        report: status.gauges_age().map(|_| status.report(true)),
        age: status.gauges_age(),
        problem: status.trouble.map(|trouble| trouble.to_string()),
    })
    .collect()
}
