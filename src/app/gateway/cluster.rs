//! Start of what is shared with other gateways.

use std::sync::Arc;

use crate::admin::find_request;
use crate::cluster::{self, ClusterHandle, ClusterParts, FindRequest};
use crate::config::settings::Settings;
use crate::proxy::Proxy;
use crate::scaler::SignalCache;

/// Starts to share limits, and waits a little for the first leases; `None` without `cluster`.
pub(super) async fn start_cluster(
    settings: &Settings,
    proxy: &Arc<Proxy>,
    cache: &SignalCache,
) -> Option<ClusterHandle> {
    let cluster = settings.cluster.as_ref()?;
    let parts = ClusterParts {
        dispatcher: Arc::clone(&proxy.dispatcher),
        settings: Arc::clone(&proxy.settings),
        telemetry: proxy.telemetry.clone(),
        reports: cache.shared_reports()?,
        find_request: request_finder(Arc::clone(proxy)),
    };
    let cluster = cluster::start(cluster, parts);
    cluster.ready().await;
    Some(cluster)
}

fn request_finder(proxy: Arc<Proxy>) -> Arc<FindRequest> {
    Arc::new(move |id| {
        let Proxy { telemetry, dispatcher, settings, .. } = &*proxy;
        find_request(id, telemetry, dispatcher, &settings.load().policy)
    })
}
