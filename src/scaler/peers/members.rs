//! Store members: the gateways that the store of `cluster` has named, and whether it has answered for long enough to
//! have named all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::RemoteGateway;
use crate::core::autoscale::peers::{MAX_PEERS, MISSED, SILENT};
use crate::telemetry::Telemetry;
use crate::telemetry::event::{PeerHeard, PeerLost};

/// Time for which the store must have answered before all gateways count as known. The store may just have lost its
/// data: by then all of them have connected and reported again ([`crate::cluster::ALL_REPORT`]).
const SETTLE: Duration = Duration::from_secs(4);
/// Longest time between two answers that does not start [`SETTLE`] anew.
const MAX_GAP: Duration = Duration::from_secs(1);
/// Most gateways that are remembered.
const MAX_KNOWN: usize = 256;

/// Last state of a gateway in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoggedState {
    Nothing,
    Heard,
    Lost,
}

#[derive(Debug, Clone)]
struct StoreMember {
    name: String,
    /// Time of its last report; before the first one, the time at which it was seen first.
    at: Instant,
    has_reported: bool,
    /// Time at which it last shared limits.
    shared_limits_at: Option<Instant>,
    logged: LoggedState,
}

impl StoreMember {
    fn is_silent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) > SILENT
    }

    /// Whether it should be there: it shares limits, or its last report is not too old.
    fn is_expected(&self, now: Instant) -> bool {
        let within = |at: Instant, limit| now.saturating_duration_since(at) <= limit;
        self.shared_limits_at.is_some_and(|at| within(at, SILENT))
            || (self.has_reported && within(self.at, MISSED))
    }
}

/// Answers of the store that have come without a gap.
#[derive(Debug, Clone, Copy)]
struct StoreAnswers {
    first: Instant,
    last: Instant,
}

/// Other gateways, as the store has named them.
#[derive(Debug, Default)]
pub(super) struct StoreMembers {
    answers: Option<StoreAnswers>,
    known: BTreeMap<String, StoreMember>,
}

impl StoreMembers {
    /// Whether the store answers, and has for long enough that all gateways have reported.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        self.answers.is_some_and(|answers| {
            now.saturating_duration_since(answers.last) <= SILENT && answers.last - answers.first >= SETTLE
        })
    }

    /// Takes an answer over. Returns the gateways that should be there. One that the store has lost counts for as
    /// long as a silent one; one that shares limits counts in any case.
    pub(super) fn take_answer(&mut self, heard: &[RemoteGateway], now: Instant) -> BTreeSet<String> {
        self.note_answer(now);
        for gateway in heard {
            if gateway.is_gone {
                self.known.remove(&gateway.id);
                continue;
            }
            let known = self.known.entry(gateway.id.clone()).or_insert_with(|| StoreMember {
                name: gateway.name.clone(),
                at: now,
                has_reported: false,
                shared_limits_at: None,
                logged: LoggedState::Nothing,
            });
            if gateway.shares_limits {
                known.shared_limits_at = Some(now);
            }
            if let Some(age) = gateway.age {
                (known.at, known.has_reported) = (now.checked_sub(age).unwrap_or(now), true);
            }
        }
        self.known.retain(|_, gateway| gateway.is_expected(now));
        // Those that are heard come first, in an order that stays the same from answer to answer.
        let mut all: Vec<(bool, String)> =
            self.known.iter().map(|(id, known)| (known.is_silent(now), id.clone())).collect();
        all.sort_unstable();
        all.truncate(MAX_KNOWN);
        let kept: BTreeSet<&str> = all.iter().map(|(_, id)| &**id).collect();
        self.known.retain(|id, _| kept.contains(&**id));
        all.into_iter().take(MAX_PEERS).map(|(_, id)| id).collect()
    }

    fn note_answer(&mut self, now: Instant) {
        let longest = if self.is_settled(now) { SILENT } else { MAX_GAP };
        let before = self.answers.filter(|answers| now.saturating_duration_since(answers.last) <= longest);
        self.answers = Some(StoreAnswers { first: before.map_or(now, |answers| answers.first), last: now });
    }

    /// Writes to the log who is heard now and who is lost.
    pub(super) fn log_changes(&mut self, now: Instant, telemetry: &Telemetry) {
        for (id, gateway) in &mut self.known {
            let state = match (gateway.is_silent(now), gateway.has_reported) {
                (true, _) => LoggedState::Lost,
                (false, true) => LoggedState::Heard,
                (false, false) => LoggedState::Nothing,
            };
            let place = &*gateway.name;
            match (std::mem::replace(&mut gateway.logged, state), state) {
                (LoggedState::Nothing | LoggedState::Lost, LoggedState::Heard) => {
                    PeerHeard { place, id }.emit(telemetry);
                }
                (LoggedState::Nothing | LoggedState::Heard, LoggedState::Lost) => {
                    let problem = match gateway.has_reported {
                        true => "its last report in the store is older than 10 s",
                        false => "it shares limits, and has never reported its demand",
                    };
                    PeerLost { place, problem, first: true }.emit(telemetry);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ALL_REPORT, DEMAND};

    fn gateway(id: &str, age: Option<u64>) -> RemoteGateway {
        let (shares_limits, age) = (age.is_none(), age.map(Duration::from_secs));
        let (id, name) = (id.to_owned(), format!("{id}:1"));
        RemoteGateway { id, name, age, shares_limits, is_gone: false, report: None }
    }

    fn ids(places: &BTreeSet<String>) -> Vec<&str> {
        places.iter().map(String::as_str).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_store_settles_again_after_it_was_away() {
        let mut members = StoreMembers::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!members.is_settled(start));
        (0..4).for_each(|second| _ = members.take_answer(&[], at(second)));
        assert!(!members.is_settled(at(3)));
        members.take_answer(&[], at(4));
        assert!(members.is_settled(at(4)) && members.is_settled(at(14)) && !members.is_settled(at(15)));
        // Two answers with a gap between them say nothing of the time between.
        members.take_answer(&[], at(15));
        members.take_answer(&[], at(24));
        assert!(!members.is_settled(at(24)));
        (25..29).for_each(|second| _ = members.take_answer(&[], at(second)));
        assert!(members.is_settled(at(28)));
        // Once it has settled, a short pause changes nothing.
        members.take_answer(&[], at(37));
        assert!(members.is_settled(at(37)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_that_the_store_forgets_is_missed_for_five_minutes() {
        tokio::time::advance(Duration::from_secs(1000)).await;
        let mut members = StoreMembers::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = [gateway("a", Some(0)), gateway("b", None), gateway("c", Some(301))];
        assert_eq!(ids(&members.take_answer(&first, start)), ["a", "b"], "one is too old");
        assert_eq!(ids(&members.take_answer(&[], at(10))), ["a", "b"], "the store may have lost its data");
        assert_eq!(ids(&members.take_answer(&[], at(11))), ["a"], "one that only shared limits has left");
        assert_eq!(ids(&members.take_answer(&[], at(300))), ["a"]);
        assert!(members.take_answer(&[], at(301)).is_empty());
        members.take_answer(&[gateway("a", Some(0))], at(302));
        let gone = RemoteGateway { is_gone: true, ..gateway("a", Some(1)) };
        assert!(members.take_answer(&[gone], at(303)).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_shares_limits_is_missed_for_as_long_as_it_does() {
        let mut members = StoreMembers::default();
        let start = Instant::now();
        members.take_answer(&[gateway("b", Some(0))], start);
        for second in 1..700 {
            let now = start + Duration::from_secs(second);
            let listed = members.take_answer(&[gateway("a", None), gateway("b", None)], now);
            assert_eq!(ids(&listed), ["a", "b"], "{second}");
            assert_eq!(members.known["a"].at, start + Duration::from_secs(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_is_bounded_and_stays_the_same() {
        tokio::time::advance(Duration::from_secs(1000)).await;
        let mut members = StoreMembers::default();
        let now = Instant::now();
        let many = |turn: u64| -> Vec<RemoteGateway> {
            let age = |id| if id % 3 == 0 { 100 + id % 7 } else { (id + turn) % 5 };
            (0..300).map(|id| gateway(&format!("{id:03}"), Some(age(id)))).collect()
        };
        let listed = members.take_answer(&many(0), now);
        assert_eq!((listed.len(), members.known.len()), (MAX_PEERS, MAX_KNOWN));
        assert!(listed.contains("001") && !listed.contains("000"), "those that are heard come first");
        assert_eq!(members.take_answer(&many(1), now), listed);
    }

    /// A store that is back may have lost its data: all gateways have reported before it is believed, and this one has
    /// read the names.
    #[test]
    fn all_gateways_report_before_the_store_is_believed() {
        assert!(ALL_REPORT + MAX_GAP <= SETTLE, "{ALL_REPORT:?} of {SETTLE:?}");
    }

    /// The script keeps each report for as long as its gateway may be missed, and names as many as are remembered.
    #[test]
    fn the_script_keeps_what_counts() {
        let read = |name: &str| -> u64 {
            let line = DEMAND.lines().find_map(|line| line.strip_prefix(&format!("local {name} = ")));
            line.unwrap().split(' ').next().unwrap().parse().unwrap()
        };
        assert!(Duration::from_millis(read("KEEP")) >= MISSED + SILENT);
        assert_eq!(read("MOST"), MAX_KNOWN as u64);
    }
}
