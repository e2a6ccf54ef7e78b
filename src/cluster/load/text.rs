//! Load text: the load of a gateway as the store has it. Names, not ids, are in it: ids differ between
//! gateways. A replica goes by a hash of its name, since names are long and loads are told often.
//!
//! Gateways may have pools of one name with other replicas. What waits for such a pool elsewhere is none of
//! this gateway's business, so that each pool has a hash of its replicas.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::model::policy::Policy;
use crate::core::queue::fairness::gateways::load::{
    ActiveClass, GatewayLoad, ReplicaSequences, WaitingTenant,
};

/// Version of the text. Later ones may have further fields.
const VERSION: u32 = 1;
/// Longest text that is read.
const MAX_TEXT: usize = 256 * 1024;
/// Most replicas, classes and tenants of a load that are told and read, each.
const MAX_ROWS: usize = 2048;

/// Load of a gateway, by names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct LoadText {
    v: u32,
    /// Sequences by the replica's key.
    replicas: BTreeMap<String, u32>,
    /// Keys of the replicas of each pool that is named below, as one.
    pools: BTreeMap<String, String>,
    /// Pool, class, running jobs, headroom.
    classes: Vec<(String, String, u32, u32)>,
    /// Pool, class, tenant, running jobs, waiting jobs.
    tenants: Vec<(String, String, String, u32, u32)>,
}

/// Turns loads into texts and back, by the names of the policy in force.
#[derive(Debug, Default)]
pub struct LoadTexts {
    policy: Option<Arc<Policy>>,
    /// Replicas of that policy by their keys.
    replicas: HashMap<String, ReplicaId>,
    /// Keys of the replicas of each pool, as one.
    pools: BTreeMap<PoolId, String>,
}

/// Key of a replica or of several: 48 bits of a hash.
fn key(name: &str) -> String {
    blake3::hash(name.as_bytes()).to_hex()[..12].to_owned()
}

impl LoadTexts {
    /// Learns the names of the policy in force.
    pub fn learn(&mut self, policy: &Arc<Policy>) {
        if self.policy.as_ref().is_some_and(|known| Arc::ptr_eq(known, policy)) {
            return;
        }
        self.replicas = policy.replicas.iter().map(|(id, name, _)| (key(name), id)).collect();
        let mut pools: BTreeMap<PoolId, BTreeSet<&str>> = BTreeMap::new();
        for (_, name, replica) in policy.replicas.iter() {
            pools.entry(replica.pool).or_default().insert(name);
        }
        let one = |names: BTreeSet<&str>| key(&Vec::from_iter(names).join("\n"));
        self.pools = pools.into_iter().map(|(pool, names)| (pool, one(names))).collect();
        self.policy = Some(Arc::clone(policy));
    }

    /// The load as a text.
    pub fn write(&self, load: &GatewayLoad) -> String {
        let Some(policy) = &self.policy else { return String::new() };
        let replicas = load.replicas.iter().take(MAX_ROWS);
        let classes = load.classes.iter().take(MAX_ROWS);
        let tenants = load.tenants.iter().take(MAX_ROWS);
        let (pool, class) = (|id| policy.pools.name(id).to_owned(), |id| policy.classes.name(id).to_owned());
        let named = load.classes.iter().map(|row| row.pool).chain(load.tenants.iter().map(|row| row.pool));
        let text = LoadText {
            v: VERSION,
            pools: named.filter_map(|id| Some((pool(id), self.pools.get(&id)?.clone()))).collect(),
            replicas: replicas.map(|row| (key(policy.replicas.name(row.replica)), row.seqs)).collect(),
            classes: classes
                .map(|row| (pool(row.pool), class(row.class), row.running, row.headroom))
                .collect(),
            tenants: tenants
                .map(|row| {
                    let tenant = policy.tenants.name(row.tenant).to_owned();
                    (pool(row.pool), class(row.class), tenant, row.running, row.waiting)
                })
                .collect(),
        };
        serde_json::to_string(&text).unwrap_or_default()
    }

    /// The load of a text, by this gateway's ids. Names that it does not have are left out; `None` for a text
    /// that is broken.
    pub fn read(&self, text: &[u8]) -> Option<GatewayLoad> {
        let policy = self.policy.as_ref()?;
        let text: LoadText =
            serde_json::from_slice(Some(text).filter(|text| text.len() <= MAX_TEXT)?).ok()?;
        let known = |(key, seqs): (&String, &u32)| {
            Some(ReplicaSequences { replica: *self.replicas.get(key)?, seqs: *seqs })
        };
        let replicas: Vec<_> = text.replicas.iter().take(MAX_ROWS).filter_map(known).collect();
        // Half of its sequences may be at replicas that only one of the two has found yet.
        let here: u64 = replicas.iter().map(|row| u64::from(row.seqs)).sum();
        let all: u64 = text.replicas.values().map(|seqs| u64::from(*seqs)).sum();
        let is_near = all > 0 && 2 * here >= all;
        let pool_id = |name: &String| {
            let pool = policy.pools.id(name)?;
            let is_same = text.pools.get(name).is_some_and(|key| self.pools.get(&pool) == Some(key));
            (is_same || is_near).then_some(pool)
        };
        let classes = text.classes.iter().take(MAX_ROWS).filter_map(|(pool, class, running, headroom)| {
            let (pool, class) = (pool_id(pool)?, policy.classes.id(class)?);
            Some(ActiveClass { pool, class, running: *running, headroom: *headroom })
        });
        let tenants =
            text.tenants.iter().take(MAX_ROWS).filter_map(|(pool, class, tenant, running, waiting)| {
                let (pool, class) = (pool_id(pool)?, policy.classes.id(class)?);
                let tenant = policy.tenants.id(tenant)?;
                Some(WaitingTenant { pool, class, tenant, running: *running, waiting: *waiting })
            });
        let (classes, tenants) = (classes.collect(), tenants.collect());
        Some(GatewayLoad { replicas, classes, tenants })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::load::load_str_with;
    use crate::config::secret::MachineSecrets;

    fn texts(ports: &[u16]) -> (LoadTexts, Arc<Policy>) {
        let urls: Vec<String> = ports.iter().map(|port| format!("'http://127.0.0.1:{port}'")).collect();
        let text = format!(
            "{{version: 1, auth: {{mode: off, tenant: a}}, tenants: {{a: {{weight: 4}}}}, pools: {{p: {{engine: vllm, models: [m], replicas: [{}]}}}}}}",
            urls.join(", ")
        );
        let outcome = load_str_with(&text, "test", Path::new("."), None, &MachineSecrets);
        let policy = outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings.policy;
        let mut texts = LoadTexts::default();
        texts.learn(&policy);
        (texts, policy)
    }

    fn load(policy: &Policy, seqs: &[u32]) -> GatewayLoad {
        let pool = policy.pools.id("p").unwrap();
        let class = policy.classes.id("interactive").unwrap();
        let tenant = policy.tenants.id("a").unwrap();
        let rows = policy.replicas.iter().zip(seqs).filter(|(_, seqs)| **seqs > 0);
        GatewayLoad {
            replicas: rows.map(|((replica, ..), seqs)| ReplicaSequences { replica, seqs: *seqs }).collect(),
            classes: vec![ActiveClass { pool, class, running: 3, headroom: 2 }],
            tenants: vec![WaitingTenant { pool, class, tenant, running: 5, waiting: 7 }],
        }
    }

    #[test]
    fn a_load_comes_back_at_a_gateway_with_the_same_replicas() {
        let ((one, policy), (two, _)) = (texts(&[1, 2, 3]), texts(&[3, 2, 1]));
        let own = load(&policy, &[4, 0, 6]);
        let read = two.read(one.write(&own).as_bytes()).unwrap();
        let seqs = |load: &GatewayLoad| load.replicas.iter().map(|row| row.seqs).sum::<u32>();
        assert_eq!((seqs(&read), &read.classes, &read.tenants), (10, &own.classes, &own.tenants));
        let ids: Vec<ReplicaId> = read.replicas.iter().map(|row| row.replica).collect();
        assert_ne!(ids, [own.replicas[0].replica, own.replicas[1].replica], "by names, not by ids");
    }

    #[test]
    fn what_waits_for_other_replicas_is_left_out() {
        let ((one, policy), (two, _)) = (texts(&[1, 2]), texts(&[2, 3]));
        let heard = |seqs: &[u32]| {
            let read = two.read(one.write(&load(&policy, seqs)).as_bytes()).unwrap();
            (read.replicas.len(), read.tenants.len())
        };
        assert_eq!((heard(&[4, 6]), heard(&[4, 0]), heard(&[0, 0])), ((1, 1), (0, 0), (0, 0)));
        let (same, _) = texts(&[1, 2]);
        assert_eq!(same.read(one.write(&load(&policy, &[0, 0])).as_bytes()).unwrap().tenants.len(), 1);
    }

    #[test]
    fn texts_of_later_versions_and_broken_ones_do_no_harm() {
        let (texts, _) = texts(&[1]);
        let later = r#"{"v":2,"replicas":{"x":3},"more":[1],"classes":[["nowhere","interactive",1,2]]}"#;
        assert_eq!(texts.read(later.as_bytes()), Some(GatewayLoad::default()));
        assert_eq!((texts.read(b"{"), texts.read(&vec![b' '; MAX_TEXT + 1])), (None, None));
    }
}
