//! Restarts: gateways that a later process of the same name has replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cluster::demand::shared_reports::{RemoteGateway, StoredRow};

/// Age of its last report at which a gateway counts as replaced. One that lives reports once a second.
const REPLACED: Duration = Duration::from_millis(2500);

/// Names under which several gateways report at the same time. They say nothing of restarts.
#[derive(Debug, Default)]
pub(super) struct SharedNames(BTreeSet<String>);

impl SharedNames {
    /// Notes the names of `heard` under which a gateway reports anew although another one has reported since its last
    /// report; `before` is what was heard at the last turn. This gateway has reported whenever it asks.
    pub(super) fn note(
        &mut self,
        before: &BTreeMap<String, StoredRow>,
        heard: &[RemoteGateway],
        numbers: &[u64],
        own_name: &str,
    ) {
        let mut newest: BTreeMap<&str, Duration> = [(own_name, Duration::ZERO)].into();
        for row in before.values() {
            let least = newest.entry(&row.name).or_insert(row.age);
            *least = row.age.min(*least);
        }
        for (gateway, number) in heard.iter().zip(numbers) {
            let Some(row) = before.get(&gateway.id) else { continue };
            if row.number != *number && newest.get(&*gateway.name).is_some_and(|least| *least < row.age) {
                self.0.insert(gateway.name.clone());
            }
        }
        self.0.retain(|name| heard.iter().any(|gateway| gateway.name == *name));
    }

    /// Marks the gateways that were replaced, this one being a later process, too.
    pub(super) fn mark_replaced(&self, heard: &mut [RemoteGateway], own_name: &str) {
        let mut newest: BTreeMap<String, Duration> = [(own_name.to_owned(), Duration::ZERO)].into();
        for gateway in heard.iter() {
            let age = gateway.age.unwrap_or_default();
            let least = newest.entry(gateway.name.clone()).or_insert(age);
            *least = age.min(*least);
        }
        for gateway in heard {
            let names_one = !gateway.name.is_empty() && !self.0.contains(&gateway.name);
            let is_late = gateway.age.is_some_and(|age| age >= REPLACED);
            gateway.is_gone |= names_one && is_late && newest.get(&gateway.name).copied() < gateway.age;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gateways of one name, by the ages of their last reports in milliseconds, from turn to turn. Returns who is gone
    /// after each.
    fn gone(own_name: &str, turns: &[&[(&str, u64)]]) -> Vec<String> {
        let (mut names, mut before) = (SharedNames::default(), BTreeMap::<String, StoredRow>::new());
        let mut said = Vec::new();
        for turn in turns {
            let mut heard: Vec<RemoteGateway> = turn.iter().map(|(id, age)| heard(id, *age)).collect();
            let number = |(id, age): &(&str, u64)| match before.get(*id) {
                Some(row) => row.number + u64::from(Duration::from_millis(*age) <= row.age),
                None => 1,
            };
            let numbers: Vec<u64> = turn.iter().map(number).collect();
            names.note(&before, &heard, &numbers, own_name);
            names.mark_replaced(&mut heard, own_name);
            let row = |(gateway, number): (&RemoteGateway, &u64)| StoredRow {
                name: gateway.name.clone(),
                number: *number,
                age: gateway.age.unwrap(),
                ..StoredRow::default()
            };
            before = heard.iter().zip(&numbers).map(|pair| (pair.0.id.clone(), row(pair))).collect();
            let ids = heard.iter().filter(|gateway| gateway.is_gone).map(|gateway| &*gateway.id);
            said.push(ids.collect::<Vec<_>>().join(" "));
        }
        said
    }

    fn heard(id: &str, age: u64) -> RemoteGateway {
        let (id, name) = (id.to_owned(), "one:8080".to_owned());
        let age = Some(Duration::from_millis(age));
        RemoteGateway { id, name, age, shares_limits: false, is_gone: false, report: None }
    }

    #[test]
    fn a_restarted_gateway_is_replaced_within_seconds() {
        let turns: &[&[(&str, u64)]] = &[
            &[("a", 100)],
            &[("a", 900)],
            &[("a", 1500), ("b", 50)],
            &[("a", 2400), ("b", 950)],
            &[("a", 2500), ("b", 50)],
            &[("a", 9000), ("b", 50)],
        ];
        assert_eq!(gone("me:1", turns), ["", "", "", "", "a", "a"]);
        // It is this gateway that has replaced it.
        let own: &[&[(&str, u64)]] = &[&[("a", 1500)], &[("a", 2400)], &[("a", 2600)]];
        assert_eq!(gone("one:8080", own), ["", "", "a"]);
        // Both processes are silent: only the last one is missed.
        let crashed: &[&[(&str, u64)]] = &[&[("a", 9000), ("b", 7000)]];
        assert_eq!(gone("me:1", crashed), ["a"]);
    }

    #[test]
    fn gateways_that_live_under_one_name_are_no_restart() {
        let turns: &[&[(&str, u64)]] = &[
            &[("a", 100)],
            &[("a", 300), ("b", 100)],
            &[("a", 50), ("b", 300)],
            &[("a", 900), ("b", 50)],
            // Now one is killed.
            &[("a", 3000), ("b", 50)],
            &[("a", 60_000), ("b", 50)],
        ];
        assert_eq!(gone("me:1", turns), [""; 6]);
        // The other one is this gateway.
        let own: &[&[(&str, u64)]] = &[&[("a", 300)], &[("a", 100)], &[("a", 60_000)]];
        assert_eq!(gone("one:8080", own), [""; 3]);
    }
}
