//! Asking engines how many tokens a prompt has: only for requests that no limit
//! refuses, one at a time at each replica, and within a short time.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use serde::Deserialize;
use smallvec::SmallVec;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::config::settings::Settings;
use crate::core::model::ids::{PoolId, ReplicaId, TenantId};
use crate::engines::Ability;
use crate::protocol::headers;
use crate::protocol::request::edit::{RequestEdits, edit};
use crate::proxy::attempt::{bearer, whole_body};
use crate::proxy::handler::Proxy;
use crate::proxy::request::InferenceRequest;
use crate::proxy::upstream::UpstreamCall;

/// How long an engine may take to count a prompt, the wait for its turn included.
const ENGINE_PATIENCE: Duration = Duration::from_millis(500);
/// The longest count of an engine that is read, in bytes: it lists the tokens.
const MAX_COUNT_BYTES: u64 = 16 << 20;
/// Engines that are asked, one after another.
const ENGINES_ASKED: usize = 2;
/// Bytes of a prompt for each token of the window beyond which no engine is
/// asked: text has about four, and who sends more means something else.
const ABSURD_BYTES: u64 = 64;

/// Engines that count a prompt just now, and requests that are being counted.
#[derive(Debug, Default)]
pub(in crate::proxy) struct TokenizeRequests {
    /// One turn for each replica that was ever asked.
    turns: DashMap<ReplicaId, Arc<Semaphore>>,
    /// Requests of a tenant between the question and their admission.
    counted: DashMap<TenantId, u64>,
}

/// A request whose prompt an engine counts or has counted, until it is admitted
/// or refused.
#[derive(Debug)]
pub(in crate::proxy) struct TokenizeGuard {
    asked: Arc<TokenizeRequests>,
    tenant: TenantId,
}

impl TokenizeRequests {
    /// One more request of the tenant; with the number of those before it.
    fn begin(self: &Arc<Self>, tenant: TenantId) -> (TokenizeGuard, u64) {
        let mut counted = self.counted.entry(tenant).or_default();
        let others = *counted;
        *counted += 1;
        drop(counted);
        (TokenizeGuard { asked: Arc::clone(self), tenant }, others)
    }

    fn turn(&self, replica: ReplicaId) -> Arc<Semaphore> {
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

impl Proxy {
    /// The prompt's tokens by the word of an engine that would serve it; `None`
    /// where none says it in time, or where the answer would not matter.
    pub(in crate::proxy) async fn count_at_engine(
        &self,
        settings: &Settings,
        order: &mut InferenceRequest,
        window: u64,
        client: &HeaderMap,
    ) -> Option<u64> {
        if order.peek.prompt_bytes() > window.saturating_mul(ABSURD_BYTES) {
            return None;
        }
        order.asking = None;
        let (asking, others) = self.token_counters.asked.begin(order.spec.tenant);
        if self.dispatcher.surely_refuses(&order.spec, others) {
            return None;
        }
        order.asking = Some(asking);
        let order = &*order;
        let asking = async {
            for replica in self.engines(settings, order) {
                let turn = self.token_counters.asked.turn(replica);
                let _turn = turn.acquire().await.ok()?;
                if let Some(count) = self.ask_engine(settings, order, replica, client).await {
                    return Some(count);
                }
            }
            None
        };
        timeout(ENGINE_PATIENCE, asking).await.ok().flatten()
    }

    /// Some engines that can be asked, another one first each time.
    fn engines(&self, settings: &Settings, order: &InferenceRequest) -> SmallVec<[ReplicaId; ENGINES_ASKED]> {
        let pools = settings.policy.models.get(order.spec.model).map(|row| row.pools.as_slice());
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
        let first = order.spec.id.index() % replicas.len().max(1);
        replicas.iter().cycle().skip(first).take(replicas.len().min(ENGINES_ASKED)).copied().collect()
    }

    async fn ask_engine(
        &self,
        settings: &Settings,
        order: &InferenceRequest,
        replica: ReplicaId,
        client: &HeaderMap,
    ) -> Option<u64> {
        #[derive(Deserialize)]
        struct TokenizeAnswer {
            count: u64,
        }
        let at = settings.edge.replicas.get(replica)?;
        let pool = settings.edge.pools.get(at.pool)?;
        let name = pool.model_names.get(&order.spec.model)?;
        // It does not read the other fields, and knows one prompt at a time.
        let edits = RequestEdits { model: Some(name), ..RequestEdits::default() };
        let body = (order.peek.prompts == 1).then(|| edit(&order.body, &order.peek, &edits))?;
        let mut headers = headers::upstream_headers(client);
        headers.extend(bearer(pool).map(|bearer| (AUTHORIZATION, bearer)));
        let call = UpstreamCall { method: Method::POST, path: "/tokenize", headers: &headers, body };
        let sent = self.upstreams.replica(replica, at).send(&call, &settings.edge.upstream).await.ok()?;
        if !sent.exchange.head.status.is_success() {
            return None;
        }
        let answer = whole_body(sent.exchange, MAX_COUNT_BYTES).await.ok()?;
        serde_json::from_slice(&answer).ok().map(|TokenizeAnswer { count }| count)
    }
}
