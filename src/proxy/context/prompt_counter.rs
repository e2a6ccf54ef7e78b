//! Prompt counter: estimates, tokenizers and questions to engines.

use std::sync::Arc;

use dashmap::DashMap;
use smallvec::SmallVec;

use crate::core::model::ids::{ModelId, PoolId};
use crate::core::model::time::Tick;
use crate::proxy::context::tokenize_requests::TokenizeRequests;
use crate::proxy::request::InferenceRequest;
use crate::tokens::ratio::TokenRatios;
use crate::tokens::threads::CountingThreads;

/// Token counting of prompts, with its caches.
#[derive(Debug, Default)]
pub struct PromptCounter {
    /// Threads that run the tokenizers.
    pub threads: CountingThreads,
    /// Ratios of counted tokens to estimated tokens, by model and tenant.
    pub ratios: Arc<TokenRatios>,
    /// Tokenize calls that run now.
    pub(in crate::proxy) asked: Arc<TokenizeRequests>,
    pub(super) windows: DashMap<ModelId, (Tick, PoolWindows)>,
}

impl PromptCounter {
    /// Key of the token ratios of the request's model and tenant.
    pub(in crate::proxy) fn ratio_key(order: &InferenceRequest) -> (u32, u32) {
        let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
        (number(order.spec.model.index()), number(order.spec.tenant.index()))
    }
}

/// Context windows that engines report, by pool. `None` = unknown.
pub(super) type PoolWindows = Arc<SmallVec<[(PoolId, Option<u32>); 4]>>;
