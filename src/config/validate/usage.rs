//! What is valid but hardly meant.

use std::collections::BTreeSet;

use crate::config::field::Field;
use crate::config::file::File;
use crate::config::file::pools::{Engine, Pool, Replica};
use crate::config::file::tenants::builtin_classes;
use crate::config::validate::findings::Findings;
use crate::core::policy::Policy;

/// Looks at a file without errors only: after one, what seems unused may not
/// be.
pub(super) fn validate(file: &File, policy: &Policy, findings: &mut Findings<'_>) {
    if findings.any_error() {
        return;
    }
    unused_classes(file, policy, findings);
    unused_models(file, policy, findings);
    for (name, pool) in file.pools.iter() {
        sizes(pool, &Field::top("pools").key(name), findings);
    }
}

fn unused_classes(file: &File, policy: &Policy, findings: &mut Findings<'_>) {
    if file.classes == builtin_classes() {
        return;
    }
    for (id, name, _) in policy.classes.iter() {
        if !policy.tenants.iter().any(|(_, _, tenant)| tenant.classes.contains(&id)) {
            let field = Field::top("classes").key(name);
            findings.warn(
                &field,
                format!("no tenant may use the class `{name}`"),
                "allow it, or take it away",
            );
        }
    }
}

fn unused_models(file: &File, policy: &Policy, findings: &mut Findings<'_>) {
    for (id, name, model) in policy.models.iter() {
        let allowed = |models: &Option<BTreeSet<_>>| models.as_ref().is_none_or(|set| set.contains(&id));
        if policy.tenants.iter().any(|(_, _, tenant)| allowed(&tenant.models)) {
            continue;
        }
        let pool = model.pools.first().map_or("", |pool| policy.pools.name(*pool));
        let field = match file.models.get(name) {
            Some(_) => Field::top("models").key(name),
            None => Field::top("pools").key(pool).key("models"),
        };
        findings.warn(&field, format!("no tenant may use the model `{name}`"), "allow it, or take it away");
    }
}

fn sizes(pool: &Pool, field: &Field, findings: &mut Findings<'_>) {
    let replicas = || pool.replicas.iter().map(Replica::detail);
    let sized = pool.max_seqs.is_some() || replicas().all(|replica| replica.max_seqs.is_some());
    if pool.engine == Some(Engine::Vllm) && !sized && !pool.replicas.is_empty() {
        let hint = "set `max_seqs` to the engine's --max-num-seqs for a good start";
        findings.info(
            field,
            "vLLM does not say how many sequences it runs at once; the limit is learned",
            hint,
        );
    }
    if pool.engine == Some(Engine::Triton) && replicas().any(|replica| replica.metrics_url.is_none()) {
        let hint = "give each replica a `metrics_url` such as http://10.0.0.5:8002/metrics";
        findings.info(&field.key("replicas"), "Triton serves its metrics on a port of its own", hint);
    }
}
