//! Demand report state: which demand reports the store has, and which of them this gateway has read.
//! The module does no I/O: the caller sends the calls and brings the answers. The reports are the
//! scaler's; here they are bytes.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use crate::cluster::demand::shared_reports::{OwnReport, RemoteGateway, StoredRow};
use crate::cluster::restarts::SharedNames;

/// Most reports of other gateways that one call asks for.
const MAX_ASKED: usize = 64;
/// Values of each gateway in an answer.
const FIELDS: usize = 6;

/// Names that this gateway uses in the store.
#[derive(Debug, Clone, Copy)]
pub struct StoreNames<'a> {
    /// Beginning of all keys.
    pub prefix: &'a str,
    /// Id of this gateway.
    pub id: &'a str,
    /// Its name for people.
    pub name: &'a str,
}

/// A call of the script.
#[derive(Debug, Clone)]
pub struct DemandCall {
    pub keys: Vec<String>,
    pub values: Vec<Vec<u8>>,
    /// Number of the report that the store is to have.
    number: u64,
    name: String,
    /// Gateways whose reports it asks for, in the order in which the store looks at them.
    asked: Vec<String>,
}

/// The reports in the store, as this gateway knows them.
#[derive(Debug, Default)]
pub struct DemandReportState {
    /// Number of the report of this gateway that the store has; 0 = none.
    stored: u64,
    /// By gateway, what the store had at the last call.
    rows: BTreeMap<String, StoredRow>,
    /// The last gateway whose report the store looked at: those after it are asked for next.
    last: String,
    shared_names: SharedNames,
}

impl DemandReportState {
    /// Number of this gateway's report that the store has.
    pub const fn stored(&self) -> u64 {
        self.stored
    }

    /// Notes that the store may have lost its data: the next call has the report again.
    pub const fn send_again(&mut self) {
        self.stored = 0;
    }

    /// The call that tells the store what it has not heard yet, and asks for what is new.
    pub fn call(&self, names: StoreNames<'_>, own: Option<OwnReport>) -> DemandCall {
        let StoreNames { prefix, id, name } = names;
        let key = |part: &str| format!("{prefix}:v1:{{demand}}{part}");
        let own = own.unwrap_or(OwnReport { number: 0, leaves: false, text: Vec::new() });
        let mut keys = vec![key(""), key(&format!(":{id}"))];
        let leaves = if own.leaves { "1" } else { "0" };
        let words = [id, &own.number.to_string(), leaves, name].map(|word| word.as_bytes().to_vec());
        let mut values = words.to_vec();
        values.push(own.text);
        let asked = self.next_to_ask();
        for id in &asked {
            keys.push(key(&format!(":{id}")));
            let read = self.rows.get(id).map_or(0, |row| row.read);
            values.extend([id.clone().into_bytes(), read.to_string().into_bytes()]);
        }
        DemandCall { keys, values, number: own.number, name: name.to_owned(), asked }
    }

    /// Gateways to ask for: in turn, so that all of them are also where one call cannot ask for all.
    fn next_to_ask(&self) -> Vec<String> {
        let after = (Bound::Excluded(&*self.last), Bound::Unbounded);
        let upto = (Bound::Unbounded, Bound::Included(&*self.last));
        let turn = self.rows.range::<str, _>(after).chain(self.rows.range::<str, _>(upto));
        let turn = turn.filter(|(_, row)| row.may_have_news());
        turn.take(MAX_ASKED).map(|(id, _)| id.clone()).collect()
    }

    /// Takes the answer over. `members` are the gateways that share limits. `None` for an answer that is broken; a row
    /// that cannot be read is left out.
    pub fn receive_answer<'a>(
        &mut self,
        call: &DemandCall,
        answer: Vec<Vec<u8>>,
        members: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Option<Vec<RemoteGateway>> {
        let mut answer = answer.into_iter();
        self.stored = if answer.next()? == b"1" { call.number } else { 0 };
        let looked_at: usize = String::from_utf8(answer.next()?).ok()?.parse().ok()?;
        if let Some(last) = looked_at.checked_sub(1).and_then(|at| call.asked.get(at)) {
            self.last.clone_from(last);
        }
        let (mut heard, mut numbers) = (Vec::new(), Vec::new());
        while answer.len() > 0 {
            let row: Vec<Vec<u8>> = answer.by_ref().take(FIELDS).collect();
            let Some((gateway, number)) = read_row(row) else { continue };
            heard.push(gateway);
            numbers.push(number);
        }
        self.shared_names.note(&self.rows, &heard, &numbers, &call.name);
        self.shared_names.mark_replaced(&mut heard, &call.name);
        self.rows = heard.iter().zip(&numbers).map(|(gateway, number)| self.row(gateway, *number)).collect();
        add_members(&mut heard, members);
        Some(heard)
    }

    fn row(&self, heard: &RemoteGateway, number: u64) -> (String, StoredRow) {
        let before = self.rows.get(&heard.id).map_or(0, |row| row.read);
        let read = if heard.report.is_some() { number } else { before };
        let (name, age) = (heard.name.clone(), heard.age.unwrap_or_default());
        (heard.id.clone(), StoredRow { name, age, number, read, is_gone: heard.is_gone })
    }
}

/// A gateway by its row in an answer, and the number of its report; `None` when the row makes no sense.
fn read_row(row: Vec<Vec<u8>>) -> Option<(RemoteGateway, u64)> {
    let mut row = row.into_iter();
    let mut word = || String::from_utf8(row.next()?).ok();
    let (id, age, number) = (word()?, word()?.parse().ok()?, word()?.parse().ok()?);
    let (is_gone, name) = (word()? == "1", word()?);
    let report = row.next().filter(|text| !text.is_empty());
    let age = Some(Duration::from_millis(age));
    Some((RemoteGateway { id, name, age, shares_limits: false, is_gone, report }, number))
}

/// Adds the gateways that share limits, and marks those that are there already.
fn add_members<'a>(heard: &mut Vec<RemoteGateway>, members: impl IntoIterator<Item = (&'a str, &'a str)>) {
    for (id, name) in members {
        if let Some(other) = heard.iter_mut().find(|other| other.id == id) {
            other.shares_limits = true;
            continue;
        }
        let (id, name) = (id.to_owned(), name.to_owned());
        heard.push(RemoteGateway { id, name, age: None, shares_limits: true, is_gone: false, report: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: StoreNames<'_> = StoreNames { prefix: "p", id: "aa", name: "one:1" };

    fn own(number: u64, text: &str) -> Option<OwnReport> {
        Some(OwnReport { number, leaves: false, text: text.as_bytes().to_vec() })
    }

    fn row(id: &str, age: u64, number: u64, name: &str, report: &str) -> Vec<Vec<u8>> {
        let words = [id, &age.to_string(), &number.to_string(), "0", name, report];
        words.map(|word| word.as_bytes().to_vec()).to_vec()
    }

    fn answer(stored: bool, rows: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
        looked_at(stored, 64, rows)
    }

    fn looked_at(stored: bool, looked_at: usize, rows: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
        let first = [u8::from(stored).to_string(), looked_at.to_string()].map(String::into_bytes);
        first.into_iter().chain(rows.iter().flatten().cloned()).collect()
    }

    #[test]
    fn a_report_is_asked_for_until_it_was_read() {
        let mut state = DemandReportState::default();
        let call = state.call(ME, own(4, "four"));
        assert_eq!(call.keys, ["p:v1:{demand}", "p:v1:{demand}:aa"]);
        assert_eq!(call.values[1..], ["4", "0", "one:1", "four"].map(|word| word.as_bytes().to_vec()));
        let heard = state.receive_answer(&call, answer(true, &[row("bb", 20, 7, "two:1", "")]), []).unwrap();
        assert_eq!((state.stored(), &heard[0].report), (4, &None));
        let call = state.call(ME, own(4, ""));
        assert_eq!(call.keys[2], "p:v1:{demand}:bb");
        assert_eq!(call.values[5..], ["bb", "0"].map(|word| word.as_bytes().to_vec()));
        let heard =
            state.receive_answer(&call, answer(true, &[row("bb", 40, 8, "two:1", "said")]), []).unwrap();
        assert_eq!(
            (heard[0].report.as_deref(), heard[0].age),
            (Some(&b"said"[..]), Some(Duration::from_millis(40)))
        );
        let call = state.call(ME, own(4, ""));
        assert_eq!(call.values[6], b"8");
        // The store has lost its data: the report is told again.
        state.receive_answer(&call, answer(false, &[]), []).unwrap();
        assert_eq!(state.stored(), 0);
    }

    #[test]
    fn who_shares_limits_and_reports_nothing_is_expected() {
        let mut state = DemandReportState::default();
        let call = state.call(ME, None);
        let rows = answer(false, &[row("bb", 0, 7, "two:1", "")]);
        let heard = state.receive_answer(&call, rows, [("bb", "two:1"), ("cc", "three:1")]).unwrap();
        let ages = heard.iter().map(|one| (&*one.id, one.age.is_some(), one.shares_limits));
        assert_eq!(ages.collect::<Vec<_>>(), [("bb", true, true), ("cc", false, true)]);
    }

    #[test]
    fn a_row_that_makes_no_sense_is_left_out() {
        let mut state = DemandReportState::default();
        let call = state.call(ME, None);
        assert_eq!(state.receive_answer(&call, Vec::new(), []), None);
        let mut long = row("cc", 20, 1, "three:1", "");
        long[2] = vec![b'9'; 30];
        let name = row("dd", 20, 1, "four:1", "");
        let name = [&name[..4], &[vec![0xff]], &name[5..]].concat();
        let rows = [long, name, row("bb", 20, 7, "two:1", ""), vec![b"ee".to_vec()]];
        let heard = state.receive_answer(&call, answer(true, &rows), []).unwrap();
        assert_eq!(heard.iter().map(|gateway| &*gateway.id).collect::<Vec<_>>(), ["bb"]);
    }

    /// Largest number of calls from one that asks for a gateway to the next, when the store looks at so many of each.
    fn largest_gap(state: &mut DemandReportState, rows: &[Vec<Vec<u8>>], most: usize) -> usize {
        let (mut last, mut largest) = (BTreeMap::<String, usize>::new(), 0);
        for turn in 0..200 {
            let call = state.call(ME, None);
            assert!(call.asked.len() <= MAX_ASKED && call.keys.len() == 2 + call.asked.len());
            for id in call.asked.iter().take(most) {
                largest = largest.max(turn - last.insert(id.clone(), turn).unwrap_or(0));
            }
            let most = most.min(call.asked.len());
            state.receive_answer(&call, looked_at(true, most, rows), []).unwrap();
        }
        last.values().fold(largest, |largest, turn| largest.max(200 - turn))
    }

    #[test]
    fn all_are_asked_for_in_turn() {
        for (count, most, gap) in
            [(10, 64, 1), (64, 64, 1), (128, 64, 2), (250, 64, 4), (10, 3, 4), (100, 1, 100)]
        {
            let mut state = DemandReportState::default();
            let rows: Vec<_> = (0..count).map(|id| row(&format!("{id:03}"), 0, 1, "", "")).collect();
            let call = state.call(ME, None);
            state.receive_answer(&call, looked_at(true, 0, &rows), []).unwrap();
            assert_eq!(largest_gap(&mut state, &rows, most), gap, "{count} {most}");
        }
    }

    #[test]
    fn who_has_no_news_is_not_asked_for() {
        let mut state = DemandReportState::default();
        let mut gone = row("dd", 0, 1, "four:1", "");
        gone[3] = b"1".to_vec();
        let rows = [row("bb", 20_000, 7, "two:1", ""), row("cc", 0, 1, "three:1", ""), gone];
        let call = state.call(ME, None);
        state.receive_answer(&call, answer(true, &rows), []).unwrap();
        let call = state.call(ME, None);
        assert_eq!(call.asked, ["bb", "cc"], "one is silent, and has not been read");
        let rows = [row("bb", 20_200, 7, "two:1", "said"), row("cc", 0, 1, "three:1", "said")];
        state.receive_answer(&call, answer(true, &rows), []).unwrap();
        assert_eq!(state.call(ME, None).asked, ["cc"]);
    }
}
