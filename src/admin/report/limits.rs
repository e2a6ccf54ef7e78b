//! Limit rows: tenants' limits, and the amounts left.

use serde::Serialize;
use serde_json::Value;

use crate::admin::config_view::amount;
use crate::config::settings::Settings;
use crate::config::settings::identity::Auth;
use crate::core::limits::LimitStatus;
use crate::core::limits::rule::{LimitId, LimitScope};
use crate::core::model::ids::TenantId;

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
    statuses: &[LimitStatus],
    settings: &Settings,
) -> Vec<LimitRow> {
    let ours = |row: &&LimitStatus| owner(row.rule.id.scope, settings) == Some(tenant);
    let row = |status: &LimitStatus| {
        let LimitId { scope, unit, period, shadow } = status.rule.id;
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
            amount: amount(unit, status.rule.amount),
            left: amount(unit, status.left),
            whole_in_seconds: status.reset.as_secs_f64(),
            shadow,
        }
    };
    statuses.iter().filter(ours).map(row).collect()
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
