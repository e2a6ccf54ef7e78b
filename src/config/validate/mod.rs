//! The file as written to settings that hold, with every fault reported.
//!
//! Each part turns one section into its validated form and reports what is
//! wrong; where something is wrong it goes on with a harmless value, so that
//! one run finds everything. The result counts only if no error was found.

mod findings;
mod models;
mod names;
mod numbers;
mod pools;
mod scale;
mod server;
mod tenants;
mod url;
mod usage;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::file::ConfigFile;
use crate::config::secret::SecretReader;
use crate::config::settings::identity::Listeners;
use crate::config::settings::names::ModelNames;
use crate::config::settings::{EdgeSettings, Settings};
use crate::config::validate::tenants::credentials::CredentialSet;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::ClassId;
use crate::core::model::policy::{Class, Policy};

pub(super) use findings::Findings;
pub(super) use url::canonical;

/// Checks the file against itself and the world. Ids are those of
/// `previous` for every name that it had.
pub(super) fn validate(
    file: &ConfigFile,
    digest: String,
    previous: Option<&Settings>,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Settings {
    numbers::version(file.version, findings);
    let startup = server::validate(file, secrets, findings);
    let scale = scale::validate(file, secrets, findings);
    let mut ring = CredentialSet::default();
    let listeners = listeners(file, &mut ring, secrets, findings);
    let mut classes =
        tenants::classes::validate(&file.classes, previous.map(|old| &old.policy.classes), findings);
    let served = pools::validate(file, previous, secrets, findings);
    pools::placement::classes(file, &served.pools, &mut classes, findings);
    let models = models::validate(file, &served, previous, findings);
    let entry = tenants::TenantContext {
        file,
        previous,
        listen: startup.listen,
        classes: &classes,
        models: &models,
        pools: &served.pools,
    };
    let counting = models::counting::validate(file, &models, previous, secrets, findings);
    let mut admitted = tenants::validate(&entry, ring, secrets, findings);
    let (session, sessions) = models::routing::validate(&file.routing, findings);
    let shadows = models::shadows::validate(file, &models, &mut classes, &mut admitted.tenants, findings);
    let edge = EdgeSettings {
        auth: admitted.auth,
        names: ModelNames { tenants: admitted.names, ..models.names },
        models: counting,
        pools: served.edges,
        replicas: served.replica_edges,
        requests: server::request_path::requests(&file.requests, &file.queue, findings),
        upstream: server::request_path::upstream(&file.upstream, findings),
        continue_streams: file.retry.continue_streams,
        session,
        early_heads: classes_with_early_head(file, &classes),
        shadows,
    };
    let policy = Policy {
        generation: previous.map_or(1, |old| old.policy.generation + 1),
        classes,
        tenants: admitted.tenants,
        keys: admitted.budgets.keys,
        limits: admitted.budgets.rules,
        models: models.table,
        pools: served.pools,
        replicas: served.replicas,
        draining: BTreeSet::new(),
        spot_notices: BTreeSet::new(),
        bounds: server::request_path::queue(&file.queue, findings),
        retry: server::request_path::retry(&file.retry, findings),
        health: server::request_path::health(&file.health, findings),
        sessions,
    };
    usage::validate(file, &policy, findings);
    Settings { digest, startup, listeners, scale, edge: Arc::new(edge), policy: Arc::new(policy) }
}

fn listeners(
    file: &ConfigFile,
    ring: &mut CredentialSet,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Listeners {
    let has_ca = file.admin.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    Listeners {
        clients: server::tls::validate(
            file.server.tls.as_ref(),
            server::tls::CLIENTS,
            "server",
            secrets,
            findings,
        ),
        admin: server::tls::validate(
            file.admin.tls.as_ref(),
            server::tls::OPERATORS,
            "admin",
            secrets,
            findings,
        ),
        scale: server::tls::validate(
            file.scale.tls.as_ref(),
            server::tls::SCALER,
            "scale",
            secrets,
            findings,
        ),
        operators: Arc::new(ring.operators(&file.admin.auth, has_ca, findings)),
    }
}

fn classes_with_early_head(file: &ConfigFile, classes: &IdTable<ClassId, Class>) -> BTreeSet<ClassId> {
    let early = file.classes.iter().filter(|(_, class)| class.early_head);
    early.filter_map(|(name, _)| classes.id(name)).collect()
}
