//! Validation: turns the file as written into settings, and reports every fault.
//!
//! The check of each section (`sections`) turns it into its validated form and
//! reports what is wrong. Where something is wrong, the check goes on with a
//! harmless value, so that one run finds everything. The result counts only if
//! no error was found. The modules here are the parts that all checks share.

pub(super) mod files;
pub(super) mod findings;
pub(super) mod names;
pub(super) mod numbers;
pub(super) mod url;
mod warnings;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::file::ConfigFile;
use crate::config::secret::SecretReader;
use crate::config::sections::identity::credentials::CredentialSet;
use crate::config::sections::{
    guardrails, identity, models, placement, pools, request_path, routing, scale, server, tenants,
};
use crate::config::settings::identity::{Listeners, Operators};
use crate::config::settings::names::ModelNames;
use crate::config::settings::{EdgeSettings, Settings};
use crate::config::validate::findings::Findings;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{ClassId, TenantId};
use crate::core::model::policy::{Class, Policy, Tenant};

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
    let startup = server::check::validate(file, secrets, findings);
    let scale = scale::check::validate(file, secrets, findings);
    let cluster = scale::cluster::validate(file.cluster.as_ref(), secrets, findings);
    let mut credentials = CredentialSet::default();
    let generation = previous.map_or(1, |old| old.policy.generation + 1);
    let listeners = listeners(file, generation, &mut credentials, secrets, findings);
    let mut classes =
        tenants::classes::validate(&file.classes, previous.map(|old| &old.policy.classes), findings);
    let served = pools::check::validate(file, previous, secrets, findings);
    placement::check::classes(file, &served.pools, &mut classes, findings);
    let models = models::check::validate(file, &served, previous, findings);
    let entry = tenants::context::TenantContext {
        file,
        previous,
        generation,
        listen: startup.listen,
        classes: &classes,
        models: &models,
        pools: &served.pools,
    };
    let counting = models::counting::validate(file, &models, previous, secrets, findings);
    let mut admitted = tenants::check::validate(&entry, credentials, secrets, findings);
    let (session, sessions) = routing::check::validate(&file.routing, findings);
    let shadows = models::shadows::validate(file, &models, &mut classes, &mut admitted.tenants, findings);
    let guardrails = guardrails::check::validate(file, &classes, &admitted.tenants, secrets, findings);
    let edge = EdgeSettings {
        auth: admitted.auth,
        names: ModelNames { tenants: admitted.names, ..models.names },
        models: counting,
        pools: served.edges,
        replicas: served.replica_edges,
        requests: request_path::check::requests(&file.requests, &file.queue, findings),
        upstream: request_path::check::upstream(&file.upstream, findings),
        continue_streams: file.retry.continue_streams,
        session,
        isolated_tenants: isolated_tenants(file, &admitted.tenants),
        early_heads: classes_with_early_head(file, &classes),
        shadows,
        guardrails,
    };
    let policy = Policy {
        generation,
        classes,
        tenants: admitted.tenants,
        keys: admitted.limits.keys,
        limits: admitted.limits.rules,
        models: models.table,
        pools: served.pools,
        replicas: served.replicas,
        draining: BTreeSet::new(),
        spot_notices: BTreeSet::new(),
        bounds: request_path::check::queue(&file.queue, findings),
        retry: request_path::check::retry(&file.retry, findings),
        health: request_path::check::health(&file.health, findings),
        sessions,
    };
    warnings::validate(file, &policy, findings);
    Settings { digest, startup, listeners, scale, cluster, edge: Arc::new(edge), policy: Arc::new(policy) }
}

fn listeners(
    file: &ConfigFile,
    generation: u64,
    credentials: &mut CredentialSet,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Listeners {
    let has_ca = file.admin.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let oidc =
        file.admin.auth.oidc.as_ref().map(|oidc| identity::operator_oidc::validate(oidc, secrets, findings));
    Listeners {
        clients: identity::tls::validate(
            file.server.tls.as_ref(),
            identity::tls::CLIENTS,
            "server",
            secrets,
            findings,
        ),
        admin: identity::tls::validate(
            file.admin.tls.as_ref(),
            identity::tls::OPERATORS,
            "admin",
            secrets,
            findings,
        ),
        scale: identity::tls::validate(
            file.scale.tls.as_ref(),
            identity::tls::SCALER,
            "scale",
            secrets,
            findings,
        ),
        operators: Arc::new(Operators {
            epoch: generation,
            ..credentials.operators(&file.admin.auth, has_ca, oidc, findings)
        }),
    }
}

fn isolated_tenants(file: &ConfigFile, tenants: &IdTable<TenantId, Tenant>) -> BTreeSet<TenantId> {
    let isolated = file.tenants.iter().filter(|(_, tenant)| tenant.isolate_prefix_cache);
    isolated.filter_map(|(name, _)| tenants.id(name)).collect()
}

fn classes_with_early_head(file: &ConfigFile, classes: &IdTable<ClassId, Class>) -> BTreeSet<ClassId> {
    let early = file.classes.iter().filter(|(_, class)| class.early_head);
    early.filter_map(|(name, _)| classes.id(name)).collect()
}
