//! Check of `routing`.

use crate::config::sections::routing::{RoutingSection, SessionSection};
use crate::config::settings::SessionKey;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;
use crate::core::model::policy::StickySessions;

const MAX_SESSIONS: u32 = 10_000_000;

/// What names a session, and what the core makes of it.
pub(in crate::config) fn validate(
    routing: &RoutingSection,
    findings: &mut Findings<'_>,
) -> (Option<SessionKey>, Option<StickySessions>) {
    let Some(SessionSection { header, body, max_delay, max_sessions }) = &routing.session else {
        return (None, None);
    };
    let field = FieldPath::top("routing").key("session");
    if header.is_none() && body.is_empty() {
        let hint = "write `header: x-session-id`, or `body: [prompt_cache_key, user]`";
        findings.error(&field, "nothing names a session", hint);
    }
    let header = header.as_deref().map(|name| numbers::header(name, &field.key("header"), findings));
    if !(1..=MAX_SESSIONS).contains(max_sessions) {
        let message = format!("{max_sessions} is out of range");
        findings.error(&field.key("max_sessions"), message, format!("write 1 to {MAX_SESSIONS}"));
    }
    let max_delay = numbers::positive(*max_delay, &field.key("max_delay"), findings);
    let rule = StickySessions { max_delay, max_sessions: *max_sessions as usize };
    (Some(SessionKey { header, body: body.clone() }), Some(rule))
}
