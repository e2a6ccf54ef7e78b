//! Store sight: the gateways that the store of `cluster` has told of, and whether it has said enough to know all of
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::HeardGateway;
use crate::core::autoscale::peers::{MAX_PEERS, MISSED, SILENT};
use crate::telemetry::Telemetry;
use crate::telemetry::event::{PeerHeard, PeerLost};

/// Time for which the store must have answered before all gateways count as known. The store may just have lost its
/// data: by then all of them have connected and reported again.
const SETTLE: Duration = Duration::from_secs(3);
/// Most gateways that are remembered.
const MAX_KNOWN: usize = 256;

/// What operators were told last of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToldState {
    Nothing,
    Heard,
    Lost,
}

#[derive(Debug, Clone)]
struct StoreGateway {
    name: String,
    /// Time of its last report; before the first one, the time at which it was seen first.
    at: Instant,
    has_reported: bool,
    told: ToldState,
}

/// Other gateways, as the store has told of them.
#[derive(Debug, Default)]
pub(super) struct StoreSight {
    /// Time of the first answer since the store was away, and of the last answer.
    answers: Option<(Instant, Instant)>,
    known: BTreeMap<String, StoreGateway>,
}

impl StoreSight {
    /// Whether the store answers, and has for long enough that all gateways have reported.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        self.answers.is_some_and(|(since, last)| {
            now.saturating_duration_since(last) <= SILENT && last - since >= SETTLE
        })
    }

    /// Takes an answer over. Returns the gateways that should be there. One that the store has lost counts for as
    /// long as a silent one.
    pub(super) fn hear(&mut self, heard: &[HeardGateway], now: Instant) -> BTreeSet<String> {
        let since = self.answers.filter(|(_, last)| now.saturating_duration_since(*last) <= SILENT);
        self.answers = Some((since.map_or(now, |(since, _)| since), now));
        let named: BTreeSet<&str> = heard.iter().map(|gateway| &*gateway.id).collect();
        self.known.retain(|id, gateway| gateway.has_reported || named.contains(&**id));
        for gateway in heard {
            if gateway.is_gone {
                self.known.remove(&gateway.id);
                continue;
            }
            let known = self.known.entry(gateway.id.clone()).or_insert_with(|| StoreGateway {
                name: gateway.name.clone(),
                at: now,
                has_reported: false,
                told: ToldState::Nothing,
            });
            if let Some(age) = gateway.age {
                (known.at, known.has_reported) = (now.checked_sub(age).unwrap_or(now), true);
            }
        }
        let mut all: Vec<(&String, Instant)> = self.known.iter().map(|(id, known)| (id, known.at)).collect();
        all.retain(|(_, at)| now.saturating_duration_since(*at) <= MISSED);
        all.sort_unstable_by_key(|(_, at)| std::cmp::Reverse(*at));
        let kept: BTreeSet<String> = all.iter().take(MAX_KNOWN).map(|(id, _)| (*id).clone()).collect();
        let listed = all.iter().take(MAX_PEERS).map(|(id, _)| (*id).clone()).collect();
        self.known.retain(|id, _| kept.contains(id));
        listed
    }

    /// Tells operators who is heard now and who is lost.
    pub(super) fn tell(&mut self, now: Instant, telemetry: &Telemetry) {
        for (id, gateway) in &mut self.known {
            let is_silent = now.saturating_duration_since(gateway.at) > SILENT;
            let told = match (is_silent, gateway.has_reported) {
                (true, _) => ToldState::Lost,
                (false, true) => ToldState::Heard,
                (false, false) => ToldState::Nothing,
            };
            let place = &*gateway.name;
            match (std::mem::replace(&mut gateway.told, told), told) {
                (ToldState::Nothing | ToldState::Lost, ToldState::Heard) => {
                    PeerHeard { place, id }.emit(telemetry);
                }
                (ToldState::Nothing | ToldState::Heard, ToldState::Lost) => {
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

    fn gateway(id: &str, age: Option<u64>) -> HeardGateway {
        let age = age.map(Duration::from_secs);
        HeardGateway { id: id.to_owned(), name: format!("{id}:1"), age, is_gone: false, report: None }
    }

    fn ids(places: &BTreeSet<String>) -> Vec<&str> {
        places.iter().map(String::as_str).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_store_settles_again_after_it_was_away() {
        let mut sight = StoreSight::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!sight.is_settled(start));
        (0..3).for_each(|second| _ = sight.hear(&[], at(second)));
        assert!(!sight.is_settled(at(2)));
        sight.hear(&[], at(3));
        assert!(sight.is_settled(at(3)) && sight.is_settled(at(13)) && !sight.is_settled(at(14)));
        sight.hear(&[], at(14));
        assert!(!sight.is_settled(at(14)));
        sight.hear(&[], at(17));
        assert!(sight.is_settled(at(17)));
        // A short pause changes nothing.
        sight.hear(&[], at(26));
        assert!(sight.is_settled(at(26)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_that_the_store_forgets_is_missed_for_five_minutes() {
        tokio::time::advance(Duration::from_secs(1000)).await;
        let mut sight = StoreSight::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let places = sight.hear(&[gateway("a", Some(0)), gateway("b", None), gateway("c", Some(301))], start);
        assert_eq!(ids(&places), ["a", "b"], "one is too old");
        assert_eq!(ids(&sight.hear(&[], at(1))), ["a"], "one that only shared limits has left");
        assert_eq!(ids(&sight.hear(&[], at(300))), ["a"]);
        assert!(sight.hear(&[], at(301)).is_empty());
        sight.hear(&[gateway("a", Some(0))], at(302));
        let gone = HeardGateway { is_gone: true, ..gateway("a", Some(1)) };
        assert!(sight.hear(&[gone], at(303)).is_empty());
        let many: Vec<_> = (0..300).map(|id| gateway(&format!("{id:03}"), Some(id % 100))).collect();
        assert_eq!(sight.hear(&many, at(304)).len(), MAX_PEERS);
        assert_eq!(sight.known.len(), MAX_KNOWN);
    }
}
