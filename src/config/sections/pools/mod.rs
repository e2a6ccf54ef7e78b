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
    /// The software that runs there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// The models it serves: a list of names, or a map from the public name
    /// to the engine's own. A name without the engine's own is sent as it is;
    /// TGI is told `tgi`.
    pub models: ServedModels,
    /// LoRA adapters that its engines compute on top of one of those models, each
    /// a model of its own for clients: a list of names, or a map from the public
    /// name to the engine's own. A request for one goes where it is loaded, as
    /// far as that is worth it.
    #[serde(skip_serializing_if = "ServedModels::is_empty")]
    pub adapters: ServedModels,
    /// Adapters that an engine computes with at once (`--max-loras`); absent =
    /// what the engine says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub adapter_slots: Option<u32>,
    /// How long an engine takes to load an adapter into a slot; absent =
    /// measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter_load: Option<Span>,
    /// Its replicas: base URLs such as `http://10.0.0.5:8000`, without `/v1`.
    pub replicas: Vec<ReplicaSection>,
    /// Where more replicas come from, beside or instead of `replicas`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discover: Option<DiscoverSection>,
    /// How long it is expected to take to start when it has no replica, from the
    /// first request that is held for it to its first token; after the first start
    /// what was measured counts. With it `replicas` may be empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<Span>,
    /// Whether its `replicas` are addresses that stay while nothing runs there, such
    /// as a Service that something else scales to zero: when none of them answers,
    /// the pool has to start and requests are held for it.
    pub scales_to_zero: bool,
    /// Replicas that the scale signal asks for at least, whatever is asked of them.
    pub min_replicas: u32,
    /// The most that it asks for; absent = as many as are needed. What needs more
    /// goes to the next pool that may serve it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_replicas: Option<u32>,
    /// When its idle replicas sleep; absent = the gateway puts none to sleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep: Option<SleepSection>,
    /// Sequences that each replica can run at once (`--max-num-seqs`);
    /// absent = learned from the engine and from what it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_seqs: Option<u32>,
    /// Tokens that each replica's KV cache holds; absent = learned.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub kv_tokens: Option<u64>,
    /// Context window of its engines in tokens (`--max-model-len`); absent =
    /// unknown. A model's own window counts where it is smaller.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_model_len: Option<u32>,
    /// What one replica costs for an hour, in any one currency; absent =
    /// unknown, which counts as more than any price.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub price: Option<f64>,
    /// Whether its machines may be taken back at short notice.
    pub capacity: CapacityName,
    /// How each replica has its accelerator: `dedicated`, `mig` or
    /// `mig:PROFILE` (`mig:1g.10gb`), `mps`, `time-sliced`.
    #[schemars(regex(pattern = r"^(dedicated|mig(:.+)?|mps|time-sliced)$"))]
    pub isolation: String,
    /// The kind of accelerator, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// Where it is, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Where in its region it is, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Whatever else is to be known of it, for people.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Requests that may wait inside each engine beyond its sequence limit.
    pub engine_buffer: u32,
    /// Whether each request tells its engine the rank of its class as its
    /// `priority`. For vLLM with `--scheduling-policy priority`, which then
    /// serves lower ranks first.
    pub engine_priority: bool,
    /// Sent to its engines as `Authorization: Bearer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// TLS of connections to its engines, whose URLs are then all `https`; absent = an
    /// engine behind `https` must have a certificate that the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTlsSection>,
    /// Time between two scrapes of an engine's own view.
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
    #[must_use]
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
    /// Base URL such as `http://10.0.0.5:8000`, without `/v1`.
    pub url: String,
    /// Sequences it can run at once, instead of the pool's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_seqs: Option<u32>,
    /// Tokens its KV cache holds, instead of the pool's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub kv_tokens: Option<u64>,
    /// Where its metrics are when they have a port of their own (Triton):
    /// `http://10.0.0.5:8002/metrics`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_url: Option<String>,
}

impl ReplicaSection {
    /// The replica with every field.
    #[must_use]
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
