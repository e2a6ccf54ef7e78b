//! Reload: brings new settings to every part of the process that follows them.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use crate::app::gateway::certificates::certificates_loaded;
use crate::config::load::merge::FoundEndpoints;
use crate::config::settings::Settings;
use crate::config::settings::identity::Listeners;
use crate::config::watch::{ReloadOutcome, ReloadReport, ReloadRequests, Reloader};
use crate::fleet::discovery::DiscoverySources;
use crate::fleet::handle::FleetMonitor;
use crate::proxy::Proxy;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{
    ConfigAudited, ConfigRejected, ConfigReloaded, ConfigUnchanged, ReplicasChanged,
};
use crate::telemetry::metrics::ModelPairs;

/// Passes each reload of the files to the followers. Runs until dropped.
pub(super) async fn follow_file(reloader: Arc<Reloader>, asks: ReloadRequests, followers: SettingsFollowers) {
    reloader.watch(asks, |report| followers.apply_reload(report)).await;
}

/// Passes each set of discovered replicas to the followers. Runs until dropped.
pub(super) async fn follow_sources(reloader: Arc<Reloader>, followers: SettingsFollowers) {
    loop {
        let found = followers.next_found().await;
        let (reloader, followers) = (Arc::clone(&reloader), followers.clone());
        // `discovered` may block, because a reload that reads files may be under way.
        let told = spawn_blocking(move || followers.apply_discovered(&reloader, found));
        if told.await.is_err() {
            return;
        }
    }
}

/// Parts of the process that follow the settings.
#[derive(Clone)]
pub(in crate::app) struct SettingsFollowers {
    proxy: Arc<Proxy>,
    fleet: FleetMonitor,
    sources: DiscoverySources,
    /// Listener settings at the last reload.
    listeners: Arc<ArcSwap<Listeners>>,
    /// Held while the followers are told, so that none ends with older settings.
    order: Arc<Mutex<()>>,
}

impl SettingsFollowers {
    pub(in crate::app) fn new(proxy: &Arc<Proxy>, fleet: &FleetMonitor, sources: &DiscoverySources) -> Self {
        Self {
            proxy: Arc::clone(proxy),
            fleet: fleet.clone(),
            sources: sources.clone(),
            listeners: Arc::new(ArcSwap::from_pointee(proxy.settings.load().listeners.clone())),
            order: Arc::default(),
        }
    }

    /// Waits for a new set of discovered replicas.
    pub(in crate::app) async fn next_found(&self) -> FoundEndpoints {
        self.sources.next().await
    }

    /// Passes the settings in force to every follower.
    fn apply_settings(&self) -> Arc<Settings> {
        let _telling = self.order.lock();
        let settings = self.proxy.settings.load_full();
        self.proxy.dispatcher.apply_policy(&settings.policy);
        let operators = &settings.listeners.operators;
        self.proxy.authenticator.set_providers(&settings.edge.auth, operators, &self.proxy.telemetry);
        self.proxy.upstreams.retain(&settings.edge);
        self.proxy.engine_signals.retain(&settings.edge);
        self.fleet.apply_settings();
        self.sources.apply_settings();
        settings
    }

    /// Passes a reload's result to the audit file, the log and the followers.
    pub(in crate::app) fn apply_reload(&self, report: &ReloadReport) {
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
                let settings = self.apply_settings();
                let listeners = self.listeners.swap(Arc::new(settings.listeners.clone()));
                certificates_loaded(&listeners, &settings.listeners, telemetry);
                let policy = &settings.policy;
                let restart_needed = &report.needs_restart;
                let changed: Vec<String> = report.changed.iter().map(ToString::to_string).collect();
                let (digest, pairs) = (&*settings.digest, &model_pairs(&settings));
                ConfigReloaded { policy, digest, restart_needed, changed: &changed, pairs }.emit(telemetry);
                ReplicasChanged { before: &before, after: policy }.emit(telemetry);
            }
        }
    }

    /// Applies a set of discovered replicas.
    pub(in crate::app) fn apply_discovered(&self, reloader: &Reloader, found: FoundEndpoints) {
        if let Some([before, after]) = reloader.discovered(found) {
            self.apply_settings();
            ReplicasChanged { before: &before.policy, after: &after.policy }.emit(&self.proxy.telemetry);
        }
    }
}

/// The models that may serve in place of others, or that get copies of their requests.
pub(super) fn model_pairs(settings: &Settings) -> ModelPairs {
    let names = &settings.edge.names;
    let usual = names.fallbacks.iter().flat_map(|(from, to)| to.iter().map(move |to| (*from, *to)));
    let of_splits = names.splits.values().flat_map(|split| {
        split.targets.iter().flat_map(|target| split.fallbacks.iter().map(|to| (target.model, *to)))
    });
    let rules = settings.edge.shadows.iter().flat_map(|shadows| &shadows.rules);
    ModelPairs {
        fallbacks: usual.chain(of_splits).filter(|(from, to)| from != to).collect(),
        shadows: rules.map(|(model, rule)| (*model, rule.to)).collect(),
    }
}

/// Audits a reload: who changed what. A reload without changes is audited only when somebody asked
/// for it.
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
