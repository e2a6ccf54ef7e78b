//! Shared overrides: the overrides of operators that all gateways have, as this gateway knows them. The
//! module does no I/O. Of two overrides of one target the later one counts, and one that was ended is
//! kept for a while, so that a gateway that was away learns of it.
//! docs/decisions/080-shared-overrides.md has the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::core::model::overrides::{Closed, OverrideChange, OverrideTarget};
use crate::core::model::policy::Policy;

/// Version of the text of an override. This gateway leaves those of other versions alone.
const VERSION: u32 = 1;
/// Time for which an override is known that is over, in milliseconds; as in the script.
const KEEP_MS: i64 = 86_400_000;
/// Most changes of one call.
const MAX_CHANGES: usize = 64;
/// Longest text of an override that is read.
const MAX_TEXT: usize = 2_048;

/// Override as shared: the change, its reason, the operator and the gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedOverride {
    v: u32,
    /// Name of the change; empty = the override was ended.
    pub kind: String,
    /// Factor of a boost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<f64>,
    /// The operator's reason.
    pub reason: String,
    /// The operator.
    pub who: String,
    /// Id and name of the gateway at which the operator made it.
    pub gateway: String,
    pub gateway_name: String,
}

/// One target's override.
#[derive(Debug, Clone, PartialEq)]
struct OverrideEntry {
    shared: SharedOverride,
    /// How long it lasts, in milliseconds; -1 = until it is ended.
    lasts: i64,
    /// When it was made by the store's clock; 0 = the store does not have it yet.
    at: i64,
    /// When it was made here, or heard.
    made: Instant,
    /// Number of the change that the store has to hear; absent = it has heard it.
    pending: Option<u64>,
    /// Whether the scheduler knows of it.
    is_applied: bool,
    /// Whether the scheduler still has the one before it.
    replaces: bool,
}

/// An override of another gateway that begins or ends here.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteOverride {
    pub target: OverrideTarget,
    /// What begins; absent = the override of the target ends.
    pub change: Option<OverrideChange>,
    /// Time until it ends by itself; absent = it does not.
    pub left: Option<Duration>,
    pub shared: SharedOverride,
}

/// A call of the script.
#[derive(Debug, Clone, Default)]
pub struct OverrideCall {
    pub values: Vec<String>,
    /// The changes in it, with their numbers.
    sent: BTreeMap<String, u64>,
}

/// An override as the store has it.
#[derive(Debug, Clone, Copy)]
struct StoredOverride<'a> {
    target: &'a str,
    /// When it was made, by the store's clock in milliseconds since 1970.
    at: i64,
    /// How long it lasts, in milliseconds; -1 = until it is ended.
    lasts: i64,
    /// The [`SharedOverride`], as JSON.
    text: &'a str,
}

/// All overrides that this gateway knows of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SharedOverrides {
    entries: BTreeMap<String, OverrideEntry>,
    /// Changes ever made here.
    changes: u64,
    /// Revision of the store's state, as of its last answer.
    revision: String,
}

impl SharedOverride {
    /// Override that an operator sets at this gateway; without a `change`, the end of one.
    pub fn new(change: Option<OverrideChange>, reason: &str, who: &str) -> Self {
        let by = match change {
            Some(OverrideChange::Boost(_, factor)) => Some(factor),
            _ => None,
        };
        let kind = change.as_ref().map_or("", OverrideChange::name).to_owned();
        Self { v: VERSION, kind, by, reason: reason.to_owned(), who: who.to_owned(), ..Self::default() }
    }

    /// The change of a target; `None` for one that this version does not know.
    fn change(&self, target: OverrideTarget) -> Option<OverrideChange> {
        let closed = [Closed::Cordoned, Closed::Drained, Closed::SpotNotice];
        let closed = closed.into_iter().find(|closed| closed.name() == self.kind);
        Some(match target {
            OverrideTarget::Pool(pool) => OverrideChange::ClosePool(pool, closed?),
            OverrideTarget::Replica(replica) => OverrideChange::CloseReplica(replica, closed?),
            OverrideTarget::Pause(tenant) if self.kind == "pause" => OverrideChange::Pause(tenant),
            OverrideTarget::Boost(tenant) if self.kind == "boost" => {
                OverrideChange::Boost(tenant, self.by.filter(|by| by.is_finite())?)
            }
            OverrideTarget::Pause(_) | OverrideTarget::Boost(_) => return None,
        })
    }
}

impl OverrideEntry {
    /// Time until it is over, in milliseconds; at most 0 = it is. `None` = it does not end by itself.
    fn left(&self, store_ms: i64) -> Option<i64> {
        if self.shared.kind.is_empty() {
            return Some(i64::min(self.at - store_ms, 0));
        }
        let passed = if self.at > 0 { store_ms - self.at } else { millis(self.made.elapsed()) };
        (self.lasts >= 0).then(|| self.lasts - passed)
    }
}

impl SharedOverrides {
    /// Notes an override that an operator has set or ended at this gateway.
    pub fn set(&mut self, target: String, shared: SharedOverride, lasts: Option<Duration>) {
        self.changes += 1;
        let (lasts, made) = (lasts.map_or(-1, millis), Instant::now());
        let pending = Some(self.changes);
        let (is_applied, replaces) = (true, false);
        let entry = OverrideEntry { shared, lasts, at: 0, made, pending, is_applied, replaces };
        self.entries.insert(target, entry);
    }

    /// The last override of a target, and its age; `None` if it was not shared.
    pub fn last_shared(&self, target: &str) -> Option<(&SharedOverride, Duration)> {
        self.entries.get(target).map(|entry| (&entry.shared, entry.made.elapsed()))
    }

    /// The call that tells the store what it has not heard yet, and asks what has changed.
    pub fn call(&self) -> OverrideCall {
        let mut call = OverrideCall { values: vec![self.revision.clone()], sent: BTreeMap::new() };
        let pending = self.entries.iter().filter_map(|(target, entry)| Some((target, entry, entry.pending?)));
        for (target, entry, number) in pending.take(MAX_CHANGES) {
            let Ok(text) = serde_json::to_string(&entry.shared) else { continue };
            let age = millis(entry.made.elapsed());
            let numbers = [entry.at, age, entry.lasts].map(|number| number.to_string());
            call.values.push(target.clone());
            call.values.extend(numbers);
            call.values.push(text);
            call.sent.insert(target.clone(), number);
        }
        call
    }

    /// Takes the answer over, and returns what begins and ends here by it. `None` for an answer that is
    /// broken.
    pub fn receive_answer(
        &mut self,
        call: &OverrideCall,
        answer: &[String],
        policy: &Policy,
    ) -> Option<Vec<RemoteOverride>> {
        let [kind, revision, store_ms, rest @ ..] = answer else { return None };
        let store_ms: i64 = store_ms.parse().ok()?;
        if kind == "all" {
            let mut named = BTreeSet::new();
            for row in rest.chunks_exact(4) {
                let [target, at, lasts, text] = row else { continue };
                named.insert(target.as_str());
                let (Ok(at), Ok(lasts)) = (at.parse(), lasts.parse()) else { continue };
                self.merge(call, &StoredOverride { target, at, lasts, text }, store_ms);
            }
            self.mark_lost_for_resend(&named, store_ms);
        }
        self.revision.clone_from(revision);
        Some(self.apply(store_ms, policy))
    }

    /// Takes one override of the store over.
    fn merge(&mut self, call: &OverrideCall, stored: &StoredOverride<'_>, store_ms: i64) {
        let StoredOverride { target, at, lasts, text } = *stored;
        let shared = serde_json::from_str(text).ok().filter(|_| text.len() <= MAX_TEXT);
        let Some(shared) = shared.filter(|shared: &SharedOverride| shared.v == VERSION) else { return };
        let mut replaces = false;
        if let Some(entry) = self.entries.get_mut(target) {
            // A change that was made here after the call is still to be sent.
            if entry.pending.is_some_and(|number| call.sent.get(target) != Some(&number)) {
                return;
            }
            if (&entry.shared, entry.lasts) == (&shared, lasts) && (entry.pending.is_some() || entry.at == at)
            {
                (entry.at, entry.pending) = (at, None);
                return;
            }
            let is_in_force = || entry.left(store_ms).is_none_or(|left| left > 0);
            replaces = if entry.is_applied { is_in_force() } else { entry.replaces };
        }
        let age = Duration::from_millis(u64::try_from(store_ms - at).unwrap_or(0));
        let made = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        let (pending, is_applied) = (None, false);
        let entry = OverrideEntry { shared, lasts, at, made, pending, is_applied, replaces };
        self.entries.insert(target.to_owned(), entry);
    }

    /// Marks the overrides that the store has lost, so that the next call sends them again. Forgets
    /// those that ended long ago.
    fn mark_lost_for_resend(&mut self, named: &BTreeSet<&str>, store_ms: i64) {
        self.entries.retain(|target, entry| {
            entry.pending.is_some()
                || named.contains(target.as_str())
                || entry.left(store_ms).is_none_or(|left| left > -KEEP_MS)
        });
        for (target, entry) in &mut self.entries {
            if entry.pending.is_none() && !named.contains(target.as_str()) {
                self.changes += 1;
                entry.pending = Some(self.changes);
            }
        }
    }

    /// Marks as applied, and returns, the overrides that the scheduler does not know yet. Names that the
    /// policy does not have wait for one that has them.
    fn apply(&mut self, store_ms: i64, policy: &Policy) -> Vec<RemoteOverride> {
        let mut heard = Vec::new();
        for (target, entry) in self.entries.iter_mut().filter(|(_, entry)| !entry.is_applied) {
            let left = entry.left(store_ms);
            let is_over = left.is_some_and(|left| left <= 0);
            if is_over && !entry.replaces {
                entry.is_applied = true;
                continue;
            }
            let Some(id) = target_of(target, policy) else { continue };
            entry.is_applied = true;
            let change = entry.shared.change(id).filter(|_| !is_over);
            if change.is_none() && !std::mem::take(&mut entry.replaces) {
                continue;
            }
            let left = left.map(|left| Duration::from_millis(u64::try_from(left).unwrap_or(0)));
            heard.push(RemoteOverride { target: id, change, left, shared: entry.shared.clone() });
        }
        heard
    }
}

/// The name of a target for all gateways.
pub fn target_name(target: OverrideTarget, policy: &Policy) -> String {
    let kind = match target {
        OverrideTarget::Pool(_) => "pool",
        OverrideTarget::Replica(_) => "replica",
        OverrideTarget::Pause(_) => "pause",
        OverrideTarget::Boost(_) => "boost",
    };
    format!("{kind}/{}", target.name(policy))
}

/// The target of a name; `None` while the policy does not have it.
fn target_of(name: &str, policy: &Policy) -> Option<OverrideTarget> {
    let (kind, name) = name.split_once('/')?;
    Some(match kind {
        "pool" => OverrideTarget::Pool(policy.pools.id(name)?),
        "replica" => OverrideTarget::Replica(policy.replicas.id(name)?),
        "pause" => OverrideTarget::Pause(policy.tenants.id(name)?),
        "boost" => OverrideTarget::Boost(policy.tenants.id(name)?),
        _ => return None,
    })
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
