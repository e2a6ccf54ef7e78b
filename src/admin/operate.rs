//! Operator commands: cordon and drain pools and replicas, pause and boost tenants.
//!
//! A command changes something only as a POST with a JSON body. Before a browser sends such a body
//! to another site, the browser asks that site. The admin port never consents, so no web page can
//! act in an operator's name.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};

use crate::admin::auth::Operator;
use crate::admin::report::overview::{self, join_names};
use crate::admin::state::AdminState;
use crate::cluster::{SharedOverride, target_name};
use crate::config::report::problem::nearest;
use crate::config::syntax::units::Span;
use crate::core::model::event::Event;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{PoolId, TenantId};
use crate::core::model::overrides::{BOOSTS, Closed, Override, OverrideChange, OverrideTarget};
use crate::core::model::policy::Policy;
use crate::core::model::snapshot::{OverrideResult, Snapshot};
use crate::core::model::time::Tick;
use crate::telemetry::event::OverrideChanged;

/// Duration of an override without `for`.
const DEFAULT_DURATION: Duration = Duration::from_secs(3600);
/// Most bytes of a reason.
const MAX_REASON: usize = 200;
/// Most names that an error lists.
const MAX_LISTED: usize = 8;

/// Command of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperatorVerb {
    ClosePool(Closed),
    OpenPool,
    CloseReplica(Closed),
    OpenReplica,
    Pause,
    Resume,
    Boost,
}

/// Every command with its path.
pub(super) const VERBS: [(&str, OperatorVerb); 11] = [
    ("/admin/v1/pools/cordon", OperatorVerb::ClosePool(Closed::Cordoned)),
    ("/admin/v1/pools/drain", OperatorVerb::ClosePool(Closed::Drained)),
    ("/admin/v1/pools/spot-notice", OperatorVerb::ClosePool(Closed::SpotNotice)),
    ("/admin/v1/pools/uncordon", OperatorVerb::OpenPool),
    ("/admin/v1/replicas/cordon", OperatorVerb::CloseReplica(Closed::Cordoned)),
    ("/admin/v1/replicas/drain", OperatorVerb::CloseReplica(Closed::Drained)),
    ("/admin/v1/replicas/spot-notice", OperatorVerb::CloseReplica(Closed::SpotNotice)),
    ("/admin/v1/replicas/uncordon", OperatorVerb::OpenReplica),
    ("/admin/v1/tenants/pause", OperatorVerb::Pause),
    ("/admin/v1/tenants/resume", OperatorVerb::Resume),
    ("/admin/v1/tenants/boost", OperatorVerb::Boost),
];

/// Error of a command: status and message.
#[derive(Debug)]
pub(super) struct VerbError(pub(super) StatusCode, pub(super) String);

/// Body of a command.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VerbBody {
    name: String,
    #[serde(rename = "for")]
    lasts: Option<String>,
    reason: Option<String>,
    by: Option<f64>,
}

/// Answer to a command.
#[derive(Debug, Serialize)]
pub(super) struct VerbOutcome {
    verb: &'static str,
    name: String,
    before: String,
    after: String,
    ends_in_seconds: Option<f64>,
    requeued: u64,
    still_running: u64,
    notes: Vec<String>,
}

impl OperatorVerb {
    const fn name(self) -> &'static str {
        match self {
            Self::ClosePool(closed) | Self::CloseReplica(closed) => closed.name(),
            Self::OpenPool | Self::OpenReplica => "uncordon",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Boost => "boost",
        }
    }

    /// Override targets of the command, for a name of the policy.
    fn targets(self, policy: &Policy, name: &str) -> Result<Vec<OverrideTarget>, VerbError> {
        Ok(match self {
            Self::ClosePool(_) | Self::OpenPool => {
                vec![OverrideTarget::Pool(lookup("pool", name, &policy.pools)?)]
            }
            Self::CloseReplica(_) | Self::OpenReplica => {
                vec![OverrideTarget::Replica(lookup("replica", name, &policy.replicas)?)]
            }
            Self::Pause => vec![OverrideTarget::Pause(lookup("tenant", name, &policy.tenants)?)],
            Self::Boost => vec![OverrideTarget::Boost(lookup("tenant", name, &policy.tenants)?)],
            Self::Resume => {
                let tenant = lookup("tenant", name, &policy.tenants)?;
                vec![OverrideTarget::Pause(tenant), OverrideTarget::Boost(tenant)]
            }
        })
    }

    /// Event that applies the command to one target.
    fn event(self, target: OverrideTarget, ask: &CheckedVerb, now: Tick) -> Event {
        let change = match (self, target) {
            (Self::ClosePool(closed), OverrideTarget::Pool(pool)) => OverrideChange::ClosePool(pool, closed),
            (Self::CloseReplica(closed), OverrideTarget::Replica(id)) => {
                OverrideChange::CloseReplica(id, closed)
            }
            (Self::Pause, OverrideTarget::Pause(tenant)) => OverrideChange::Pause(tenant),
            (Self::Boost, OverrideTarget::Boost(tenant)) => OverrideChange::Boost(tenant, ask.boost_factor),
            _ => return Event::OverrideEnded(target),
        };
        let until = ask.duration.map_or(Tick::NEVER, |lasts| now + lasts);
        Event::Overridden(Override { change, until, reason: Arc::clone(&ask.reason) })
    }

    const fn is_undo(self) -> bool {
        matches!(self, Self::OpenPool | Self::OpenReplica | Self::Resume)
    }
}

/// Body of a command, after validation.
struct CheckedVerb {
    duration: Option<Duration>,
    reason: Arc<str>,
    boost_factor: f64,
}

impl CheckedVerb {
    fn new(verb: OperatorVerb, ask: &VerbBody) -> Result<Self, VerbError> {
        let given = [("for", ask.lasts.is_some()), ("by", ask.by.is_some())];
        let unfit = |field: &str| if field == "by" { verb != OperatorVerb::Boost } else { verb.is_undo() };
        if let Some((field, _)) = given.iter().find(|(field, given)| *given && unfit(field)) {
            return Err(bad_request(format!("`{field}` says nothing to {}; leave it out", verb.name())));
        }
        let lasts = match ask.lasts.as_deref() {
            None => Some(DEFAULT_DURATION),
            Some("forever") => None,
            Some(text) => Some(
                text.parse::<Span>()
                    .map_err(|problem| {
                        bad_request(format!("`for`: {}, or forever", problem.replace('\n', "; ")))
                    })?
                    .0,
            ),
        };
        if lasts.is_some_and(|lasts| lasts.is_zero()) {
            return Err(bad_request(
                "`for` is 0, which changes nothing; write it like 30m, or forever".into(),
            ));
        }
        let reason = ask.reason.as_deref().unwrap_or_default().trim();
        if reason.len() > MAX_REASON || reason.contains(char::is_control) {
            return Err(bad_request(format!("`reason` must be one line of at most {MAX_REASON} bytes")));
        }
        let by = ask.by.unwrap_or(1.0);
        if verb == OperatorVerb::Boost && (ask.by.is_none() || !(BOOSTS.0..=BOOSTS.1).contains(&by)) {
            let (least, most) = BOOSTS;
            return Err(bad_request(format!(
                "`by` must be a number from {least} to {most}: what the weight is multiplied by"
            )));
        }
        Ok(Self { duration: lasts, reason: reason.into(), boost_factor: by })
    }
}

/// Refuses a body that a browser may send to another site without asking it.
pub(super) fn require_json(headers: &HeaderMap) -> Result<(), VerbError> {
    let media = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !media.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        let text = "send the header `content-type: application/json` and a JSON body";
        return Err(VerbError(StatusCode::UNSUPPORTED_MEDIA_TYPE, text.into()));
    }
    Ok(())
}

/// Carries out a command and reports the change to telemetry.
pub(super) fn carry_out(
    state: &AdminState,
    verb: OperatorVerb,
    who: &Operator,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<VerbOutcome, VerbError> {
    require_json(headers)?;
    let ask: VerbBody = serde_json::from_slice(body).map_err(|problem| {
        bad_request(format!("the body is not what this asks for: {problem}; send {{\"name\": ..., \"for\": \"30m\", \"reason\": ...}}"))
    })?;
    let settings = state.settings();
    let policy = &settings.policy;
    let targets = verb.targets(policy, &ask.name)?;
    let checked = CheckedVerb::new(verb, &ask)?;
    if verb == OperatorVerb::OpenReplica {
        refuse_if_pool_closed(policy, &state.snapshot(), targets[0])?;
    }
    let mut changed: Option<OverrideResult> = None;
    // Locked until the scheduler has heard of it, too: what another gateway says comes before or after.
    let mut cluster = state.cluster.as_ref().map(|status| status.lock());
    for target in &targets {
        let mut change = None;
        let next = state.dispatcher.override_with(|now| {
            let event = verb.event(*target, &checked, now);
            if let Event::Overridden(set) = &event {
                change = Some(set.change);
            }
            event
        });
        if let Some(status) = &mut cluster {
            let lasts = if change.is_some() { checked.duration } else { Some(Duration::ZERO) };
            let shared = SharedOverride::new(change, &checked.reason, &who.who);
            status.share(target_name(*target, policy), shared, lasts);
        }
        changed = Some(match changed {
            None => next,
            Some(first) => {
                OverrideResult { before: first.before, requeued: first.requeued + next.requeued, ..next }
            }
        });
    }
    drop(cluster);
    let changed = changed.ok_or_else(|| bad_request("nothing to do".into()))?;
    let outcome = outcome(verb, &ask.name, &targets, &checked, policy, &changed);
    OverrideChanged {
        who: &who.who,
        from: who.from,
        verb: verb.name(),
        subject: &ask.name,
        before: &outcome.before,
        after: &outcome.after,
        lasts: checked.duration.filter(|_| !verb.is_undo()),
        reason: &checked.reason,
        requeued: changed.requeued,
    }
    .emit(&state.telemetry);
    Ok(outcome)
}

fn outcome(
    verb: OperatorVerb,
    name: &str,
    targets: &[OverrideTarget],
    checked: &CheckedVerb,
    policy: &Policy,
    changed: &OverrideResult,
) -> VerbOutcome {
    let before = overview::overrides_text(targets, &changed.before);
    let closed = overview::replicas_of(targets, policy, &changed.after);
    let mut notes = match targets[0] {
        OverrideTarget::Pool(pool) => unserved_notes(pool, policy, changed),
        OverrideTarget::Replica(id) => {
            let pool = policy.replicas.get(id).map(|row| row.pool);
            pool.map(|pool| unserved_notes(pool, policy, changed)).unwrap_or_default()
        }
        OverrideTarget::Pause(tenant) | OverrideTarget::Boost(tenant) => {
            tenant_notes(verb, tenant, &changed.after)
        }
    };
    if verb.is_undo() && before == overview::NO_OVERRIDE {
        notes.push("nothing was in force, so nothing has changed".into());
    }
    VerbOutcome {
        verb: verb.name(),
        name: name.to_owned(),
        before,
        after: overview::overrides_text(targets, &changed.after),
        ends_in_seconds: checked.duration.filter(|_| !verb.is_undo()).map(|lasts| lasts.as_secs_f64()),
        requeued: changed.requeued,
        still_running: closed.iter().map(|view| u64::from(view.running)).sum(),
        notes,
    }
}

/// Notes about the pool and the models that no replica serves after the command, as text for the
/// answer.
fn unserved_notes(pool: PoolId, policy: &Policy, changed: &OverrideResult) -> Vec<String> {
    let serves = |pool: &PoolId| overview::count_in_service(*pool, policy, &changed.after) > 0;
    if serves(&pool) {
        return Vec::new();
    }
    let name = policy.pools.name(pool);
    let had = overview::count_in_service(pool, policy, &changed.before) > 0;
    let last = if had { ": this was the last" } else { "" };
    let mut notes = vec![format!("no replica of the pool {name} is in service now{last}")];
    let closed = overview::overrides_text(&[OverrideTarget::Pool(pool)], &changed.after);
    if !had && closed != overview::NO_OVERRIDE {
        notes.push(format!("the whole pool {name} is closed: {closed}"));
    }
    let models = policy.models.iter().filter(|(_, _, row)| row.pools.contains(&pool));
    for (_, model, _) in models.filter(|(_, _, row)| !row.pools.iter().any(serves)) {
        notes.push(format!(
            "nothing serves the model {model} now: its requests wait, and are refused when they cannot wait for long enough"
        ));
    }
    notes
}

fn tenant_notes(verb: OperatorVerb, tenant: TenantId, after: &Snapshot) -> Vec<String> {
    let rows = after.queues.iter().filter(|queue| queue.tenant == tenant);
    let waiting: u64 = rows.map(|queue| queue.waiting).sum();
    if verb != OperatorVerb::Pause {
        return Vec::new();
    }
    vec![format!(
        "{waiting} of its requests wait; those that come now are refused (503) unless they can wait until the pause ends"
    )]
}

/// Refuses to open a replica that is closed only with its whole pool.
fn refuse_if_pool_closed(policy: &Policy, now: &Snapshot, target: OverrideTarget) -> Result<(), VerbError> {
    let OverrideTarget::Replica(replica) = target else { return Ok(()) };
    let Some(pool) = policy.replicas.get(replica).map(|row| row.pool) else { return Ok(()) };
    let has = |target: OverrideTarget| now.overrides.iter().any(|row| row.change.target() == target);
    if has(target) || !has(OverrideTarget::Pool(pool)) {
        return Ok(());
    }
    let name = policy.pools.name(pool);
    let text = format!("its whole pool is closed; open that with `penstock pools uncordon {name}`");
    Err(VerbError(StatusCode::CONFLICT, text))
}

/// Id of a name, or an error that lists similar names.
pub(super) fn lookup<I, T>(what: &str, name: &str, table: &IdTable<I, T>) -> Result<I, VerbError>
where
    I: Copy + From<usize> + Into<usize>,
{
    if let Some(id) = table.id(name) {
        return Ok(id);
    }
    let names = || table.iter().map(|(_, name, _)| name);
    let hint = match nearest(name, names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            let part = names().filter(|other| !name.is_empty() && other.contains(name));
            let mut listed: Vec<&str> = part.take(MAX_LISTED).collect();
            if listed.is_empty() {
                listed = names().take(MAX_LISTED).collect();
            }
            format!("there are: {}", join_names(&listed, table.iter().count()))
        }
    };
    Err(VerbError(StatusCode::NOT_FOUND, format!("there is no {what} `{name}`; {hint}")))
}

pub(super) fn bad_request(text: String) -> VerbError {
    VerbError(StatusCode::BAD_REQUEST, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::fixtures::state;
    use crate::config::watch::channel;
    use crate::telemetry::Telemetry;

    const REPLICA: &str = "a100/http://10.0.0.1:8000";

    /// A dispatcher with two tenants and one replica, behind the verbs.
    struct World {
        state: AdminState,
        telemetry: Telemetry,
    }

    impl World {
        fn new() -> Self {
            let telemetry = Telemetry::for_tests();
            Self { state: state(&telemetry, channel().0), telemetry }
        }

        fn try_as(&self, media: &str, path: &str, body: &str) -> Result<VerbOutcome, VerbError> {
            let (_, verb) = VERBS.into_iter().find(|(known, _)| known.ends_with(path)).unwrap();
            let headers = [(header::CONTENT_TYPE, media.parse().unwrap())].into_iter().collect();
            let who = Operator::local("10.1.2.3:4".parse().unwrap());
            carry_out(&self.state, verb, &who, &headers, body.as_bytes())
        }

        fn done(&self, path: &str, body: &str) -> VerbOutcome {
            self.try_as("application/json; charset=utf-8", path, body).unwrap()
        }

        fn refused(&self, path: &str, body: &str) -> (u16, String) {
            let VerbError(status, text) = self.try_as("application/json", path, body).unwrap_err();
            (status.as_u16(), text)
        }
    }

    #[tokio::test]
    async fn the_last_replica_is_closed_with_a_word_and_an_audit_line() {
        let world = World::new();
        let body = format!(r#"{{"name": "{REPLICA}", "for": "30m", "reason": "new driver"}}"#);
        let done = world.done("replicas/drain", &body);
        assert_eq!((&*done.before, &*done.after, done.ends_in_seconds), ("none", "drain", Some(1800.0)));
        assert!(done.notes[0].contains("a100 is in service now: this was the last"), "{:?}", done.notes);
        assert!(done.notes[1].contains("nothing serves the model llama"), "{:?}", done.notes);
        let line: serde_json::Value = serde_json::from_str(world.telemetry.captured_log().trim()).unwrap();
        for (field, value) in [
            ("message", "override changed"),
            ("who", "local"),
            ("from", "10.1.2.3:4"),
            ("verb", "drain"),
            ("subject", REPLICA),
            ("before", "none"),
            ("after", "drain"),
            ("reason", "new driver"),
        ] {
            assert_eq!(line[field], value);
        }
        let body = format!(r#"{{"name": "{REPLICA}"}}"#);
        let done = world.done("replicas/uncordon", &body);
        assert_eq!((&*done.before, &*done.after), ("drain", "none"));
        assert_eq!(done.notes, [""; 0]);
        assert_eq!(
            world.done("replicas/uncordon", &body).notes,
            ["nothing was in force, so nothing has changed"]
        );
    }

    #[tokio::test]
    async fn a_replica_does_not_open_without_its_pool() {
        let world = World::new();
        world.done("pools/cordon", r#"{"name": "a100", "for": "forever"}"#);
        let (status, text) = world.refused("replicas/uncordon", &format!(r#"{{"name": "{REPLICA}"}}"#));
        assert_eq!(status, 409);
        assert!(text.ends_with("`penstock pools uncordon a100`"), "{text}");
    }

    #[tokio::test]
    async fn resume_ends_both_pause_and_boost() {
        let world = World::new();
        assert_eq!(
            world.done("tenants/boost", r#"{"name": "team-0", "by": 4}"#).ends_in_seconds,
            Some(3600.0)
        );
        world.done("tenants/pause", r#"{"name": "team-0"}"#);
        let done = world.done("tenants/resume", r#"{"name": "team-0"}"#);
        assert_eq!((&*done.before, &*done.after), ("pause, boost x4", "none"));
        assert_eq!(world.state.snapshot().overrides, []);
    }

    #[tokio::test]
    async fn what_cannot_be_done_says_what_can() {
        let world = World::new();
        for (path, body, status, said) in [
            ("pools/cordon", r#"{"name": "A-10O"}"#, 404, "did you mean `a100`?"),
            ("tenants/pause", r#"{"name": "nobody"}"#, 404, "there are: team-0, team-1"),
            ("replicas/drain", r#"{"name": "10.0.0.1"}"#, 404, "there are: a100/http://10.0.0.1:8000"),
            ("tenants/pause", r#"{"name": "team-0", "for": "soon"}"#, 400, "write it like"),
            ("tenants/pause", r#"{"name": "team-0", "for": "0s"}"#, 400, "`for` is 0"),
            ("tenants/pause", r#"{"name": "team-0", "by": 2}"#, 400, "`by` says nothing to pause"),
            ("tenants/resume", r#"{"name": "team-0", "for": "1h"}"#, 400, "`for` says nothing to resume"),
            ("tenants/boost", r#"{"name": "team-0"}"#, 400, "`by` must be a number"),
            ("tenants/boost", r#"{"name": "team-0", "by": 1e9}"#, 400, "from 0.01 to 100"),
            ("tenants/pause", r#"{"name": "team-0", "until": 3}"#, 400, "unknown field `until`"),
            ("tenants/pause", "name=team-0", 400, "the body is not"),
            ("tenants/pause", "{\"name\": \"team-0\", \"reason\": \"\\u001b[2J\"}", 400, "one line"),
        ] {
            let (found, text) = world.refused(path, body);
            assert_eq!(found, status, "{text}");
            assert!(text.contains(said), "{text}");
        }
        let long = format!(r#"{{"name": "team-0", "reason": "{}"}}"#, "x".repeat(201));
        assert!(world.refused("tenants/pause", &long).1.contains("at most 200 bytes"));
        assert_eq!(world.state.snapshot().overrides, []);
    }

    #[tokio::test]
    async fn what_a_page_of_another_site_can_send_is_refused() {
        let world = World::new();
        for media in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
            let VerbError(status, text) =
                world.try_as(media, "tenants/pause", r#"{"name": "team-0"}"#).unwrap_err();
            assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
            assert!(text.contains("content-type: application/json"));
        }
        assert_eq!(world.state.snapshot().overrides, []);
    }
}
