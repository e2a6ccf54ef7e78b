//! Listeners in the view of the configuration.

use serde_json::{Value, json};

use crate::config::settings::identity::{Issuer, ListenerTls, Listeners, OperatorClaims, OperatorRole};
use crate::telemetry::wall::unix_seconds;

use super::values::by_name;

/// Certificates of the listeners, and who may use the operators' one; without secrets.
pub(super) fn listeners_view(listeners: &Listeners) -> Value {
    let tls = |tls: &Option<ListenerTls>| {
        tls.as_ref().map(|tls| json!({ "certificate_ends": unix_seconds(tls.ends) }))
    };
    let operators = &listeners.operators;
    let tokens = operators.tokens.iter().map(|(id, token)| {
        (id, json!({ "role": role(token.role), "expires": token.expires.map(unix_seconds) }))
    });
    let certs = operators.certs.iter().map(|(name, held)| (&**name, json!({ "role": role(*held) })));
    json!({
        "client_tls": tls(&listeners.clients),
        "admin_tls": tls(&listeners.admin),
        "scale_tls": tls(&listeners.scale),
        "admin_tokens": by_name(tokens),
        "admin_client_certs": by_name(certs),
        "admin_oidc": operators.oidc.as_ref().map(|issuer| operator_issuer(issuer)),
        "admin_loopback": operators.loopback,
        "admin_open_metrics": operators.open_metrics,
        "admin_hosts": operators.hosts,
    })
}

const fn role(role: OperatorRole) -> &'static str {
    match role {
        OperatorRole::Read => "read",
        OperatorRole::Operate => "operate",
    }
}

fn operator_issuer(issuer: &Issuer<OperatorClaims>) -> Value {
    let claims = &issuer.claims;
    let roles = claims.roles.values.iter().map(|(value, held)| (&**value, json!(role(*held))));
    json!({
        "issuer": issuer.source.issuer,
        "audience": issuer.audience,
        "client_id": claims.console.as_ref().map(|console| &console.id),
        "scopes": claims.console.as_ref().map(|console| &console.scopes),
        "role_claim": claims.roles.claim,
        "roles": by_name(roles),
        "name_claim": claims.name,
    })
}
