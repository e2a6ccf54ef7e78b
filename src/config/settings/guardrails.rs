//! Settings of guardrails.

use std::collections::BTreeMap;
use std::time::Duration;

use http::{HeaderValue, Uri};
use serde::Serialize;

use crate::config::settings::identity::ClientTls;
use crate::config::settings::shown;
use crate::core::model::ids::{ClassId, TenantId};

/// The service that may refuse prompts and answers, and when it is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GuardrailSettings {
    /// Where it is.
    #[serde(serialize_with = "shown::url")]
    pub url: Uri,
    /// TLS of connections to it; absent = what the system trusts.
    #[serde(skip)]
    pub tls: Option<ClientTls>,
    /// Its `authorization` header.
    #[serde(rename = "api_key", serialize_with = "shown::redacted")]
    pub bearer: Option<HeaderValue>,
    /// Time for one question.
    #[serde(serialize_with = "shown::seconds")]
    pub timeout: Duration,
    /// Bytes of a prompt or an answer that are sent.
    #[serde(rename = "max_body_bytes")]
    pub max_bytes: u64,
    /// Calls at once.
    pub max_calls: usize,
    /// The rule of each class that each tenant may use.
    #[serde(skip)]
    pub rules: BTreeMap<(TenantId, ClassId), GuardrailRule>,
}

/// When the service is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardrailRule {
    /// About prompts.
    pub prompts: bool,
    /// About answers that are not streams.
    pub answers: bool,
    /// Whether what it gives no verdict about passes.
    pub fails_open: bool,
}
