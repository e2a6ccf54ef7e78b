//! Model list cache: the bodies of `GET /v1/models`. Callers who may use the same models share
//! one body, so that a long list is made once a second, however many read it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::config::settings::Settings;
use crate::config::settings::identity::Grant;
use crate::core::model::ids::{ModelId, TenantId};
use crate::core::model::time::Tick;

/// Age at which a body is made again: context windows that engines report may have changed.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Bodies that are held.
const MAX_BODIES: usize = 16;

#[derive(Debug, Default)]
pub struct ModelListCache {
    bodies: Mutex<Vec<ModelListBody>>,
}

#[derive(Debug)]
struct ModelListBody {
    generation: u64,
    tenant: TenantId,
    models: Option<Arc<BTreeSet<ModelId>>>,
    made: Tick,
    text: Bytes,
}

impl ModelListCache {
    /// The body for callers with this grant; `make` makes it if none is there.
    pub(super) fn body(
        &self,
        settings: &Settings,
        grant: &Grant,
        now: Tick,
        make: impl FnOnce() -> Bytes,
    ) -> Bytes {
        let generation = settings.policy.generation;
        let is_theirs = |body: &ModelListBody| {
            body.generation == generation && body.tenant == grant.tenant && body.models == grant.models
        };
        let is_new = |body: &ModelListBody| now.since(body.made) < MAX_AGE;
        if let Some(body) = self.bodies.lock().iter().find(|body| is_theirs(body) && is_new(body)) {
            return body.text.clone();
        }
        // Not under the lock: two callers may make the same body.
        let text = make();
        let mut bodies = self.bodies.lock();
        bodies.retain(|body| is_new(body) && !is_theirs(body));
        if bodies.len() == MAX_BODIES {
            bodies.remove(0);
        }
        let (tenant, models) = (grant.tenant, grant.models.clone());
        bodies.push(ModelListBody { generation, tenant, models, made: now, text: text.clone() });
        text
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::load;

    const FILE: &str = "version: 1\nauth: {mode: off}\npools: {p: {engine: vllm, models: [m], replicas: ['http://127.0.0.1:1']}}\n";

    #[test]
    fn callers_with_the_same_grant_share_a_body_for_a_second() {
        let settings = load::load_str(FILE, "test", Path::new("."), None).into_result().unwrap().settings;
        let cache = ModelListCache::default();
        let at = Tick::from_millis;
        let body = |grant: &Grant, now, text: &'static str| {
            cache.body(&settings, grant, now, || Bytes::from_static(text.as_bytes()))
        };
        let all = Grant::whole(TenantId::from(0));
        let none = Grant { models: Some(Arc::default()), ..all.clone() };
        assert_eq!(body(&all, at(0), "first"), "first");
        assert_eq!(body(&none, at(1), "none"), "none");
        assert_eq!(body(&all, at(999), "second"), "first");
        assert_eq!(body(&all, at(1_000), "second"), "second");
        assert_eq!(body(&none, at(1_000), "other"), "none");
        let mut newer = settings.clone();
        Arc::make_mut(&mut newer.policy).generation += 1;
        let reloaded = cache.body(&newer, &all, at(1_000), || Bytes::from_static(b"reloaded"));
        assert_eq!(reloaded, "reloaded");
        for tenant in 0..100_usize {
            body(&Grant::whole(TenantId::from(tenant)), at(1_500), "many");
        }
        assert_eq!(cache.bodies.lock().len(), MAX_BODIES);
    }
}
