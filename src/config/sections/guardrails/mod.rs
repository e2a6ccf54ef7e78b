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
    /// URL of the guardrail service, with its path. The gateway sends a POST with JSON, and follows
    /// no redirects.
    pub url: String,
    /// Secret that the gateway sends to the guardrail service as `Authorization: Bearer`. Absent =
    /// the gateway sends no credential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Certificates for connections to the guardrail service, if its URL is `https`. Absent = the
    /// service must have a certificate that the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTlsSection>,
    /// Longest time for one question to the guardrail service and its verdict, the wait for a free
    /// call (`max_calls`) included. Without a verdict in this time, `on_failure` decides.
    pub timeout: Span,
    /// Largest prompt or answer in bytes that the gateway sends to the guardrail service. For a
    /// larger one, `on_failure` decides.
    pub max_body: ByteSize,
    /// Calls to the guardrail service that may run at once. One tenant has at most half of the
    /// calls; further questions wait, within `timeout`.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_calls: u32,
    /// Whether the gateway asks the guardrail service about each prompt before the request is
    /// queued.
    pub prompts: bool,
    /// Whether the gateway asks the guardrail service about each answer that is not a stream.
    pub answers: bool,
    /// What happens to a request about which the guardrail service gives no verdict: `refuse` or
    /// `allow`.
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

/// Differences from the section `guardrails` for a tenant or a class. The keys of a tenant take
/// precedence over those of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GuardrailRuleSection {
    /// Whether the gateway asks the guardrail service about prompts. Absent = as the class says
    /// (for a tenant), else as `guardrails` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<bool>,
    /// Whether the gateway asks the guardrail service about answers that are not streams. Absent =
    /// as the class says (for a tenant), else as `guardrails` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<bool>,
    /// What happens to a request about which the guardrail service gives no verdict. Absent = as
    /// the class says (for a tenant), else as `guardrails` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnGuardrailFailure>,
}

impl GuardrailRuleSection {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
