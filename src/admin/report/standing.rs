//! Rows for replica sources and tenants' limits.

use serde::Serialize;
use serde_json::Value;

use crate::admin::config_view::amount;
use crate::config::settings::Settings;
use crate::config::settings::identity::Auth;
use crate::core::limits::LimitStatus;
use crate::core::limits::rule::{LimitId, LimitScope};
use crate::core::model::ids::{PoolId, TenantId};
use crate::fleet::discovery::SourceStatus;

/// Status of a pool's replica source beside the file's list.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct SourceStatusRow {
    kind: &'static str,
    endpoints: Option<usize>,
    age_seconds: Option<f64>,
    problem: Option<String>,
}

/// Status row of the pool's source; absent when the pool has none.
pub(in crate::admin) fn source(pool: PoolId, sources: &[SourceStatus]) -> Option<SourceStatusRow> {
    let view = sources.iter().find(|view| view.pool == pool)?;
    Some(SourceStatusRow {
        kind: view.source,
        endpoints: view.endpoints,
        age_seconds: view.age.map(|age| age.as_secs_f64()),
        problem: view.problem.clone(),
    })
}

/// Limit, and the amount left.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct LimitRow {
    scope: &'static str,
    /// Model or key of the limit; `null` = the whole tenant.
    of: Option<String>,
    unit: &'static str,
    period: &'static str,
    amount: Value,
    left: Value,
    whole_in_seconds: f64,
    shadow: bool,
}

/// Limits of a tenant, of its models and of its keys.
pub(in crate::admin) fn limits(
    tenant: TenantId,
    standings: &[LimitStatus],
    settings: &Settings,
) -> Vec<LimitRow> {
    let ours = |row: &&LimitStatus| owner(row.rule.id.scope, settings) == Some(tenant);
    let row = |standing: &LimitStatus| {
        let LimitId { scope, unit, period, shadow } = standing.rule.id;
        let of = match scope {
            LimitScope::Tenant(_) => None,
            LimitScope::Key(key) => Some(settings.policy.keys.name(key).to_owned()),
            LimitScope::Model(_, model) => Some(settings.policy.models.name(model).to_owned()),
        };
        LimitRow {
            scope: scope.name(),
            of,
            unit: unit.name(),
            period: period.name(),
            amount: amount(unit, standing.rule.amount),
            left: amount(unit, standing.left),
            whole_in_seconds: standing.reset.as_secs_f64(),
            shadow,
        }
    };
    standings.iter().filter(ours).map(row).collect()
}

/// Tenant that owns the limit.
fn owner(scope: LimitScope, settings: &Settings) -> Option<TenantId> {
    match (scope, &settings.edge.auth) {
        (LimitScope::Tenant(tenant) | LimitScope::Model(tenant, _), _) => Some(tenant),
        (LimitScope::Key(key), Auth::Known(known)) => {
            let name = settings.policy.keys.name(key);
            let grant = known.keys.get(name).map(|key| &key.grant).or_else(|| known.certs.get(name))?;
            Some(grant.tenant)
        }
        (LimitScope::Key(_), Auth::Off(_)) => None,
    }
}
