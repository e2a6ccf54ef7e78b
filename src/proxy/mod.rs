//! Request path: everything between a client's socket and an engine's.

pub mod body;
pub mod context;
pub mod handler;
pub mod listener;
pub mod shadow;
pub mod upstream;

mod active_request;
mod attempt;
pub mod relay;
mod request;
mod response;
mod summary;

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio_util::task::TaskTracker;

use crate::auth::Authenticator;
use crate::config::settings::Settings;
use crate::dispatcher::Dispatcher;
use crate::fleet::view::FleetView;
use crate::protocol::request::prefix::PrefixHasher;
use crate::proxy::body::BodyMemory;
use crate::proxy::context::prompt_counter::PromptCounter;
use crate::proxy::relay::engine_signals::EngineSignals;
use crate::proxy::relay::memory::AnswerMemory;
use crate::proxy::request::superseding::LiveRequests;
use crate::proxy::response::caller_status::cache::CallerStatusCache;
use crate::proxy::response::models_api::cache::ModelListCache;
use crate::proxy::shadow::copies::ShadowCopies;
use crate::proxy::upstream::Upstreams;
use crate::proxy::upstream::guardrails::Guardrails;
use crate::telemetry::Telemetry;
use crate::usage::Journal;

/// The request path: everything that requests share.
pub struct Proxy {
    pub dispatcher: Arc<Dispatcher>,
    /// Settings in force.
    pub settings: Arc<ArcSwap<Settings>>,
    pub authenticator: Authenticator,
    pub upstreams: Upstreams,
    /// The service that may refuse prompts and answers.
    pub guardrails: Guardrails,
    pub memory: EdgeMemory,
    /// Tasks that read streams from engines.
    pub pumps: TaskTracker,
    pub telemetry: Telemetry,
    /// Token counting of prompts.
    pub token_counters: Arc<PromptCounter>,
    /// State that the engines report.
    pub engines: Arc<FleetView>,
    /// Live requests that a client's retry may supersede.
    pub live_requests: Arc<LiveRequests>,
    /// Hasher of prompt prefixes.
    pub prefixes: PrefixHasher,
    /// Inter-token latency of the replicas' streams.
    pub engine_signals: Arc<EngineSignals>,
    /// Shadow copies that run now.
    pub shadow_copies: Arc<ShadowCopies>,
    /// Answers that need no engine, shared by callers.
    pub cached: CachedAnswers,
    /// Usage journal. `None` = usage is not recorded.
    pub journal: Option<Journal>,
}

/// Answers that need no engine. Callers who ask at the same time share the work.
#[derive(Debug, Default)]
pub struct CachedAnswers {
    /// What `GET /v1/me` answers from.
    pub caller_status: CallerStatusCache,
    /// What `GET /v1/models` answers.
    pub model_lists: ModelListCache,
}

/// Memory that clients' bytes take, each with its bounds.
#[derive(Debug, Default)]
pub struct EdgeMemory {
    /// Request bodies that are held.
    pub bodies: Arc<BodyMemory>,
    /// Answers that wait for their clients.
    pub answers: Arc<AnswerMemory>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("dispatcher", &self.dispatcher).finish_non_exhaustive()
    }
}
