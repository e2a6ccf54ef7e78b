//! Tokenize calls: ask an engine for the token count of a prompt. The gateway asks only for
//! requests that no limit refuses, one at a time at each replica, and under a short timeout.

use std::time::Duration;

use http::header::AUTHORIZATION;
use smallvec::SmallVec;
use tokio::time::timeout;

use crate::config::settings::Settings;
use crate::core::model::ids::{PoolId, ReplicaId};
use crate::engines::Ability;
use crate::protocol::request::edit::{RequestEdits, edit};
use crate::proxy::Proxy;
use crate::proxy::request::InferenceRequest;
use crate::proxy::upstream::bearer;

/// Timeout of a count by engines, the wait for a free replica included.
const ENGINE_PATIENCE: Duration = Duration::from_millis(500);
/// Most engines that are asked about one prompt, one after another.
const ENGINES_ASKED: usize = 2;
/// Most prompt bytes for each token of the window. Beyond that, no engine is asked: text has about
/// four bytes per token, so a longer prompt cannot fit.
const MAX_BYTES_PER_TOKEN: u64 = 64;

impl Proxy {
    /// Token count of the prompt from an engine that would serve the request. `None` if no engine
    /// answers in time, or if the count would not matter.
    pub(in crate::proxy) async fn count_at_engine(
        &self,
        settings: &Settings,
        request: &mut InferenceRequest,
        window: u64,
    ) -> Option<u64> {
        let is_refused = request.entry.refused.is_some();
        if is_refused || request.parsed.prompt_bytes() > window.saturating_mul(MAX_BYTES_PER_TOKEN) {
            return None;
        }
        request.entry.asking = None;
        let (asking, others) = self.token_counters.asked.begin(request.tenant);
        if self.dispatcher.would_refuse(&request.job(false), others) {
            return None;
        }
        request.entry.asking = Some(asking);
        let request = &*request;
        let asking = async {
            for replica in self.engines(settings, request) {
                let turn = self.token_counters.asked.turn(replica);
                let _turn = turn.acquire().await.ok()?;
                if let Some(count) = self.ask_engine(settings, request, replica).await {
                    return Some(count);
                }
            }
            None
        };
        timeout(ENGINE_PATIENCE, asking).await.ok().flatten()
    }

    /// Replicas to ask. The first replica rotates with the job id.
    fn engines(
        &self,
        settings: &Settings,
        request: &InferenceRequest,
    ) -> SmallVec<[ReplicaId; ENGINES_ASKED]> {
        let pools = settings.policy.models.get(request.model()).map(|row| row.pools.as_slice());
        let can_count = |pool: &PoolId| {
            settings.edge.pools.get(*pool).is_some_and(|pool| pool.engine.can(Ability::Tokenize))
        };
        let replicas: SmallVec<[ReplicaId; 16]> = pools
            .unwrap_or_default()
            .iter()
            .filter(|pool| can_count(pool))
            .filter_map(|pool| settings.policy.pools.get(*pool))
            .flat_map(|pool| pool.replicas.iter().copied())
            .filter(|replica| !settings.policy.draining.contains(replica))
            .collect();
        let first = request.id.index() % replicas.len().max(1);
        replicas.iter().cycle().skip(first).take(replicas.len().min(ENGINES_ASKED)).copied().collect()
    }

    async fn ask_engine(
        &self,
        settings: &Settings,
        request: &InferenceRequest,
        replica: ReplicaId,
    ) -> Option<u64> {
        let at = settings.edge.replicas.get(replica)?;
        let pool = settings.edge.pools.get(at.pool)?;
        let name = pool.model_names.get(&request.model())?;
        // `/tokenize` ignores the other fields and takes one prompt at a time.
        let edits = RequestEdits { model: Some(name), ..RequestEdits::default() };
        let body =
            (request.parsed.prompts == 1).then(|| edit(&request.body.bytes, &request.parsed, &edits))?;
        let mut headers = request.headers.clone();
        headers.extend(bearer(pool).map(|bearer| (AUTHORIZATION, bearer)));
        self.upstreams.replica(replica, at, pool).count_tokens(&headers, body, &settings.edge.upstream).await
    }
}
