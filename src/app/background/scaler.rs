//! Start of the scaler: its demand source, its listener and its peers.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::app::gateway::certificates::certificate_source;
use crate::app::gateway::start_error::StartError;
use crate::config::discover::DnsSource;
use crate::config::settings::Settings;
use crate::config::settings::scale::{PeerAddress, PeerSettings};
use crate::fleet::discovery::addresses;
use crate::proxy::Proxy;
use crate::scaler::{self, DemandSource, PeerRules, ScalerHandle, ScalerListener, SignalCache};
use crate::tls::Handshakes;

/// Starts the scaler.
///
/// # Errors
/// The scaler's address cannot be bound, or a thread cannot be started.
pub(in crate::app) fn start(
    now: &Settings,
    proxy: &Arc<Proxy>,
    cache: Arc<SignalCache>,
    tasks: &mut JoinSet<()>,
) -> Result<ScalerHandle, StartError> {
    let limits = &now.startup.listener;
    let listener = now.scale.listen.map(|address| ScalerListener {
        address,
        tls: certificate_source(&proxy.settings, |listeners| &listeners.scale),
        handshakes: Handshakes::new(limits.max_address_handshakes, limits.handshake_timeout),
        first_call_timeout: limits.head_timeout,
    });
    let address = listener.as_ref().map(|listener| listener.address);
    let source = DemandSource::new(Arc::clone(&proxy.dispatcher), Arc::clone(&proxy.settings));
    scaler::start(cache, source, listener, peers(now, proxy, tasks)).map_err(|problem| match address {
        Some(address) => StartError::Scale { address, problem },
        None => StartError::ScaleThread(problem),
    })
}

/// Places of the peers, and the settings of connections to them; absent without `scale.peers`, and where the
/// store of `cluster` carries the reports.
fn peers(now: &Settings, proxy: &Arc<Proxy>, tasks: &mut JoinSet<()>) -> Option<PeerRules> {
    let peers = now.scale.peers.as_ref().filter(|_| now.cluster.is_none())?;
    let places = match &peers.named {
        None => watch::Sender::new(Some(peers.listed.clone())).subscribe(),
        Some(dns) => {
            let (found, places) = watch::channel(None);
            tasks.spawn(follow(peers.clone(), dns.clone(), found));
            places
        }
    };
    Some(PeerRules { places, settings: Arc::clone(&proxy.settings) })
}

/// Publishes the places of all peers whenever DNS answers.
async fn follow(peers: PeerSettings, dns: DnsSource, found: watch::Sender<Option<BTreeSet<PeerAddress>>>) {
    let certified = peers.tls.as_ref().map(|_| dns.name.trim_end_matches('.').to_owned());
    let place = |(host, port): (IpAddr, u16)| PeerAddress {
        host: host.to_string(),
        port,
        certified: certified.clone(),
    };
    let tell = |addresses: Vec<(IpAddr, u16)>| {
        let all = addresses.into_iter().map(place).chain(peers.listed.iter().cloned()).collect();
        found.send_replace(Some(all));
    };
    addresses::follow(&dns, tell).await;
}
