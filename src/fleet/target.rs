//! Replica target: the URLs and the key with which one replica is asked.

use std::time::Duration;

use http::Uri;

use crate::config::secret::Secret;
use crate::config::settings::Settings;
use crate::config::settings::identity::ClientTls;
use crate::core::model::ids::{ModelId, ReplicaId};
use crate::engines::{EngineKind, EngineSpec};

/// Everything that the tasks of a replica need to know. A reload that changes the target starts the
/// tasks anew.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReplicaTarget {
    pub(super) replica: ReplicaId,
    pub(super) key: Option<Secret>,
    /// TLS of connections to it; absent = what the system trusts.
    pub(super) tls: Option<ClientTls>,
    pub(super) interval: Duration,
    /// URL of the metrics; absent when the engine has none.
    pub(super) metrics: Option<String>,
    /// The engine's names of the models that the configuration gives the replica.
    pub(super) models: Vec<String>,
    /// Names of the models that are adapters, each with its public model.
    pub(super) adapters: Vec<(String, ModelId)>,
    engine: EngineKind,
    base: String,
}

/// Replicas that are scraped at the same instant.
const REPLICAS_AT_ONCE: usize = 4;
/// Shortest time between two scrapes.
const MIN_SCRAPE_INTERVAL: Duration = Duration::from_millis(10);

impl ReplicaTarget {
    pub(super) fn all(settings: &Settings) -> impl Iterator<Item = Self> {
        settings.edge.replicas.iter().filter_map(|(replica, ..)| Self::of(settings, replica))
    }

    /// Target of one replica; absent when the replica is not configured.
    pub(super) fn of(settings: &Settings, replica: ReplicaId) -> Option<Self> {
        let row = settings.edge.replicas.get(replica)?;
        let pool = settings.edge.pools.get(row.pool)?;
        let metrics = pool.engine.spec().metrics_path.map(|path| match &row.metrics_url {
            Some(own) if own.path().len() > 1 => own.to_string(),
            Some(own) => join(own, path),
            None => join(&row.url, path),
        });
        let adapters = pool.adapters.iter().filter_map(|id| Some((pool.model_names.get(id)?.clone(), *id)));
        Some(Self {
            replica,
            key: pool.api_key.clone(),
            tls: pool.tls.clone(),
            interval: pool.scrape_interval.max(MIN_SCRAPE_INTERVAL),
            metrics,
            models: pool.model_names.values().cloned().collect(),
            adapters: adapters.collect(),
            engine: pool.engine,
            base: join(&row.url, ""),
        })
    }

    pub(super) fn engine(&self) -> &'static EngineSpec {
        self.engine.spec()
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Whether it needs certificates that the system trusts.
    pub(super) fn needs_tls(&self) -> bool {
        let mut urls = self.metrics.iter().chain([&self.base]);
        self.tls.is_none() && urls.any(|url| url.starts_with("https:"))
    }

    /// Delay of the first scrape after the start, within the interval. The golden ratio spreads the
    /// replicas evenly, however many there are; a few are scraped at once, so that an idle gateway wakes
    /// once for all of them.
    pub(super) fn first_scrape_delay(&self) -> Duration {
        const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
        let batch = self.replica.index() / REPLICAS_AT_ONCE;
        let turns = GOLDEN_RATIO.wrapping_mul(batch as u64) >> 32;
        self.interval.mul_f64(f64::from(u32::try_from(turns).unwrap_or(0)) / 4_294_967_296.0)
    }
}

fn join(base: &Uri, path: &str) -> String {
    format!("{}{path}", base.to_string().trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(index: u32) -> ReplicaTarget {
        ReplicaTarget {
            replica: ReplicaId::new(index),
            key: None,
            tls: None,
            interval: Duration::from_secs(10),
            metrics: None,
            models: Vec::new(),
            adapters: Vec::new(),
            engine: EngineKind::Vllm,
            base: String::new(),
        }
    }

    #[test]
    fn replicas_are_spread_over_the_interval_in_batches() {
        for index in 0..4 {
            assert_eq!(target(index).first_scrape_delay(), Duration::ZERO);
        }
        let mut offsets: Vec<f64> =
            (0..40).map(|index| target(index).first_scrape_delay().as_secs_f64()).collect();
        offsets.sort_by(f64::total_cmp);
        assert!(offsets.iter().all(|offset| (0.0..10.0).contains(offset)));
        assert!(offsets.windows(5).all(|batch| batch[4] - batch[0] > 0.3), "{offsets:?}");
    }

    #[test]
    fn a_path_is_joined_with_one_slash() {
        let join = |base: &str| join(&base.parse().unwrap(), "/metrics");
        assert_eq!(join("http://a:1"), "http://a:1/metrics");
        assert_eq!(join("http://a:1/"), "http://a:1/metrics");
        assert_eq!(join("http://a:1/engine"), "http://a:1/engine/metrics");
    }
}
