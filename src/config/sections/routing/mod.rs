//! Section `routing`: the name of a session, and how long a session keeps to its replica.

pub(in crate::config) mod check;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::syntax::units::Span;

/// What counts for the choice of a replica beside its time to the first token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RoutingSection {
    /// Requests of one session prefer the replica that served the session last. Absent = there are
    /// no sessions, and each request goes where its first token comes soonest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionSection>,
}

/// What a session is, and how much it may cost to keep it at its replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSection {
    /// Header that names the session of a request, such as `x-session-id`. The header takes
    /// precedence over the fields of `body`. Absent = no header names a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Fields of the request body that name the session of a request. The first field that the
    /// request has counts.
    pub body: Vec<SessionField>,
    /// How much later than elsewhere the first token may come at the session's replica, the wait
    /// for that replica included. Beyond the delay, and when the replica is out of service, the
    /// session goes on at another replica.
    pub max_delay: Span,
    /// Sessions that the gateway remembers. At the limit, the session used longest ago is
    /// forgotten.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_sessions: u32,
}

/// A field of the body that may name a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionField {
    /// The field `prompt_cache_key`.
    PromptCacheKey,
    /// The field `user`.
    User,
}

impl Default for SessionSection {
    fn default() -> Self {
        Self {
            header: None,
            body: vec![SessionField::PromptCacheKey],
            max_delay: Span::millis(500),
            max_sessions: 100_000,
        }
    }
}
