//! Demand book: which demand reports the store has, and which of them this gateway has read. It does no I/O: the
//! caller sends the calls and brings the answers. The reports are the scaler's; here they are bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::core::autoscale::peers::LIVE;

/// Most reports of other gateways that one call asks for.
const MAX_ASKED: usize = 64;
/// Values of each gateway in an answer.
const FIELDS: usize = 6;

/// The scaler's side of the exchange of demand reports.
pub trait SharedReports: fmt::Debug + Send + Sync {
    /// Id of this gateway among the others.
    fn id(&self) -> u64;

    /// The last report of this gateway; `None` before the first one. Its text is empty when its number is
    /// `known`.
    fn own(&self, known: u64) -> Option<OwnReport>;

    /// Takes over an answer of the store: all other gateways that it has, or that share limits.
    fn hear(&self, heard: Vec<HeardGateway>);
}

/// A report of this gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnReport {
    pub number: u64,
    /// Whether it is the last one.
    pub leaves: bool,
    pub text: Vec<u8>,
}

/// Another gateway, as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeardGateway {
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// Age of its last report; `None` = it shares limits, and has not reported any demand.
    pub age: Option<Duration>,
    /// Whether nothing is missed when it is silent: it has left, or another process has its name.
    pub is_gone: bool,
    /// Its last report, unless it was heard before.
    pub report: Option<Vec<u8>>,
}

/// A call of the script.
#[derive(Debug, Clone)]
pub struct DemandCall {
    pub keys: Vec<String>,
    pub values: Vec<Vec<u8>>,
    /// Number of the report that the store is to have.
    number: u64,
    name: String,
}

/// The reports in the store, as this gateway knows them.
#[derive(Debug, Default)]
pub struct DemandBook {
    /// Number of the report of this gateway that the store has; 0 = none.
    stored: u64,
    /// By gateway, the number of its report that was read last; 0 = none.
    read: BTreeMap<String, u64>,
    calls: usize,
}

impl DemandBook {
    /// Number of this gateway's report that the store has.
    #[must_use]
    pub const fn stored(&self) -> u64 {
        self.stored
    }

    /// The call that tells the store what it has not heard yet, and asks for what is new. `id` and `name` are of
    /// this gateway.
    pub fn call(&mut self, prefix: &str, (id, name): (&str, &str), own: Option<OwnReport>) -> DemandCall {
        self.calls = self.calls.wrapping_add(1);
        let key = |part: &str| format!("{prefix}:v1:{{demand}}{part}");
        let own = own.unwrap_or(OwnReport { number: 0, leaves: false, text: Vec::new() });
        let mut keys = vec![key(""), key(&format!(":{id}"))];
        let leaves = if own.leaves { "1" } else { "0" };
        let words = [id, &own.number.to_string(), leaves, name].map(|word| word.as_bytes().to_vec());
        let mut values = words.to_vec();
        values.push(own.text);
        // All have their turn, also where there are more than one call may ask for.
        let start = self.calls % self.read.len().max(1);
        for (id, number) in self.read.iter().cycle().skip(start).take(self.read.len().min(MAX_ASKED)) {
            keys.push(key(&format!(":{id}")));
            values.extend([id.clone().into_bytes(), number.to_string().into_bytes()]);
        }
        DemandCall { keys, values, number: own.number, name: name.to_owned() }
    }

    /// Takes the answer over. `members` are the gateways that share limits. `None` for an answer that is broken.
    pub fn hear<'a>(
        &mut self,
        call: &DemandCall,
        answer: Vec<Vec<u8>>,
        members: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Option<Vec<HeardGateway>> {
        let mut answer = answer.into_iter();
        self.stored = if answer.next()? == b"1" { call.number } else { 0 };
        let mut heard: Vec<HeardGateway> = Vec::new();
        let mut read = BTreeMap::new();
        loop {
            let mut row = answer.by_ref().take(FIELDS);
            let Some(id) = row.next() else { break };
            let id = String::from_utf8(id).ok()?;
            let mut word = || String::from_utf8(row.next()?).ok();
            let (age, number): (u64, u64) = (word()?.parse().ok()?, word()?.parse().ok()?);
            let (is_gone, name) = (word()? == "1", word()?);
            let report = row.next().filter(|text| !text.is_empty());
            let before = self.read.get(&id).copied().unwrap_or(0);
            read.insert(id.clone(), if report.is_some() { number } else { before });
            heard.push(HeardGateway { id, name, age: Some(Duration::from_millis(age)), is_gone, report });
        }
        self.read = read;
        mark_replaced(&mut heard, &call.name);
        for (id, name) in members {
            if heard.iter().all(|other| other.id != id) {
                let (id, name) = (id.to_owned(), name.to_owned());
                heard.push(HeardGateway { id, name, age: None, is_gone: false, report: None });
            }
        }
        Some(heard)
    }
}

/// Marks silent gateways whose name a later process has, this one or another: they were restarted.
fn mark_replaced(heard: &mut [HeardGateway], own_name: &str) {
    let mut newest: BTreeMap<String, Duration> = [(own_name.to_owned(), Duration::ZERO)].into();
    for gateway in heard.iter() {
        let age = gateway.age.unwrap_or_default();
        let least = newest.entry(gateway.name.clone()).or_insert(age);
        *least = age.min(*least);
    }
    for gateway in heard.iter_mut().filter(|gateway| !gateway.name.is_empty()) {
        let is_silent = gateway.age.is_some_and(|age| age >= LIVE);
        gateway.is_gone |= is_silent && newest.get(&gateway.name).copied() < gateway.age;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(number: u64, text: &str) -> Option<OwnReport> {
        Some(OwnReport { number, leaves: false, text: text.as_bytes().to_vec() })
    }

    fn row(id: &str, age: u64, number: u64, name: &str, report: &str) -> Vec<Vec<u8>> {
        let words = [id, &age.to_string(), &number.to_string(), "0", name, report];
        words.map(|word| word.as_bytes().to_vec()).to_vec()
    }

    fn answer(stored: bool, rows: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
        let first = if stored { b"1".to_vec() } else { b"0".to_vec() };
        std::iter::once(first).chain(rows.iter().flatten().cloned()).collect()
    }

    #[test]
    fn a_report_is_asked_for_until_it_was_read() {
        let mut book = DemandBook::default();
        let me = ("aa", "one:1");
        let call = book.call("p", me, own(4, "four"));
        assert_eq!(call.keys, ["p:v1:{demand}", "p:v1:{demand}:aa"]);
        assert_eq!(call.values[1..], ["4", "0", "one:1", "four"].map(|word| word.as_bytes().to_vec()));
        let heard = book.hear(&call, answer(true, &[row("bb", 20, 7, "two:1", "")]), []).unwrap();
        assert_eq!((book.stored(), &heard[0].report), (4, &None));
        let call = book.call("p", me, own(4, ""));
        assert_eq!(call.keys[2], "p:v1:{demand}:bb");
        assert_eq!(call.values[5..], ["bb", "0"].map(|word| word.as_bytes().to_vec()));
        let heard = book.hear(&call, answer(true, &[row("bb", 40, 8, "two:1", "said")]), []).unwrap();
        assert_eq!(
            (heard[0].report.as_deref(), heard[0].age),
            (Some(&b"said"[..]), Some(Duration::from_millis(40)))
        );
        let call = book.call("p", me, own(4, ""));
        assert_eq!(call.values[6], b"8");
        // The store has lost its data: the report is told again.
        book.hear(&call, answer(false, &[]), []).unwrap();
        assert_eq!(book.stored(), 0);
    }

    #[test]
    fn who_shares_limits_and_reports_nothing_is_expected() {
        let mut book = DemandBook::default();
        let call = book.call("p", ("aa", "one:1"), None);
        let rows = answer(false, &[row("bb", 0, 7, "two:1", "")]);
        let heard = book.hear(&call, rows, [("bb", "two:1"), ("cc", "three:1")]).unwrap();
        let ages: Vec<_> = heard.iter().map(|gateway| (&*gateway.id, gateway.age.is_some())).collect();
        assert_eq!(ages, [("bb", true), ("cc", false)]);
    }

    #[test]
    fn a_restarted_gateway_is_not_missed() {
        let mut book = DemandBook::default();
        let call = book.call("p", ("aa", "one:1"), None);
        let rows = [
            row("b1", 9_000, 7, "two:1", ""),
            row("b2", 100, 1, "two:1", ""),
            row("cc", 9_000, 7, "three:1", ""),
            row("a0", 6_000, 7, "one:1", ""),
            row("d1", 3_000, 7, "four:1", ""),
            row("d2", 100, 7, "four:1", ""),
        ];
        let heard = book.hear(&call, answer(false, &rows), []).unwrap();
        let gone: Vec<&str> = heard.iter().filter(|row| row.is_gone).map(|row| &*row.id).collect();
        assert_eq!(gone, ["b1", "a0"], "two that live may have one name");
    }

    #[test]
    fn what_is_broken_is_ignored_and_all_are_asked_in_turn() {
        let mut book = DemandBook::default();
        let call = book.call("p", ("aa", "one:1"), None);
        assert_eq!(book.hear(&call, Vec::new(), []), None);
        assert_eq!(book.hear(&call, answer(true, &[vec![b"bb".to_vec(), b"x".to_vec()]]), []), None);
        let rows: Vec<_> = (0..100).map(|id| row(&format!("{id:02}"), 0, 1, "", "")).collect();
        book.hear(&call, answer(true, &rows), []).unwrap();
        let mut asked = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let call = book.call("p", ("aa", "one:1"), None);
            assert_eq!(call.keys.len(), 2 + MAX_ASKED);
            asked.extend(call.keys);
        }
        assert_eq!(asked.len(), 102);
    }
}
