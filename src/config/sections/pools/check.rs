//! Check of `pools` and their replicas.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::config::discover::{Discovery, EndpointScheme, MAX_REPLICAS};
use crate::config::file::ConfigFile;
use crate::config::secret::SecretReader;
use crate::config::sections::identity::client_tls;
use crate::config::sections::placement;
use crate::config::sections::pools::{
    PoolSection as Written, ReplicaDetail, ReplicaSection as WrittenReplica, ServedModels,
};
use crate::config::sections::pools::{discover, sleep};
use crate::config::sections::secret_ref;
use crate::config::settings::identity::ClientTls;
use crate::config::settings::{PoolSettings, ReplicaSettings, Settings};
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;
use crate::config::validate::{names, url};
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{ModelId, PoolId, ReplicaId};
use crate::core::model::policy::{Model, Pool, Replica};
use crate::engines::{Ability, EngineKind};

const MIN_SCRAPE_MILLIS: u128 = 100;

/// What serves the work.
#[derive(Debug)]
pub(in crate::config) struct CheckedPools {
    pub(in crate::config) pools: IdTable<PoolId, Pool>,
    pub(in crate::config) edges: IdTable<PoolId, PoolSettings>,
    pub(in crate::config) replicas: IdTable<ReplicaId, Replica>,
    pub(in crate::config) replica_edges: IdTable<ReplicaId, ReplicaSettings>,
    /// An id for every model, those of `models` first; no rows yet.
    pub(in crate::config) model_ids: IdTable<ModelId, Model>,
    /// Pools of each model, in the order of the file.
    pub(in crate::config) pools_of: BTreeMap<ModelId, Vec<PoolId>>,
    /// Field of each replica, by its canonical URL.
    seen: HashMap<String, FieldPath>,
}

pub(in crate::config) fn validate(
    file: &ConfigFile,
    previous: Option<&Settings>,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> CheckedPools {
    let mut served = CheckedPools {
        pools: previous.map(|old| IdTable::successor(&old.policy.pools)).unwrap_or_default(),
        edges: previous.map(|old| IdTable::successor(&old.edge.pools)).unwrap_or_default(),
        replicas: previous.map(|old| IdTable::successor(&old.policy.replicas)).unwrap_or_default(),
        replica_edges: previous.map(|old| IdTable::successor(&old.edge.replicas)).unwrap_or_default(),
        model_ids: previous.map(|old| IdTable::successor(&old.policy.models)).unwrap_or_default(),
        pools_of: BTreeMap::new(),
        seen: HashMap::new(),
    };
    for name in file.models.names() {
        served.model_ids.id_or_new(name);
    }
    let section = FieldPath::top("pools");
    if file.pools.is_empty() && findings.whole("pools") {
        findings.error(
            &section,
            "there is no pool",
            "name at least one, with its engine, models and replicas",
        );
    }
    for (name, pool) in file.pools.iter() {
        served.add(name, pool, &section.key(name), secrets, findings);
    }
    served
}

impl CheckedPools {
    fn add(
        &mut self,
        name: &str,
        pool: &Written,
        field: &FieldPath,
        secrets: &mut SecretReader<'_>,
        findings: &mut Findings<'_>,
    ) {
        names::label(name, field, findings);
        let id = self.pools.id_or_new(name);
        if pool.engine.is_none() {
            findings.error(&field.key("engine"), "is missing", engine_hint());
        }
        let engine = pool.engine.unwrap_or(EngineKind::Openai);
        let mut model_names = self.models(pool, engine, id, &field.key("models"), findings);
        let adapters = self.adapters(pool, id, field, &mut model_names, findings);
        let (source, listed) = match &pool.discover {
            Some(discover) => discover::check::validate(discover, &field.key("discover"), secrets, findings),
            None => (None, Vec::new()),
        };
        let replicas = self.replicas(name, pool, &listed, id, field, findings);
        let row = Replica { pool: id, max_seqs: pool.max_seqs, kv_tokens: pool.kv_tokens };
        let discover = source.map(|source| Discovery { source, row });
        sizes(pool.max_seqs, pool.kv_tokens, field, findings);
        bounds(pool, field, findings);
        if pool.scrape_interval.0.as_millis() < MIN_SCRAPE_MILLIS {
            findings.error(&field.key("scrape_interval"), "is too short", "write 100ms or more");
        }
        let api_key = pool
            .api_key
            .as_ref()
            .and_then(|key| secret_ref::read(key, &field.key("api_key"), secrets, findings));
        let engine_priority = pool.engine_priority && engine.can(Ability::Priority);
        if pool.engine_priority && !engine_priority && pool.engine.is_some() {
            let message = format!("{} is told no priority", engine.name());
            let hint =
                format!("take the key away; only {} orders requests as this key means", able_to_order());
            findings.error(&field.key("engine_priority"), message, hint);
        }
        let models: BTreeSet<ModelId> = model_names.keys().copied().collect();
        let (supply, site) = placement::check::pool(pool, field, findings);
        let engine_buffer = pool.engine_buffer;
        let cold_start =
            pool.cold_start.map(|time| numbers::positive(time, &field.key("cold_start"), findings));
        let sleep = pool.sleep.as_ref().and_then(|written| {
            sleep::validate(written, engine, pool.engine.is_some(), &field.key("sleep"), findings)
        });
        let row = Pool {
            replicas,
            models,
            engine_buffer,
            engine_priority,
            cold_start,
            scales_to_zero: pool.scales_to_zero,
            min_replicas: pool.min_replicas,
            max_replicas: pool.max_replicas,
            sleep,
            traits: supply,
            adapters: adapters.clone(),
            adapter_slots: pool.adapter_slots,
            adapter_load: pool.adapter_load.map(|time| time.0),
        };
        self.pools.insert(name, row);
        let scrape_interval = pool.scrape_interval.0;
        let tls = tls(pool, &listed, field, secrets, findings);
        let edge =
            PoolSettings { engine, model_names, adapters, api_key, tls, scrape_interval, site, discover };
        self.edges.insert(name, edge);
    }

    fn models(
        &mut self,
        pool: &Written,
        engine: EngineKind,
        id: PoolId,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> BTreeMap<ModelId, String> {
        let listed = listed(&pool.models, field);
        if listed.is_empty() {
            findings.error(field, "names no model", "list the public names of the models it serves");
        }
        let mut own_names = BTreeMap::new();
        for ListedModel { name, own, field } in listed {
            names::model(name, &field, findings);
            own_name(own, &field, findings);
            let model = self.model_ids.id_or_new(name);
            let default = engine.spec().default_model.unwrap_or(name);
            if own_names.insert(model, own.unwrap_or(default).to_owned()).is_some() {
                findings.error(&field, format!("`{name}` is listed twice"), "list it once");
                continue;
            }
            self.pools_of.entry(model).or_default().push(id);
        }
        own_names
    }

    /// Adds the pool's adapters to its models, and says which these are.
    fn adapters(
        &mut self,
        pool: &Written,
        id: PoolId,
        field: &FieldPath,
        model_names: &mut BTreeMap<ModelId, String>,
        findings: &mut Findings<'_>,
    ) -> BTreeSet<ModelId> {
        numbers::at_least_one(pool.adapter_slots.map_or(1, u64::from), &field.key("adapter_slots"), findings);
        if let Some(time) = pool.adapter_load {
            numbers::positive(time, &field.key("adapter_load"), findings);
        }
        let mut adapters = BTreeSet::new();
        for ListedModel { name, own, field } in listed(&pool.adapters, &field.key("adapters")) {
            names::model(name, &field, findings);
            own_name(own, &field, findings);
            let model = self.model_ids.id_or_new(name);
            if model_names.insert(model, own.unwrap_or(name).to_owned()).is_some() {
                findings.error(
                    &field,
                    format!("`{name}` is listed twice"),
                    "list it once, as model or as adapter",
                );
                continue;
            }
            adapters.insert(model);
            self.pools_of.entry(model).or_default().push(id);
        }
        adapters
    }

    fn replicas(
        &mut self,
        pool_name: &str,
        pool: &Written,
        listed: &[WrittenReplica],
        id: PoolId,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> Vec<ReplicaId> {
        let list = field.key("replicas");
        if pool.replicas.is_empty() && pool.discover.is_none() && pool.cold_start.is_none() {
            let hint = "list base URLs such as http://10.0.0.5:8000, say where to `discover` them, or how long a \
                        `cold_start` takes";
            findings.error(&list, "names no replica", hint);
        }
        if pool.scales_to_zero && (pool.replicas.is_empty() || pool.discover.is_some()) {
            let hint = "take it away: a pool with no replica listed or found has to start anyway";
            findings.error(&field.key("scales_to_zero"), "is for `replicas` whose addresses stay", hint);
        }
        if pool.replicas.len() + listed.len() > MAX_REPLICAS {
            let message = format!("names more than {MAX_REPLICAS} replicas");
            findings.error(&list, message, "divide them among several pools");
        }
        let elsewhere = field.key("discover").key("file");
        let here = pool.replicas.iter().enumerate().map(|(at, replica)| (replica, list.index(at)));
        let mut ids = Vec::new();
        for (replica, field) in here.chain(listed.iter().map(|replica| (replica, elsewhere.clone()))) {
            let detail = replica.detail();
            sizes(detail.max_seqs, detail.kv_tokens, &field, findings);
            let Some(edge) = self.replica_edge(&detail, id, &field, findings) else { continue };
            let name = format!("{pool_name}/{}", detail.url);
            let max_seqs = detail.max_seqs.or(pool.max_seqs);
            let kv_tokens = detail.kv_tokens.or(pool.kv_tokens);
            self.replica_edges.insert(&name, edge);
            ids.push(self.replicas.insert(&name, Replica { pool: id, max_seqs, kv_tokens }));
        }
        ids
    }

    fn replica_edge(
        &mut self,
        detail: &ReplicaDetail,
        pool: PoolId,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> Option<ReplicaSettings> {
        let metrics_url = detail.metrics_url.as_deref().and_then(|text| {
            let wrong = |(message, hint)| findings.error(&field.key("metrics_url"), message, hint);
            url::any(text).map_err(wrong).ok()
        });
        let url = match url::base(&detail.url) {
            Ok(url) => url,
            Err((message, hint)) => {
                findings.error(&field.key("url"), message, hint);
                return None;
            }
        };
        if let Some(first) = self.seen.insert(url::canonical(&url), field.clone()) {
            let hint = "one engine is one replica of one pool, else its load is counted twice";
            findings.error(&field.key("url"), format!("{} is {first} already", detail.url), hint);
            return None;
        }
        Some(ReplicaSettings { pool, url, metrics_url, zone: None })
    }
}

/// TLS of connections to the pool's engines, none of which may then be reached without.
fn tls(
    pool: &Written,
    listed: &[WrittenReplica],
    field: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<ClientTls> {
    let made = client_tls::validate(pool.tls.as_ref(), &field.key("tls"), secrets, findings)?;
    let is_plain = |replica: &WrittenReplica| !replica.detail().url.starts_with("https:");
    let mut schemes = pool.discover.iter().flat_map(|found| {
        let dns = found.dns.as_ref().map(|dns| dns.scheme);
        dns.into_iter().chain(found.kubernetes.as_ref().map(|service| service.scheme))
    });
    if pool.replicas.iter().chain(listed).any(is_plain)
        || schemes.any(|scheme| scheme == EndpointScheme::Http)
    {
        let hint = "write `https` in the URLs of its replicas, or as the `scheme` of `discover`";
        findings.error(&field.key("tls"), "is not used with `http`", hint);
    }
    Some(made)
}

/// A model as a pool lists it.
struct ListedModel<'a> {
    name: &'a str,
    /// The engine's own name, if it is said.
    own: Option<&'a str>,
    field: FieldPath,
}

/// The models of a list or map.
fn listed<'a>(models: &'a ServedModels, field: &FieldPath) -> Vec<ListedModel<'a>> {
    match models {
        ServedModels::Names(list) => {
            let model =
                |(at, name): (usize, &'a String)| ListedModel { name, own: None, field: field.index(at) };
            list.iter().enumerate().map(model).collect()
        }
        ServedModels::Renamed(map) => {
            let model = |(name, own): (&'a str, &'a String)| ListedModel {
                name,
                own: Some(own),
                field: field.key(name),
            };
            map.iter().map(model).collect()
        }
    }
}

fn own_name(own: Option<&str>, field: &FieldPath, findings: &mut Findings<'_>) {
    if own == Some("") {
        findings.error(field, "the engine's name is empty", "write the name, or list the model alone");
    }
}

/// The bounds of what the scale signal asks for.
fn bounds(pool: &Written, field: &FieldPath, findings: &mut Findings<'_>) {
    let Some(most) = pool.max_replicas else { return };
    if most < pool.min_replicas.max(1) {
        let message = format!("is less than {}", if most == 0 { "one" } else { "min_replicas" });
        findings.error(&field.key("max_replicas"), message, "write a larger number, or take it away");
    }
}

/// Names of the engines that order requests by priority.
fn able_to_order() -> String {
    let able = EngineKind::ALL.into_iter().filter(|kind| kind.can(Ability::Priority));
    able.map(EngineKind::name).collect::<Vec<_>>().join(", ")
}

fn sizes(max_seqs: Option<u32>, kv_tokens: Option<u64>, field: &FieldPath, findings: &mut Findings<'_>) {
    numbers::at_least_one(max_seqs.map_or(1, u64::from), &field.key("max_seqs"), findings);
    numbers::at_least_one(kv_tokens.unwrap_or(1), &field.key("kv_tokens"), findings);
}

/// `write vllm, tgi, … or openai`.
fn engine_hint() -> String {
    let names: Vec<&str> = EngineKind::ALL.into_iter().map(EngineKind::name).collect();
    let (last, others) = names.split_last().expect("there are engines");
    format!("write {} or {last}", others.join(", "))
}
