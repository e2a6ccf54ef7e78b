//! The file as written to settings that hold, with every fault reported.
//!
//! Each part turns one section into its validated form and reports what is
//! wrong; where something is wrong it goes on with a harmless value, so that
//! one run finds everything. The result counts only if no error was found.

mod classes;
mod counting;
mod discover;
mod fallbacks;
mod findings;
mod limits;
mod models;
mod names;
mod placement;
mod pools;
mod startup;
mod tenants;
mod url;
mod usage;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::file::File;
use crate::config::secret::Reader;
use crate::config::settings::names::Names;
use crate::config::settings::{Edge, Settings};
use crate::core::policy::Policy;

pub(super) use findings::Findings;
pub(super) use url::canonical;

/// Checks the file against itself and the world. Ids are those of
/// `previous` for every name that it had.
pub(super) fn validate(
    file: &File,
    digest: String,
    previous: Option<&Settings>,
    secrets: &mut Reader<'_>,
    findings: &mut Findings<'_>,
) -> Settings {
    limits::version(file.version, findings);
    let startup = startup::validate(&file.server, &file.telemetry, findings);
    let mut classes = classes::validate(&file.classes, previous.map(|old| &old.policy.classes), findings);
    let served = pools::validate(file, previous, secrets, findings);
    placement::classes(file, &served.pools, &mut classes, findings);
    let models = models::validate(file, &served, previous, findings);
    let entry = tenants::Context {
        file,
        previous,
        listen: startup.listen,
        classes: &classes,
        models: &models,
        pools: &served.pools,
    };
    let admitted = tenants::validate(&entry, findings);
    let counting = counting::validate(file, &models, previous, secrets, findings);
    let edge = Edge {
        auth: admitted.auth,
        names: Names { tenants: admitted.names, ..models.names },
        models: counting,
        pools: served.edges,
        replicas: served.replica_edges,
        requests: limits::requests(&file.requests, &file.queue, findings),
        upstream: limits::upstream(&file.upstream, findings),
        continue_streams: file.retry.continue_streams,
    };
    let policy = Policy {
        generation: previous.map_or(1, |old| old.policy.generation + 1),
        classes,
        tenants: admitted.tenants,
        models: models.table,
        pools: served.pools,
        replicas: served.replicas,
        draining: BTreeSet::new(),
        bounds: limits::queue(&file.queue, findings),
        retry: limits::retry(&file.retry, findings),
        health: limits::health(&file.health, findings),
    };
    usage::validate(file, &policy, findings);
    Settings { digest, startup, edge: Arc::new(edge), policy: Arc::new(policy) }
}
