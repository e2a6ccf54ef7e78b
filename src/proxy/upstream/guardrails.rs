//! Guardrail service: the operator's own server that gives a verdict on a prompt or an answer. Calls
//! are bounded in number, for all tenants and for one, and in time.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use dashmap::DashMap;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::Deserialize;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::config::settings::UpstreamLimits;
use crate::config::settings::guardrails::GuardrailSettings;
use crate::config::settings::identity::ClientTls;
use crate::core::model::ids::TenantId;
use crate::protocol::headers::X_REQUEST_ID;
use crate::protocol::request::edit::EditedBody;
use crate::proxy::upstream::{UpstreamCall, UpstreamReplica, whole_body};
use crate::telemetry::summary::GuardrailOutcome;

/// Longest verdict that is read, in bytes.
const MAX_VERDICT_BYTES: u64 = 64 << 10;
/// Longest code of a reason, in characters.
const MAX_REASON: usize = 64;

/// Verdict of the service.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) struct GuardrailVerdict {
    pub(in crate::proxy) is_allowed: bool,
    /// Message for the client.
    pub(in crate::proxy) message: Option<String>,
    /// Reason as a short code, for operators.
    pub(in crate::proxy) reason: Option<Arc<str>>,
}

/// The service under the settings in force.
#[derive(Debug, Default)]
pub struct Guardrails(ArcSwapOption<GuardrailServer>);

/// The connections to one service.
#[derive(Debug)]
pub(in crate::proxy) struct GuardrailServer {
    url: Uri,
    tls: Option<ClientTls>,
    max_calls: usize,
    server: UpstreamReplica,
    calls: Semaphore,
    by_tenant: DashMap<TenantId, Arc<Semaphore>>,
}

impl Guardrails {
    /// The service that the settings name.
    pub(in crate::proxy) fn server(&self, settings: &GuardrailSettings) -> Arc<GuardrailServer> {
        let known = self.0.load_full();
        if let Some(known) = known.filter(|known| known.is_of(settings)) {
            return known;
        }
        let new = Arc::new(GuardrailServer::new(settings));
        self.0.store(Some(Arc::clone(&new)));
        new
    }

    /// Closes connections that were not used for `keep_alive`.
    pub fn close_idle(&self, keep_alive: Duration) {
        if let Some(known) = &*self.0.load() {
            known.server.close_idle(keep_alive);
        }
    }
}

impl GuardrailServer {
    fn new(settings: &GuardrailSettings) -> Self {
        Self {
            url: settings.url.clone(),
            tls: settings.tls.clone(),
            max_calls: settings.max_calls,
            server: UpstreamReplica::new(&settings.url, settings.tls.as_ref()),
            calls: Semaphore::new(settings.max_calls),
            by_tenant: DashMap::new(),
        }
    }

    fn is_of(&self, settings: &GuardrailSettings) -> bool {
        self.max_calls == settings.max_calls && self.url == settings.url && self.tls == settings.tls
    }

    /// Asks the service. Dropping the future ends the call.
    ///
    /// # Errors
    /// Why there is no verdict.
    pub(in crate::proxy) async fn ask(
        &self,
        settings: &GuardrailSettings,
        limits: &UpstreamLimits,
        tenant: TenantId,
        request_id: &HeaderValue,
        question: EditedBody,
    ) -> Result<GuardrailVerdict, GuardrailOutcome> {
        let until = Instant::now() + settings.timeout;
        let own = self.share_of(tenant);
        let turn = async { (own.acquire().await, self.calls.acquire().await) };
        let _turn = timeout_at(until, turn).await.map_err(|_| GuardrailOutcome::Busy)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(X_REQUEST_ID, request_id.clone());
        headers.extend(settings.bearer.clone().map(|bearer| (AUTHORIZATION, bearer)));
        let call = UpstreamCall { path: "", headers: &headers, body: question };
        timeout_at(until, self.call(&call, limits)).await.unwrap_or(Err(GuardrailOutcome::Timeout))
    }

    /// The calls of one tenant: half of all.
    fn share_of(&self, tenant: TenantId) -> Arc<Semaphore> {
        let fresh = || Arc::new(Semaphore::new(self.max_calls.div_ceil(2)));
        Arc::clone(&self.by_tenant.entry(tenant).or_insert_with(fresh))
    }

    async fn call(
        &self,
        call: &UpstreamCall<'_>,
        limits: &UpstreamLimits,
    ) -> Result<GuardrailVerdict, GuardrailOutcome> {
        let answer = self.server.send(call, limits).await.map_err(|_| GuardrailOutcome::Unreachable)?;
        if answer.head.status != StatusCode::OK {
            return Err(GuardrailOutcome::BadStatus);
        }
        let verdict = whole_body(answer, MAX_VERDICT_BYTES).await;
        verdict.ok().and_then(|bytes| read_verdict(&bytes)).ok_or(GuardrailOutcome::Malformed)
    }
}

fn read_verdict(bytes: &[u8]) -> Option<GuardrailVerdict> {
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum VerdictName {
        Allow,
        Deny,
    }
    #[derive(Deserialize)]
    struct VerdictBody {
        verdict: VerdictName,
        message: Option<String>,
        reason: Option<String>,
    }
    let VerdictBody { verdict, message, reason } = serde_json::from_slice(bytes).ok()?;
    // A reason goes into logs, so that it may hold no text of a prompt.
    let is_code = |reason: &String| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':');
        (1..=MAX_REASON).contains(&reason.len()) && reason.bytes().all(allowed)
    };
    Some(GuardrailVerdict {
        is_allowed: matches!(verdict, VerdictName::Allow),
        message: message.filter(|message| !message.is_empty()),
        reason: reason.filter(is_code).map(Arc::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_allow_or_deny() {
        let allowed = read_verdict(br#"{"verdict":"allow","reason":"pii:none","score":0.1}"#).unwrap();
        assert!(allowed.is_allowed);
        assert_eq!(allowed.reason.as_deref(), Some("pii:none"));
        let denied = read_verdict(br#"{"verdict":"deny","message":"No card numbers, please."}"#).unwrap();
        assert_eq!(denied.message.as_deref(), Some("No card numbers, please."));
        assert!(!denied.is_allowed);
        for broken in ["", "allow", "{}", r#"{"verdict":"ALLOW"}"#, r#"{"verdict":true}"#, "[]"] {
            assert_eq!(read_verdict(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn only_a_code_is_a_reason() {
        let long = "a".repeat(65);
        for reason in ["my card is 4111 1111", "", "ä", &long] {
            let body = serde_json::json!({ "verdict": "deny", "reason": reason, "message": "" }).to_string();
            let verdict = read_verdict(body.as_bytes()).unwrap();
            assert_eq!((verdict.reason, verdict.message), (None, None), "{reason}");
        }
    }
}
