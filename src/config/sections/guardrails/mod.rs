//! Section `guardrails`: the operator's own service that may refuse prompts and answers.

pub(in crate::config) mod check;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::sections::identity::client_tls::ClientTlsSection;
use crate::config::sections::secret_ref::SecretRef;
use crate::config::syntax::units::{ByteSize, Span};

/// A service of the operator's own that is asked by HTTP about each prompt before
/// its request is queued, and about each answer that is not a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::reached)]
pub struct GuardrailsSection {
    /// Where it is, with its path. It gets a POST with JSON. Redirects are not
    /// followed.
    pub url: String,
    /// Sent to it as `Authorization: Bearer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Certificates of connections to it, if its URL is `https`; absent = it must have
    /// a certificate that the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTlsSection>,
    /// Time for one question and its verdict, the wait for a free call included.
    pub timeout: Span,
    /// Bytes of a prompt or an answer that are sent to it. A longer one counts as a
    /// failure.
    pub max_body: ByteSize,
    /// Calls at once. One tenant has at most half of them.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_calls: u32,
    /// Whether it is asked about prompts.
    pub prompts: bool,
    /// Whether it is asked about answers that are not streams.
    pub answers: bool,
    /// What happens to a request about which it gives no verdict: `refuse` it, or
    /// `allow` it.
    pub on_failure: OnGuardrailFailure,
}

impl Default for GuardrailsSection {
    fn default() -> Self {
        Self {
            url: String::new(),
            api_key: None,
            tls: None,
            timeout: Span::secs(1),
            max_body: ByteSize(1 << 20),
            max_calls: 64,
            prompts: true,
            answers: false,
            on_failure: OnGuardrailFailure::Refuse,
        }
    }
}

/// What happens without a verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnGuardrailFailure {
    /// The request is refused (503).
    #[default]
    Refuse,
    /// The request passes.
    Allow,
}

/// What differs from `guardrails` for a tenant or a class. A tenant's keys go before
/// those of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GuardrailRuleSection {
    /// Whether the service is asked about prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<bool>,
    /// Whether the service is asked about answers that are not streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<bool>,
    /// What happens to a request about which it gives no verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnGuardrailFailure>,
}

impl GuardrailRuleSection {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
