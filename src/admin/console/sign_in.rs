//! Sign-in of the console at the operators' identity provider: what the page has to know, nothing
//! secret. The page gets its token from the provider by itself.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::admin::state::AdminState;

/// Answer of `GET /console/sign-in`; `provider` is null where the console has no provider.
pub(super) fn provider(state: &AdminState) -> Response {
    Json(json!({ "provider": view(state) })).into_response()
}

fn view(state: &AdminState) -> Option<Value> {
    let settings = state.settings();
    let (issuer, client) = settings.listeners.operators.sign_in_provider()?;
    let endpoints = state.operator_tokens.sign_in_endpoints(issuer);
    Some(json!({
        "issuer": issuer.source.issuer,
        "client_id": client.id,
        "scopes": client.scopes.join(" "),
        "authorization_endpoint": endpoints.as_ref().map(|endpoints| &endpoints.authorization),
        "token_endpoint": endpoints.as_ref().map(|endpoints| &endpoints.token),
    }))
}

/// Origin to which the page sends the code of a sign-in; `None` without a provider.
pub(super) fn token_origin(state: &AdminState) -> Option<String> {
    let settings = state.settings();
    let (issuer, _) = settings.listeners.operators.sign_in_provider()?;
    Some(state.operator_tokens.sign_in_endpoints(issuer)?.token_origin.clone())
}
