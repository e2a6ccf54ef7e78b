//! Section `routing`: the name of a session, and how long a session keeps to its replica.

pub(in crate::config) mod check;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::syntax::units::Span;

/// What counts for the choice of a replica beside its time to the first token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RoutingSection {
    /// Requests of one session keep to one replica; absent = each request goes
    /// where its first token comes soonest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionSection>,
}

/// What a session is, and how much it may cost to keep it at its replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSection {
    /// The header that names the session, such as `x-session-id`. It goes
    /// before the fields of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Fields of the body that name it; the first that is there counts.
    pub body: Vec<SessionField>,
    /// How much later than elsewhere the first token may come at the session's
    /// replica, its wait included. A session whose replica is later, full or out
    /// of service goes on at another one.
    pub max_delay: Span,
    /// Sessions that are remembered; the one used longest ago is forgotten
    /// first.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max_sessions: u32,
}

/// A field of the body that may name a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionField {
    /// `prompt_cache_key`.
    PromptCacheKey,
    /// `user`.
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
