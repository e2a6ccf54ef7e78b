//! Section `pools`, as written.

pub(in crate::config) mod check;
pub mod discover;
pub mod sleep;

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::config::sections::identity::client_tls::ClientTlsSection;
use crate::config::sections::placement::CapacityName;
use crate::config::sections::pools::discover::DiscoverSection;
use crate::config::sections::pools::sleep::SleepSection;
use crate::config::sections::secret_ref::SecretRef;
use crate::config::syntax::named::NamedEntries;
use crate::config::syntax::units::Span;
use crate::engines::EngineKind;

/// Replicas that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::pool)]
pub struct PoolSection {
    /// Software that the pool's replicas run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// Models that the pool serves: a list of names, or a map from the public name to the engine's
    /// own. Without the engine's own name, an engine is sent the public name; TGI is sent `tgi`.
    pub models: ServedModels,
    /// LoRA adapters that the pool's engines compute on top of one of `models`: a list of names, or
    /// a map from the public name to the engine's own. Each adapter is a model of its own for
    /// clients. A request for an adapter waits for a replica that has the adapter loaded only while
    /// the wait costs less than loading.
    #[serde(skip_serializing_if = "ServedModels::is_empty")]
    pub adapters: ServedModels,
    /// LoRA adapters that an engine of the pool computes with at once (`--max-loras`). Absent =
    /// what the engine reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub adapter_slots: Option<u32>,
    /// Time that an engine of the pool takes to load a LoRA adapter into a slot. Absent = the
    /// gateway measures the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter_load: Option<Span>,
    /// Replicas of the pool: base URLs such as `http://10.0.0.5:8000`, without `/v1`, or sections
    /// with `url` and what differs from the pool.
    pub replicas: Vec<ReplicaSection>,
    /// Source of more replicas of the pool, beside or in place of `replicas`: exactly one of `dns`,
    /// `file` and `kubernetes`. While the source cannot be asked, its last answer holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discover: Option<DiscoverSection>,
    /// Expected time of a start of the pool when the pool has no replica: from the first request
    /// that is held to its first token. After the first start, the measured time counts. With
    /// `cold_start`, `replicas` may be empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<Span>,
    /// Whether the addresses in `replicas` stay while nothing runs there, such as a Service that
    /// something else scales to zero. When none of the replicas answers, the pool has to start, and
    /// requests are held for the start.
    pub scales_to_zero: bool,
    /// Least number of replicas that the scale signal asks for, whatever the demand.
    pub min_replicas: u32,
    /// Largest number of replicas that the scale signal asks for. Demand beyond the number goes to
    /// the next pool that may serve the demand. Absent = no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_replicas: Option<u32>,
    /// Rules by which idle replicas of the pool sleep. Absent = the gateway puts none to sleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep: Option<SleepSection>,
    /// Sequences that each replica of the pool can run at once (`--max-num-seqs`). Absent = the
    /// gateway learns the number from what the engine reports and does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_seqs: Option<u32>,
    /// Tokens that the KV cache of each replica holds. Absent = the engine's report counts; without a
    /// report, the gateway does not bound what the cache must hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub kv_tokens: Option<u64>,
    /// Context window of the pool's engines in tokens (`--max-model-len`); longer prompts go to
    /// other pools. A model's own `max_model_len` counts where it is smaller. Absent = unknown:
    /// prompts of any length may go to the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_model_len: Option<u32>,
    /// What one replica of the pool costs for an hour, in any one currency. Absent = unknown, which
    /// counts as more than any price.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub price: Option<f64>,
    /// Kind of capacity of the pool: whether its machines may be taken back at short notice.
    pub capacity: CapacityName,
    /// How each replica of the pool has its accelerator: `dedicated`, `mig` or `mig:PROFILE` (such
    /// as `mig:1g.10gb`), `mps`, `time-sliced`.
    #[schemars(regex(pattern = r"^(dedicated|mig(:.+)?|mps|time-sliced)$"))]
    pub isolation: String,
    /// Kind of the pool's accelerators, as a label for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// Region of the pool, as a label for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Zone of the pool in its region, as a label for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// More labels of the pool for people, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Requests that may wait inside each engine of the pool, beyond the engine's limit of
    /// sequences.
    pub engine_buffer: u32,
    /// Whether each request tells its engine the rank of its class as `priority`. For vLLM with
    /// `--scheduling-policy priority`, which then serves lower ranks first.
    pub engine_priority: bool,
    /// Secret that the gateway sends to the pool's engines as `Authorization: Bearer`. Absent = the
    /// gateway sends no credential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// TLS of connections to the pool's engines, whose URLs must then all be `https`. Absent = an
    /// engine behind `https` must have a certificate that the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTlsSection>,
    /// Time between two scrapes of an engine's own metrics, at least 100 ms.
    pub scrape_interval: Span,
}

impl Default for PoolSection {
    fn default() -> Self {
        Self {
            engine: None,
            models: ServedModels::default(),
            adapters: ServedModels::default(),
            adapter_slots: None,
            adapter_load: None,
            replicas: Vec::new(),
            discover: None,
            cold_start: None,
            scales_to_zero: false,
            min_replicas: 0,
            max_replicas: None,
            sleep: None,
            max_seqs: None,
            kv_tokens: None,
            max_model_len: None,
            price: None,
            capacity: CapacityName::default(),
            isolation: "dedicated".to_owned(),
            accelerator: None,
            region: None,
            zone: None,
            labels: BTreeMap::new(),
            engine_buffer: 0,
            engine_priority: false,
            api_key: None,
            tls: None,
            scrape_interval: Span::secs(2),
        }
    }
}

/// The models of a pool.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ServedModels {
    /// Public names.
    Names(Vec<String>),
    /// Public names with the engine's own.
    Renamed(NamedEntries<String>),
}

impl ServedModels {
    /// Whether it names none.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Names(names) => names.is_empty(),
            Self::Renamed(names) => names.is_empty(),
        }
    }
}

impl Default for ServedModels {
    fn default() -> Self {
        Self::Names(Vec::new())
    }
}

impl<'de> Deserialize<'de> for ServedModels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModelsVisitor;
        impl<'de> Visitor<'de> for ModelsVisitor {
            type Value = ServedModels;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of model names, or a map from public names to the engine's own")
            }

            fn visit_unit<E: Error>(self) -> Result<ServedModels, E> {
                Ok(ServedModels::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<ServedModels, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(ServedModels::Names)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ServedModels, A::Error> {
                NamedEntries::deserialize(MapAccessDeserializer::new(map)).map(ServedModels::Renamed)
            }
        }
        deserializer.deserialize_any(ModelsVisitor)
    }
}

/// One replica: a URL, or a URL with what differs from its pool.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ReplicaSection {
    /// The URL alone.
    Url(String),
    /// The URL and more.
    Detailed(ReplicaDetail),
}

/// One replica with what differs from its pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::reached)]
pub struct ReplicaDetail {
    /// Base URL of the replica, such as `http://10.0.0.5:8000`, without `/v1`.
    pub url: String,
    /// Sequences that this replica can run at once. Absent = `max_seqs` of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_seqs: Option<u32>,
    /// Tokens that the KV cache of this replica holds. Absent = `kv_tokens` of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub kv_tokens: Option<u64>,
    /// URL of the replica's metrics, where the metrics have a port of their own (Triton):
    /// `http://10.0.0.5:8002/metrics`. Absent = the metrics are at the replica's `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_url: Option<String>,
}

impl ReplicaSection {
    /// The replica with every field.
    pub fn detail(&self) -> ReplicaDetail {
        match self {
            Self::Url(url) => ReplicaDetail { url: url.clone(), ..ReplicaDetail::default() },
            Self::Detailed(detail) => detail.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for ReplicaSection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ReplicaVisitor;
        impl<'de> Visitor<'de> for ReplicaVisitor {
            type Value = ReplicaSection;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a URL, or a map with `url`")
            }

            fn visit_str<E: Error>(self, url: &str) -> Result<ReplicaSection, E> {
                Ok(ReplicaSection::Url(url.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ReplicaSection, A::Error> {
                ReplicaDetail::deserialize(MapAccessDeserializer::new(map)).map(ReplicaSection::Detailed)
            }
        }
        deserializer.deserialize_any(ReplicaVisitor)
    }
}
