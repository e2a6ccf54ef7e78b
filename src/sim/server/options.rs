//! Start options of a simulated engine.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::engine::EngineOptions;
use crate::engine::profile::StepProfile;

/// Engine whose API the server imitates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerDialect {
    /// vLLM 0.32.
    #[default]
    Vllm,
    /// Text Generation Inference 3.
    Tgi,
}

/// Kinds of routes. A real vLLM server either generates or pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tasks {
    /// Chat, completions, responses, messages, transcription.
    Generate,
    /// Embeddings, rerank, score, pooling, classify.
    Pool,
    /// Both kinds, which no real server offers.
    #[default]
    All,
}

/// vLLM's command-line switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VllmFlags {
    /// `--enable-request-id-headers`: echo `x-request-id`.
    pub request_id_headers: bool,
    /// `--enable-prompt-tokens-details`: cached tokens in `usage`.
    pub prompt_tokens_details: bool,
    /// `--enable-force-include-usage`: usage on every event, asked for or not.
    pub force_include_usage: bool,
    /// `--enable-per-request-metrics`: `metrics` beside the usage.
    pub per_request_metrics: bool,
    /// `--enable-server-load-tracking`: without it `/load` is always 0.
    pub load_tracking: bool,
    /// `--enable-auto-tool-choice`.
    pub auto_tool_choice: bool,
    /// Whether images and audio in messages are accepted.
    pub multimodal: bool,
    /// `VLLM_SERVER_DEV_MODE=1`: pause, sleep, abort and the like.
    pub dev_mode: bool,
    /// Time that waking from sleep takes.
    pub wake_time: Duration,
    /// `--sse-keep-alive-interval`.
    pub sse_keep_alive: Option<Duration>,
    /// `--max-num-queued-reqs`: running and waiting together.
    pub max_queued_reqs: Option<u32>,
}

impl Default for VllmFlags {
    fn default() -> Self {
        Self {
            request_id_headers: false,
            prompt_tokens_details: true,
            force_include_usage: false,
            per_request_metrics: false,
            load_tracking: true,
            auto_tool_choice: false,
            multimodal: false,
            dev_mode: true,
            wake_time: Duration::ZERO,
            sse_keep_alive: None,
            max_queued_reqs: None,
        }
    }
}

/// One simulated engine.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// Address to listen on; port 0 takes a free port.
    pub listen: SocketAddr,
    pub connections: SimConnections,
    pub dialect: ServerDialect,
    /// Served model names; answers carry the first.
    pub models: Vec<String>,
    /// LoRA adapters; each is a model name of its own.
    pub loras: Vec<String>,
    pub profile: StepProfile,
    /// Limits that override the profile's.
    pub engine: EngineOptions,
    /// Context window in tokens; never more than the KV cache holds.
    pub max_model_len: u32,
    /// Model time over real time: 2 halves every latency.
    pub speed: f64,
    /// Seed of texts, output lengths and the draws of faults.
    pub seed: u64,
    /// Mean output length of requests without `ignore_eos`, in tokens. Single
    /// lengths are drawn from a geometric distribution.
    pub mean_output_tokens: u32,
    /// Key that `/v1` paths require (TGI: every work path).
    pub api_key: Option<String>,
    pub tasks: Tasks,
    pub vllm: VllmFlags,
    /// TGI: most requests inside; further ones are answered 429.
    pub max_concurrent_requests: u32,
    /// Unix time of the start, for the `created` fields.
    pub epoch: u64,
}

/// Connections of a simulated engine.
#[derive(Debug, Clone)]
pub struct SimConnections {
    /// Second address that serves `/sim/*` only and survives every fault.
    pub control: Option<SocketAddr>,
    /// Time for which an unused connection stays open.
    pub keep_alive: Duration,
    /// Most open connections; further ones wait to be accepted.
    pub max_open: usize,
}

impl Default for SimConnections {
    fn default() -> Self {
        Self { control: None, keep_alive: Duration::from_secs(5), max_open: 16_384 }
    }
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            connections: SimConnections::default(),
            dialect: ServerDialect::Vllm,
            models: vec!["sim".to_owned()],
            loras: Vec::new(),
            profile: StepProfile::tiny(),
            engine: EngineOptions::default(),
            max_model_len: 8192,
            speed: 1.0,
            seed: 0,
            mean_output_tokens: 128,
            api_key: None,
            tasks: Tasks::All,
            vllm: VllmFlags::default(),
            max_concurrent_requests: 128,
            epoch: 1_767_225_600,
        }
    }
}

impl SimOptions {
    /// The model name in answers.
    pub fn model(&self) -> &str {
        self.models.first().map_or("sim", String::as_str)
    }

    /// Every model name that requests may use.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.models.iter().chain(&self.loras).map(String::as_str)
    }

    /// The index of an adapter by its name.
    pub(crate) fn lora(&self, name: &str) -> Option<u32> {
        self.loras.iter().position(|lora| lora == name).and_then(|at| u32::try_from(at).ok())
    }

    /// The context window, at most what the KV cache can hold.
    pub(crate) fn window(&self) -> u32 {
        let kv = self.engine.kv_tokens.unwrap_or(self.profile.kv_tokens) / 16 * 16;
        self.max_model_len.clamp(1, u32::try_from(kv.max(16)).unwrap_or(u32::MAX))
    }
}
