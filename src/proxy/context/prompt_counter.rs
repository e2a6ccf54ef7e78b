//! Prompt counter: estimates, tokenizers and questions to engines.

use std::sync::Arc;

use dashmap::DashMap;
use smallvec::SmallVec;
use tokio::sync::Semaphore;

use crate::core::model::ids::{ModelId, PoolId, ReplicaId, TenantId};
use crate::core::model::time::Tick;
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
    pub(super) windows: DashMap<ModelId, ReportedWindows>,
}

/// Context windows of a model's pools, as the engines reported them.
#[derive(Debug)]
pub(super) struct ReportedWindows {
    pub(super) at: Tick,
    pub(super) pools: PoolWindows,
}

/// Context windows that engines report, by pool. `None` = unknown.
pub(super) type PoolWindows = Arc<SmallVec<[(PoolId, Option<u32>); 4]>>;

/// Replicas that count a prompt now, at most one prompt each, and the requests that are being counted.
#[derive(Debug, Default)]
pub(in crate::proxy) struct TokenizeRequests {
    /// Semaphore of each replica that was ever asked, with one permit.
    turns: DashMap<ReplicaId, Arc<Semaphore>>,
    /// Requests of each tenant between the tokenize call and admission.
    counted: DashMap<TenantId, u64>,
}

/// Guard of a request whose prompt an engine counts or has counted. The guard lives until the
/// request is admitted or refused.
#[derive(Debug)]
pub(in crate::proxy) struct TokenizeGuard {
    asked: Arc<TokenizeRequests>,
    tenant: TenantId,
}

impl TokenizeRequests {
    /// Registers a request of the tenant. Returns the number of requests registered before.
    pub(super) fn begin(self: &Arc<Self>, tenant: TenantId) -> (TokenizeGuard, u64) {
        let mut counted = self.counted.entry(tenant).or_default();
        let others = *counted;
        *counted += 1;
        drop(counted);
        (TokenizeGuard { asked: Arc::clone(self), tenant }, others)
    }

    pub(super) fn turn(&self, replica: ReplicaId) -> Arc<Semaphore> {
        let turn = self.turns.entry(replica).or_insert_with(|| Arc::new(Semaphore::new(1)));
        Arc::clone(&turn)
    }
}

impl Drop for TokenizeGuard {
    fn drop(&mut self) {
        self.asked.counted.remove_if_mut(&self.tenant, |_, counted| {
            *counted -= 1;
            *counted == 0
        });
    }
}
