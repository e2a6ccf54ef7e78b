//! Engine spec: everything that one kind of engine does in its own way.

use crate::engines::gauges::EngineGauges;
use crate::engines::info::{InfoError, ModelInfo, read_models};

/// State of the LoRA adapters at an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineAdapters {
    /// Adapters that the engine computes with at once, at least 1.
    pub slots: Option<u32>,
    /// Engine names of the adapters that run requests now.
    pub running: Vec<String>,
}

/// Parts of an error message that stand together, lower case.
pub(super) type Wording = &'static [&'static str];

/// One kind of engine.
#[derive(Debug)]
pub struct EngineSpec {
    /// Name in the configuration and in telemetry.
    pub name: &'static str,
    /// Path of the Prometheus text; `None` = none is known.
    pub metrics_path: Option<&'static str>,
    /// Documents about the engine and its models.
    pub info: &'static [InfoDocument],
    /// Readiness paths, tried in order until one does not answer 404.
    pub ready_paths: &'static [&'static str],
    pub ready: ReadyStatus,
    /// Calls that put the engine to sleep and wake it; `None` = the engine cannot sleep.
    pub sleep: Option<SleepCalls>,
    pub abilities: &'static [Ability],
    /// Name of a pool's models at the engine when the configuration gives none; `None` = the public
    /// name.
    pub default_model: Option<&'static str>,
    /// Wordings by which the engine refuses a request that is longer than its context window.
    pub too_long: &'static [Wording],
    /// Wordings of its answers while it shuts down.
    pub draining: &'static [&'static str],
    /// Reads the state of LoRA adapters from a metrics answer.
    pub adapters: Option<fn(&str) -> Option<EngineAdapters>>,
    /// Reads the gauges of a metrics answer; `None` when it has no sample.
    pub read: fn(&str) -> Option<EngineGauges>,
}

/// Something that some kinds of engines do and others do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// Goes on with an answer that another engine began.
    Continue,
    /// Orders its queue by the request's `priority`.
    Priority,
    /// Separates its prefix cache by the request's `cache_salt`.
    CacheSalt,
    /// Counts the tokens of a prompt (`/tokenize`).
    Tokenize,
    /// Refuses a limit on output that alone is more than its context window. Others lower the limit.
    CheckMaxTokens,
    /// Answers with as many choices as `n` asks for. Others answer with one.
    ManyChoices,
    /// Refuses requests for names that it does not list. For others, a name missing from the list
    /// has no meaning.
    ListAllNames,
    /// Reports how many sequences it runs at once.
    ReportSlots,
    /// Serves its metrics on the port of its API.
    MetricsOnApiPort,
}

impl EngineSpec {
    pub fn can(&self, ability: Ability) -> bool {
        self.abilities.contains(&ability)
    }

    /// Reads a metrics answer; `None` when it has no sample. A metric that is missing or invalid is
    /// `None`, never 0.
    pub fn gauges(&self, text: &str) -> Option<EngineGauges> {
        (self.read)(text)
    }

    /// Whether `status` of a readiness path means ready.
    pub fn is_ready(&self, status: u16) -> bool {
        match self.ready {
            ReadyStatus::Success => (200..300).contains(&status),
            ReadyStatus::NotServerError => status < 500,
        }
    }
}

/// Statuses of a readiness path that mean ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadyStatus {
    /// 2xx.
    Success,
    /// Any answer but 5xx. A bare TCP connection is not enough: the kernel
    /// accepts it for a process that hangs.
    NotServerError,
}

/// Calls that put an engine to sleep and wake it: POST requests without a body.
#[derive(Debug)]
pub struct SleepCalls {
    /// Path that puts the engine to sleep.
    pub sleep: &'static str,
    /// Path that wakes the engine.
    pub wake: &'static str,
    /// Path that tells whether the engine sleeps.
    pub state: &'static str,
    /// Reads the answer of `state`: whether the engine sleeps.
    pub read: fn(&[u8]) -> Option<bool>,
}

/// A document about the engine and its models.
#[derive(Debug)]
pub struct InfoDocument {
    pub path: &'static str,
    /// Reads the document into the model info.
    ///
    /// # Errors
    /// The body is not the expected document.
    pub read: fn(&[u8], &mut ModelInfo) -> Result<(), InfoError>,
}

/// `/v1/models`, which every engine here has.
pub(super) const MODELS: InfoDocument = InfoDocument { path: "/v1/models", read: read_models };
