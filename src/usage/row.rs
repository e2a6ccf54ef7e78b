//! Usage row: one line of the journal and of the databases.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize};

/// Codes of other versions of the program that are remembered.
const MAX_CODES: usize = 256;
/// Bytes of the longest such code.
const MAX_CODE: usize = 32;

/// What a row is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowKind {
    /// The end of a request, with its last stay at a replica; all zero where it
    /// had none. There is one for each request.
    Request,
    /// An earlier stay of a request: it failed, or was taken back.
    Try,
    /// Time in which replicas of a pool ran nothing.
    Idle,
}

impl RowKind {
    /// Its name in files and databases.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Try => "try",
            Self::Idle => "idle",
        }
    }
}

/// A stable code, such as `client_gone`.
pub type Code = &'static str;

/// One stay of a request at a replica, or an idle stretch of a pool. Each
/// amount stands in one row only, so the sum over any set of rows is right.
///
/// Names and not ids: ids change with reloads and restarts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UsageRow {
    /// When it ended, in milliseconds since 1970.
    pub time_ms: i64,
    /// What it is of.
    pub kind: RowKind,
    /// The request's id, the same in all of its rows; empty for idle time.
    #[serde(default)]
    pub request_id: String,
    /// Who it was for; empty where nobody is known.
    #[serde(default, with = "name")]
    pub tenant: Arc<str>,
    /// The id of the key that it came with, never its secret; may be empty.
    #[serde(default, with = "name")]
    pub key: Arc<str>,
    /// The class that it was served in.
    #[serde(default, with = "name")]
    pub class: Arc<str>,
    /// The model that served it.
    #[serde(default, with = "name")]
    pub model: Arc<str>,
    /// Where it ran; empty where it never did.
    #[serde(default, with = "name")]
    pub pool: Arc<str>,
    /// On which of the pool's replicas.
    #[serde(default, with = "name")]
    pub replica: Arc<str>,
    /// The API of the call.
    #[serde(default, deserialize_with = "code")]
    pub api: Code,
    /// The status that the client got; 0 in rows of other kinds.
    #[serde(default)]
    pub status: u16,
    /// How it ended, as a stable code.
    #[serde(default, deserialize_with = "code")]
    pub outcome: Code,
    /// How the tokens are known: `exact`, `partial`, `unknown` or `none`.
    #[serde(default, deserialize_with = "code")]
    pub usage: Code,
    /// Prompt tokens, cached ones included.
    #[serde(default)]
    pub input_tokens: u64,
    /// Prompt tokens that came from a cache.
    #[serde(default)]
    pub cached_tokens: u64,
    /// Generated tokens.
    #[serde(default)]
    pub output_tokens: u64,
    /// Tokens that nobody had anything of.
    #[serde(default)]
    pub wasted_tokens: u64,
    /// Why: `client_gone`, `retry`, `recall` and so on; empty where none are.
    #[serde(default, deserialize_with = "code")]
    pub wasted_by: Code,
    /// Time in the queue, in microseconds.
    #[serde(default)]
    pub queue_us: u64,
    /// Its part of the replica's time by step share, in nanoseconds.
    #[serde(default)]
    pub gpu_ns: u64,
    /// What the replica costs in an hour, as configured.
    #[serde(default)]
    pub price_per_hour: f64,
    /// What that comes to, in billionths of the currency.
    #[serde(default)]
    pub money_nano: u64,
    /// How often the request was sent to a replica.
    #[serde(default)]
    pub attempts: u32,
}

/// Names are shared by many rows.
mod name {
    use std::sync::Arc;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(name: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(deserializer).map(Into::into)
    }
}

/// A code as the program writes it. Codes of other versions are kept, too, as
/// long as they are few and short: a broken file cannot fill the memory.
fn code<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Code, D::Error> {
    static SEEN: Mutex<BTreeSet<Code>> = Mutex::new(BTreeSet::new());
    let text = String::deserialize(deserializer)?;
    Ok(if text.is_empty() { "" } else { kept(&mut SEEN.lock(), text) })
}

fn kept(seen: &mut BTreeSet<Code>, text: String) -> Code {
    if let Some(known) = seen.get(&*text) {
        return known;
    }
    if seen.len() >= MAX_CODES || text.len() > MAX_CODE {
        return "other";
    }
    let code: Code = text.leak();
    seen.insert(code);
    code
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A request of `tenant` that ended at `time_ms`.
    pub(in crate::usage) fn row(time_ms: i64, tenant: &str) -> UsageRow {
        UsageRow {
            time_ms,
            kind: RowKind::Request,
            request_id: format!("req-{time_ms}"),
            tenant: tenant.into(),
            key: "k7m2qa4x".into(),
            class: "standard".into(),
            model: "llama".into(),
            pool: "h100".into(),
            replica: "h100/http://a:1".into(),
            api: "chat",
            status: 200,
            outcome: "success",
            usage: "exact",
            input_tokens: 100,
            cached_tokens: 60,
            output_tokens: 20,
            wasted_tokens: 0,
            wasted_by: "",
            queue_us: 1_500,
            gpu_ns: 2_000_000_000,
            price_per_hour: 3.6,
            money_nano: 2_000_000,
            attempts: 1,
        }
    }

    #[test]
    fn a_row_is_one_line_and_comes_back_as_it_was() {
        let row = UsageRow { request_id: "a\nb \"c\"".into(), ..row(5, "red") };
        let line = serde_json::to_string(&row).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<UsageRow>(&line).unwrap(), row);
    }

    #[test]
    fn fields_may_be_missing_or_new() {
        let row: UsageRow =
            serde_json::from_str(r#"{"time_ms":7,"kind":"idle","pool":"p","gpu_ns":9,"x":1}"#).unwrap();
        assert_eq!((row.kind, &*row.pool, row.gpu_ns, row.outcome), (RowKind::Idle, "p", 9, ""));
    }

    #[test]
    fn codes_are_kept_only_while_they_are_few() {
        let mut seen = BTreeSet::new();
        let mut read = |code: &str| kept(&mut seen, code.to_owned());
        assert_eq!(read("success"), "success");
        assert_eq!(read(&"x".repeat(33)), "other");
        for number in 0..2 * MAX_CODES {
            read(&format!("code-{number}"));
        }
        assert_eq!((read("code-9999"), read("success")), ("other", "success"));
    }
}
