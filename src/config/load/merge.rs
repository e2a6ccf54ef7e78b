//! Merge of discovered replicas into the settings.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use crate::config::discover::{Endpoint, MAX_REPLICAS};
use crate::config::settings::{ReplicaSettings, Settings};
use crate::config::validate::url::canonical;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::model::policy::{Policy, Replica};

/// The endpoints that each pool's source names just now. A pool whose source
/// has not answered yet is not there.
pub type FoundEndpoints = BTreeMap<PoolId, Arc<[Endpoint]>>;

/// Adds what was found to the settings of a file. Every replica keeps the id
/// that its name has in `previous`. An endpoint that is a replica already, of
/// any pool, and those beyond [`MAX_REPLICAS`] of a pool are left out.
pub fn merge(file: &Settings, previous: &Settings, found: &FoundEndpoints) -> Settings {
    let mut merging = Merging {
        seen: file.edge.replicas.iter().map(|(.., edge)| canonical(&edge.url)).collect(),
        replicas: IdTable::successor(&previous.policy.replicas),
        edges: IdTable::successor(&previous.edge.replicas),
        draining: BTreeSet::new(),
        spot_notices: BTreeSet::new(),
    };
    let mut policy = Policy::clone(&file.policy);
    let mut edge = file.edge.as_ref().clone();
    let mut members: BTreeMap<PoolId, Vec<ReplicaId>> = BTreeMap::new();
    for (id, name, row) in file.policy.replicas.iter() {
        if let Some(edge) = file.edge.replicas.get(id) {
            members.entry(row.pool).or_default().push(merging.insert(name, row.clone(), edge.clone()));
        }
    }
    let pools = file.edge.pools.iter();
    for (pool, name, discovery) in
        pools.filter_map(|(id, name, pool)| Some((id, name, pool.discover.as_ref()?)))
    {
        let members = members.entry(pool).or_default();
        for endpoint in found.get(&pool).into_iter().flat_map(|found| &**found) {
            if members.len() < MAX_REPLICAS {
                members.extend(merging.add(pool, name, &discovery.row, endpoint));
            }
        }
    }
    for (id, name, row) in file.policy.pools.iter() {
        let mut row = row.clone();
        row.replicas = members.remove(&id).unwrap_or_default();
        policy.pools.insert(name, row);
    }
    (policy.replicas, edge.replicas) = (merging.replicas, merging.edges);
    (policy.draining, policy.spot_notices) = (merging.draining, merging.spot_notices);
    Settings { edge: Arc::new(edge), policy: Arc::new(policy), ..file.clone() }
}

struct Merging {
    /// Canonical URLs.
    seen: HashSet<String>,
    replicas: IdTable<ReplicaId, Replica>,
    edges: IdTable<ReplicaId, ReplicaSettings>,
    draining: BTreeSet<ReplicaId>,
    spot_notices: BTreeSet<ReplicaId>,
}

impl Merging {
    fn insert(&mut self, name: &str, row: Replica, edge: ReplicaSettings) -> ReplicaId {
        self.edges.insert(name, edge);
        self.replicas.insert(name, row)
    }

    fn add(&mut self, pool: PoolId, name: &str, row: &Replica, endpoint: &Endpoint) -> Option<ReplicaId> {
        let url = canonical(&endpoint.url);
        let name = format!("{name}/{url}");
        if !self.seen.insert(url) {
            return None;
        }
        let Endpoint { url, metrics_url, zone, draining, spot_notice } = endpoint.clone();
        let id = self.insert(&name, row.clone(), ReplicaSettings { pool, url, metrics_url, zone });
        if draining {
            self.draining.insert(id);
        }
        if draining && spot_notice {
            self.spot_notices.insert(id);
        }
        Some(id)
    }
}

/// Whether two settings have the same replicas, in the same state.
pub(in crate::config) fn same_replicas(one: &Settings, other: &Settings) -> bool {
    one.policy.draining == other.policy.draining
        && one.policy.spot_notices == other.policy.spot_notices
        && one.edge.replicas.iter().eq(other.edge.replicas.iter())
        && one.policy.replicas.iter().eq(other.policy.replicas.iter())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::discover::{EndpointForm, EndpointScheme};
    use crate::config::load::load_str;

    const FILE: &str = "
version: 1
auth: {mode: off}
pools:
  a:
    engine: vllm
    models: [m]
    max_seqs: 7
    replicas: [http://10.0.0.1:80]
    discover: {dns: {name: a.test, port: 80}}
  b:
    engine: vllm
    models: [m]
    discover: {dns: {name: b.test, port: 80}}
  c: {engine: vllm, models: [m], replicas: [http://10.0.0.9:80]}
";

    fn settings(text: &str, previous: Option<&Settings>) -> Settings {
        let loaded = load_str(text, "p", Path::new("/"), previous).into_result();
        loaded.unwrap_or_else(|report| panic!("{report}")).settings
    }

    fn hosts(last: &[usize]) -> Arc<[Endpoint]> {
        let form = EndpointForm { scheme: EndpointScheme::Http, metrics_port: None };
        let endpoint =
            |last: &usize| form.endpoint(&format!("10.0.{}.{}", last / 250, last % 250), 80).unwrap();
        last.iter().map(endpoint).collect()
    }

    fn found(settings: &Settings, pools: &[(&str, &[usize])]) -> FoundEndpoints {
        let id = |name: &str| settings.policy.pools.id(name).unwrap();
        pools.iter().map(|(pool, last)| (id(pool), hosts(last))).collect()
    }

    /// The names of all replicas with their ids, checked against both tables.
    fn names(settings: &Settings) -> Vec<(String, usize)> {
        let row = |(id, name, _): (ReplicaId, &str, &Replica)| (name.to_owned(), id.index());
        let names: Vec<_> = settings.policy.replicas.iter().map(row).collect();
        let edges: Vec<_> =
            settings.edge.replicas.iter().map(|(id, name, _)| (name.to_owned(), id.index())).collect();
        assert_eq!(names, edges);
        let members: BTreeSet<usize> = settings
            .policy
            .pools
            .iter()
            .flat_map(|(.., pool)| pool.replicas.iter().map(|id| id.index()))
            .collect();
        assert_eq!(members, names.iter().map(|(_, id)| *id).collect());
        names
    }

    fn id(settings: &Settings, name: &str) -> Option<usize> {
        names(settings).into_iter().find(|(one, _)| one == name).map(|(_, id)| id)
    }

    #[test]
    fn ids_stay_over_discoveries_and_reloads() {
        let file = settings(FILE, None);
        let first = merge(&file, &file, &found(&file, &[("a", &[2]), ("b", &[3])]));
        assert_eq!(names(&first).len(), 4);
        assert_eq!(id(&first, "a/http://10.0.0.1:80"), id(&file, "a/http://10.0.0.1:80"));
        let row = first.policy.replicas.get(first.policy.replicas.id("a/http://10.0.0.2:80").unwrap());
        assert_eq!(row.unwrap().max_seqs, Some(7), "what is found is like its pool");

        let second = merge(&file, &first, &found(&file, &[("a", &[4]), ("b", &[3])]));
        assert_eq!(id(&second, "a/http://10.0.0.2:80"), None);
        assert_eq!(id(&second, "b/http://10.0.0.3:80"), id(&first, "b/http://10.0.0.3:80"));

        let changed =
            FILE.replace("  c:", "  d: {engine: vllm, models: [m], replicas: [http://10.0.0.8:80]}\n  c:");
        let file = settings(&changed, Some(&second));
        let third = merge(&file, &second, &found(&file, &[("a", &[2, 4]), ("b", &[3])]));
        for name in ["a/http://10.0.0.4:80", "b/http://10.0.0.3:80", "c/http://10.0.0.9:80"] {
            assert_eq!(id(&third, name), id(&second, name), "{name}");
        }
        assert_eq!(id(&third, "a/http://10.0.0.2:80"), id(&first, "a/http://10.0.0.2:80"), "it is back");
        let ids: BTreeSet<_> = names(&third).into_iter().map(|(_, id)| id).collect();
        assert_eq!(ids.len(), names(&third).len());
    }

    #[test]
    fn one_engine_is_one_replica() {
        let file = settings(FILE, None);
        let all = found(&file, &[("a", &[1, 2, 9]), ("b", &[2, 3])]);
        let merged = merge(&file, &file, &all);
        let mut names: Vec<_> = names(&merged).into_iter().map(|(name, _)| name).collect();
        names.sort();
        assert_eq!(
            names,
            ["a/http://10.0.0.1:80", "a/http://10.0.0.2:80", "b/http://10.0.0.3:80", "c/http://10.0.0.9:80"]
        );
    }

    #[test]
    fn a_pool_has_an_upper_bound() {
        let file = settings(FILE, None);
        let many: Vec<usize> = (10..MAX_REPLICAS + 100).collect();
        let merged = merge(&file, &file, &found(&file, &[("a", &many)]));
        assert_eq!(
            merged.policy.pools.get(file.policy.pools.id("a").unwrap()).unwrap().replicas.len(),
            MAX_REPLICAS
        );
    }

    #[test]
    fn what_is_no_news_is_known() {
        let file = settings(FILE, None);
        let one = merge(&file, &file, &found(&file, &[("a", &[2])]));
        assert!(same_replicas(&one, &merge(&file, &one, &found(&file, &[("a", &[2])]))));
        assert!(!same_replicas(&one, &file));
        let mut going = found(&file, &[("a", &[2])]);
        for endpoints in going.values_mut() {
            *endpoints = endpoints.iter().map(|one| Endpoint { draining: true, ..one.clone() }).collect();
        }
        let going = merge(&file, &one, &going);
        assert!(!same_replicas(&one, &going));
        assert_eq!(going.policy.draining.len(), 1);
    }
}
