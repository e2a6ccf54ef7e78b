//! Service batches: the work of tenants and classes that this gateway tells the others, and what it has
//! read of theirs. The module does no I/O: the caller sends the calls and brings the answers.
//!
//! A batch has a number, and each is taken over once. Work that was told before the first answer on a
//! connection is not taken over: a gateway that joins, or comes back to the store, begins there. What tenants
//! hold is taken over whenever it was told.
//! docs/decisions/088-fairness-over-gateways.md has the rules.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::cluster::demand::reports::StoreNames;
use crate::core::model::policy::Policy;
use crate::core::queue::fairness::service::{HeldSequences, ServiceAccount, ServiceReport};

/// Version of the text of a batch. Later ones may have further fields.
const VERSION: u32 = 1;
/// Most accounts of a batch that are read, and most tenants whose held sequences are told.
const MAX_ROWS: usize = 512;
/// Longest text of a batch that is read.
const MAX_TEXT: usize = 512 * 1024;
/// Most gateways whose batches one call asks for.
const MAX_ASKED: usize = 64;
/// Calls after which it is told again what tenants hold: 10 s, while the store keeps a batch for 30 s.
const HELD_TURNS: u32 = 50;

/// Work of a tenant in a class, in one batch. The pool stands for its pool group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct TenantWork {
    pool: String,
    class: String,
    tenant: String,
    tokens: i64,
}

/// Work of a class at a pool, in one batch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct ClassWork {
    pool: String,
    class: String,
    tokens: i64,
}

/// Sequences that a tenant holds, in one batch. The pool stands for its pool group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct HeldWork {
    pool: String,
    tenant: String,
    seqs: u32,
}

/// Work that a gateway has dispatched since its batch before, and what its tenants hold, by names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct ServiceBatch {
    v: u32,
    tenants: Vec<TenantWork>,
    classes: Vec<ClassWork>,
    /// What all tenants hold; absent = as the batch before said.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Vec<HeldWork>>,
}

impl ServiceBatch {
    fn new(reports: &[ServiceReport], held: Option<&[HeldSequences]>, policy: &Policy) -> Self {
        let row = |held: &HeldSequences| HeldWork {
            pool: policy.pools.name(held.pool).to_owned(),
            tenant: policy.tenants.name(held.tenant).to_owned(),
            seqs: held.seqs,
        };
        let held = held.map(|held| held.iter().take(MAX_ROWS).map(row).collect());
        let mut batch = Self { v: VERSION, held, ..Self::default() };
        for ServiceReport { account, tokens } in reports {
            let tokens = *tokens;
            match *account {
                ServiceAccount::Tenant { pool, class, tenant } => batch.tenants.push(TenantWork {
                    pool: policy.pools.name(pool).to_owned(),
                    class: policy.classes.name(class).to_owned(),
                    tenant: policy.tenants.name(tenant).to_owned(),
                    tokens,
                }),
                ServiceAccount::Class { pool, class } => batch.classes.push(ClassWork {
                    pool: policy.pools.name(pool).to_owned(),
                    class: policy.classes.name(class).to_owned(),
                    tokens,
                }),
            }
        }
        batch
    }

    /// The reports by this gateway's ids. Names that it does not have are left out.
    fn reports(&self, policy: &Policy) -> Vec<ServiceReport> {
        let place = |pool: &str, class: &str| Some((policy.pools.id(pool)?, policy.classes.id(class)?));
        let tenants = self.tenants.iter().filter_map(|row| {
            let (pool, class) = place(&row.pool, &row.class)?;
            let tenant = policy.tenants.id(&row.tenant)?;
            let account = ServiceAccount::Tenant { pool, class, tenant };
            Some(ServiceReport { account, tokens: row.tokens })
        });
        let classes = self.classes.iter().filter_map(|row| {
            let (pool, class) = place(&row.pool, &row.class)?;
            Some(ServiceReport { account: ServiceAccount::Class { pool, class }, tokens: row.tokens })
        });
        tenants.chain(classes).take(2 * MAX_ROWS).collect()
    }

    /// What tenants hold, by this gateway's ids; `None` when the batch does not say it.
    fn held_sequences(&self, policy: &Policy) -> Option<Vec<HeldSequences>> {
        let held = self.held.as_ref()?.iter().take(MAX_ROWS).filter_map(|row| {
            let (pool, tenant) = (policy.pools.id(&row.pool)?, policy.tenants.id(&row.tenant)?);
            Some(HeldSequences { pool, tenant, seqs: row.seqs })
        });
        Some(held.collect())
    }
}

/// A call of the script.
#[derive(Debug, Clone)]
pub struct ServiceCall {
    pub keys: Vec<String>,
    pub values: Vec<String>,
    /// Gateways whose batches it asks for, in the order in which the store looks at them.
    asked: Vec<String>,
}

/// What this gateway knows of another one.
#[derive(Debug, Clone, Default)]
struct RemoteService {
    /// Number of its last batch that was read.
    read: u64,
    held: Vec<HeldSequences>,
}

/// What tenants hold here, as it was told last.
#[derive(Debug, Clone, Default)]
struct TellState {
    held: Vec<HeldSequences>,
    /// Calls since then.
    turns: u32,
}

/// A batch as an answer has it.
#[derive(Debug)]
struct StoredBatch {
    gateway: String,
    number: u64,
    /// When it was told, by the store's clock in milliseconds.
    at: u64,
    text: Vec<u8>,
}

/// The batches of this gateway and of the others.
#[derive(Debug, Default)]
pub struct ServiceBatches {
    /// Number of the last batch of this gateway. Numbers only grow.
    number: u64,
    /// The store's time at the first answer on this connection, in milliseconds; absent = there was none.
    begun: Option<u64>,
    others: BTreeMap<String, RemoteService>,
    told: TellState,
    /// The last gateway whose batches the store looked at: those after it are asked for next.
    last: String,
}

impl ServiceBatches {
    /// Whether the store has answered on this connection, so that batches are told and taken over.
    pub const fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Begins anew with the next answer. What was told until then is not taken over.
    pub fn start_over(&mut self) {
        self.begun = None;
        self.others.clear();
        self.told = TellState::default();
    }

    /// What tenants hold at the gateways that are there.
    pub fn held_elsewhere(&self, members: &[String]) -> Vec<HeldSequences> {
        let others = self.others.iter().filter(|(id, _)| members.contains(id));
        others.flat_map(|(_, other)| other.held.iter().copied()).collect()
    }

    /// The call that tells the store these reports and what tenants hold, if that is news, and asks for what
    /// is new. Reports are in one call only.
    pub fn call(
        &mut self,
        names: StoreNames<'_>,
        reports: &[ServiceReport],
        held: &[HeldSequences],
        policy: &Policy,
    ) -> ServiceCall {
        let StoreNames { prefix, id, .. } = names;
        let key = |part: &str| format!("{prefix}:v1:{{service}}{part}");
        let is_held_news = self.is_held_news(held);
        let mut text = String::new();
        if !reports.is_empty() || is_held_news {
            self.number += 1;
            let batch = ServiceBatch::new(reports, is_held_news.then_some(held), policy);
            text = serde_json::to_string(&batch).unwrap_or_default();
        }
        self.note_told(held, is_held_news);
        let asked = self.next_to_ask();
        let mut keys = vec![key(""), key(&format!(":{id}"))];
        let mut values = vec![id.to_owned(), self.number.to_string(), text];
        for id in &asked {
            keys.push(key(&format!(":{id}")));
            let read = self.others.get(id).map_or(0, |other| other.read);
            values.extend([id.clone(), read.to_string()]);
        }
        ServiceCall { keys, values, asked }
    }

    /// Whether what tenants hold has changed since it was told, or has to be told again for those that join.
    fn is_held_news(&self, held: &[HeldSequences]) -> bool {
        let TellState { held: told, turns } = &self.told;
        self.has_begun() && (told != held || (*turns >= HELD_TURNS && !held.is_empty()))
    }

    fn note_told(&mut self, held: &[HeldSequences], is_news: bool) {
        if is_news {
            self.told = TellState { held: held.to_vec(), turns: 0 };
        } else {
            self.told.turns = self.told.turns.saturating_add(1);
        }
    }

    /// Gateways to ask for: in turn, so that all of them are also where one call cannot ask for all.
    fn next_to_ask(&self) -> Vec<String> {
        let after = (Bound::Excluded(&*self.last), Bound::Unbounded);
        let upto = (Bound::Unbounded, Bound::Included(&*self.last));
        let turn = self.others.range::<str, _>(after).chain(self.others.range::<str, _>(upto));
        turn.take(MAX_ASKED).map(|(id, _)| id.clone()).collect()
    }

    /// Takes the answer over. Returns the work of the other gateways that is new; `None` for an answer
    /// that is broken.
    pub fn receive_answer(
        &mut self,
        call: &ServiceCall,
        answer: Vec<Vec<u8>>,
        policy: &Policy,
    ) -> Option<Vec<ServiceReport>> {
        let mut answer = answer.into_iter();
        let mut next = || number(&answer.next()?);
        let (now, looked_at, gateways) = (next()?, next()?, next()?);
        if let Some(last) = usize::try_from(looked_at).ok()?.checked_sub(1).and_then(|at| call.asked.get(at))
        {
            self.last.clone_from(last);
        }
        let mut others = BTreeMap::new();
        for _ in 0..gateways {
            let (id, _stored) = (String::from_utf8(answer.next()?).ok()?, answer.next()?);
            let known = self.others.get(&id).cloned().unwrap_or_default();
            others.insert(id, known);
        }
        self.others = others;
        let begun = *self.begun.get_or_insert(now);
        let mut reports = Vec::new();
        while answer.len() > 0 {
            let batch = StoredBatch {
                gateway: String::from_utf8(answer.next()?).ok()?,
                number: number(&answer.next()?)?,
                at: number(&answer.next()?)?,
                text: answer.next()?,
            };
            let other = self.others.get_mut(&batch.gateway).filter(|other| batch.number > other.read);
            let Some(other) = other else { continue };
            other.read = batch.number;
            let text = Some(&batch.text).filter(|text| text.len() <= MAX_TEXT);
            let told: Option<ServiceBatch> = text.and_then(|text| serde_json::from_slice(text).ok());
            let Some(told) = told else { continue };
            if let Some(held) = told.held_sequences(policy) {
                other.held = held;
            }
            if batch.at > begun {
                reports.extend(told.reports(policy));
            }
        }
        Some(reports)
    }
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::load::load_str_with;
    use crate::config::secret::MachineSecrets;

    const TEXT: &str = "{version: 1, auth: {mode: off, tenant: a}, tenants: {a: {weight: 4}, b: {weight: 1}}, pools: {p: {engine: vllm, models: [m], replicas: ['http://127.0.0.1:9']}}}";

    const AA: StoreNames<'_> = StoreNames { prefix: "p", id: "aa", name: "one:1" };
    const BB: StoreNames<'_> = StoreNames { prefix: "p", id: "bb", name: "two:1" };

    fn policy() -> std::sync::Arc<Policy> {
        let outcome = load_str_with(TEXT, "test", Path::new("."), None, &MachineSecrets);
        outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings.policy
    }

    fn reports(policy: &Policy) -> Vec<ServiceReport> {
        let pool = policy.pools.id("p").unwrap();
        let class = policy.classes.id("interactive").unwrap();
        let tenant = policy.tenants.id("b").unwrap();
        let of_tenant =
            ServiceReport { account: ServiceAccount::Tenant { pool, class, tenant }, tokens: -40 };
        vec![of_tenant, ServiceReport { account: ServiceAccount::Class { pool, class }, tokens: 70 }]
    }

    /// An answer at this time: the other gateways with their numbers, then batches.
    fn answer(now: u64, others: &[&str], batches: &[[&str; 4]]) -> Vec<Vec<u8>> {
        let head = [now.to_string(), others.len().to_string(), others.len().to_string()];
        let others = others.iter().flat_map(|id| [(*id).to_owned(), "1".to_owned()]);
        let batches = batches.iter().flatten().map(|word| (*word).to_owned());
        head.into_iter().chain(others).chain(batches).map(String::into_bytes).collect()
    }

    #[test]
    fn each_batch_is_taken_over_once_and_those_of_before_are_not() {
        let policy = policy();
        let (mut writer, mut reader) = (ServiceBatches::default(), ServiceBatches::default());
        let text = writer.call(AA, &reports(&policy), &[], &policy).values[2].clone();
        assert_eq!(writer.call(AA, &[], &[], &policy).values[1..], ["1", ""]);
        let call = reader.call(BB, &[], &[], &policy);
        assert_eq!(call.keys, ["p:v1:{service}", "p:v1:{service}:bb"]);
        assert!(!reader.has_begun());
        assert_eq!(reader.receive_answer(&call, answer(1_000, &["aa"], &[]), &policy), Some(Vec::new()));
        assert!(reader.has_begun());
        let call = reader.call(BB, &[], &[], &policy);
        assert_eq!(
            (&*call.keys[2], &call.values[3..]),
            ("p:v1:{service}:aa", &["aa".to_owned(), "0".to_owned()][..])
        );
        let batches = [["aa", "1", "1000", &text], ["aa", "2", "1001", &text]];
        let heard = reader.receive_answer(&call, answer(1_200, &["aa"], &batches), &policy);
        assert_eq!(heard, Some(reports(&policy)), "one was told before");
        let again = reader.receive_answer(&call, answer(1_200, &["aa"], &batches), &policy);
        assert_eq!(again, Some(Vec::new()));
        assert_eq!(reader.call(BB, &[], &[], &policy).values[4], "2");
        reader.start_over();
        let call = reader.call(BB, &[], &[], &policy);
        assert_eq!(call.keys.len(), 2);
        let late = [["aa", "3", "1500", &text]];
        assert_eq!(reader.receive_answer(&call, answer(1_600, &["aa"], &late), &policy), Some(Vec::new()));
    }

    #[test]
    fn unknown_names_fields_and_broken_batches_are_left_out() {
        let policy = policy();
        let mut reader = ServiceBatches::default();
        let call = reader.call(BB, &[], &[], &policy);
        reader.receive_answer(&call, answer(1, &["aa"], &[]), &policy);
        let rows = r#"{"v": 2, "more": [1], "classes": [{"pool": "p", "class": "interactive", "tokens": 70, "x": {}}],
            "tenants": [{"pool": "p", "class": "interactive", "tenant": "c", "tokens": 1},
                        {"pool": "q", "class": "interactive", "tenant": "b", "tokens": 1},
                        {"pool": "p", "class": "interactive", "tenant": "b", "tokens": -40}]}"#;
        let batches = [["aa", "1", "9", "no JSON"], ["aa", "2", "9", rows], ["zz", "1", "9", rows]];
        let heard = reader.receive_answer(&call, answer(9, &["aa"], &batches), &policy).unwrap();
        assert_eq!(heard, reports(&policy));
        assert_eq!(reader.receive_answer(&call, Vec::new(), &policy), None);
        let cut = answer(9, &["aa"], &[])[..4].to_vec();
        assert_eq!(reader.receive_answer(&call, cut, &policy), None);
    }

    #[test]
    fn all_gateways_are_asked_for_in_turn() {
        let policy = policy();
        let mut reader = ServiceBatches::default();
        let ids: Vec<String> = (0..150).map(|id| format!("{id:03}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let mut asked = std::collections::BTreeSet::new();
        for turn in 0..4 {
            let call = reader.call(BB, &[], &[], &policy);
            assert_eq!(call.asked.len(), if turn == 0 { 0 } else { MAX_ASKED });
            asked.extend(call.asked.iter().cloned());
            let mut answer = answer(turn, &ids, &[]);
            answer[1] = call.asked.len().to_string().into_bytes();
            reader.receive_answer(&call, answer, &policy).unwrap();
        }
        assert_eq!(asked.len(), 150);
    }

    #[test]
    fn what_tenants_hold_is_told_when_it_changes_and_read_whenever_it_was_told() {
        let policy = policy();
        let (pool, tenant) = (policy.pools.id("p").unwrap(), policy.tenants.id("b").unwrap());
        let held = |seqs| [HeldSequences { pool, tenant, seqs }];
        let mut writer = ServiceBatches::default();
        assert_eq!(writer.call(AA, &[], &held(3), &policy).values[2], "", "the store may not be there");
        let call = writer.call(AA, &[], &[], &policy);
        writer.receive_answer(&call, answer(1, &[], &[]), &policy);
        let text = writer.call(AA, &[], &held(3), &policy).values[2].clone();
        assert!(text.contains("\"seqs\":3"), "{text}");
        let mut turns = 1;
        while writer.call(AA, &[], &held(3), &policy).values[2].is_empty() {
            turns += 1;
        }
        assert_eq!(turns, HELD_TURNS + 1);
        let none = writer.call(AA, &[], &[], &policy).values[2].clone();
        assert!((0..200).all(|_| writer.call(AA, &[], &[], &policy).values[2].is_empty()));

        let mut reader = ServiceBatches::default();
        let call = reader.call(BB, &[], &[], &policy);
        reader.receive_answer(&call, answer(1_000, &["aa"], &[]), &policy);
        let members = ["aa".to_owned(), "bb".to_owned()];
        reader.receive_answer(&call, answer(1_100, &["aa"], &[["aa", "1", "900", &text]]), &policy);
        assert_eq!(reader.held_elsewhere(&members), held(3), "it was told before, and still holds");
        assert_eq!(reader.held_elsewhere(&members[1..]), [], "it is gone");
        reader.receive_answer(&call, answer(1_200, &["aa"], &[["aa", "2", "1150", &none]]), &policy);
        assert_eq!(reader.held_elsewhere(&members), []);
    }
}
