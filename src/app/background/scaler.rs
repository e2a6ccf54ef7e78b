//! Puts the scale signal together: from the gate to the board, from the board
//! to KEDA and to the admin port.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::app::gateway::hooks;
use crate::app::gateway::start_error::StartError;
use crate::config::discover::DnsSource;
use crate::config::settings::Settings;
use crate::config::settings::scale::{PeerPlace, PeerSettings};
use crate::core::autoscale::demand_report::{DemandReport, PeerDemand};
use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::fleet::discovery::addresses;
use crate::proxy::handler::Proxy;
use crate::scaler::{self, DemandFeed, PeerRules, ScaleHandle, ScaleListener, SignalCache};
use crate::telemetry::event::HandshakeFailed;
use crate::tls::{CertificateNames, Handshakes};

/// The gate as the board sees it.
struct FromGate(Arc<Proxy>);

impl FromGate {
    fn named(&self, needs: Vec<ReplicaDemand>) -> Vec<(String, ReplicaDemand)> {
        let policy = &self.0.settings.load().policy;
        let named = needs.into_iter().filter(|need| policy.pools.get(need.pool).is_some());
        named.map(|need| (policy.pools.name(need.pool).to_owned(), need)).collect()
    }
}

impl DemandFeed for FromGate {
    fn needs(&self) -> Vec<(String, ReplicaDemand)> {
        let needs = self.0.gate.needs();
        self.named(needs)
    }

    fn needs_with(&self, others: &PeerDemand) -> Vec<(String, ReplicaDemand)> {
        let needs = self.0.gate.needs_with(others);
        self.named(needs)
    }

    fn outlook(&self) -> DemandReport {
        self.0.gate.outlook()
    }

    fn is_draining(&self) -> bool {
        self.0.grace.is_draining()
    }

    fn expect_arrival(&self) {
        self.0.gate.expect_arrival();
    }

    fn arrival(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.0.gate.next_arrival())
    }
}

/// Starts the scaler.
///
/// # Errors
/// Its address cannot be had.
pub(in crate::app) fn start(
    now: &Settings,
    proxy: &Arc<Proxy>,
    board: Arc<SignalCache>,
    tasks: &mut JoinSet<()>,
) -> Result<ScaleHandle, StartError> {
    let listener = now.scale.listen.map(|address| {
        let (door, rules, telemetry) =
            (&now.startup.door, Arc::clone(&proxy.settings), proxy.telemetry.clone());
        ScaleListener {
            address,
            tls: hooks::scale_tls(&proxy.settings),
            handshakes: Handshakes::new(door.max_handshakes, door.handshake_timeout),
            allows: Box::new(move |names| is_allowed(&rules.load(), names)),
            failed: Box::new(move |reason| HandshakeFailed { listener: "scale", reason }.emit(&telemetry)),
        }
    });
    let address = listener.as_ref().map(|listener| listener.address);
    let feed = Arc::new(FromGate(Arc::clone(proxy)));
    scaler::start(board, feed, listener, peers(now, proxy, tasks)).map_err(|problem| match address {
        Some(address) => StartError::Scale { address, problem },
        None => StartError::ScaleThread(problem),
    })
}

/// Where the other gateways are, and what connections to them are made with.
fn peers(now: &Settings, proxy: &Arc<Proxy>, tasks: &mut JoinSet<()>) -> Option<PeerRules> {
    let peers = now.scale.peers.as_ref()?;
    let places = match &peers.named {
        None => watch::Sender::new(Some(peers.listed.clone())).subscribe(),
        Some(dns) => {
            let (found, places) = watch::channel(None);
            tasks.spawn(follow(peers.clone(), dns.clone(), found));
            places
        }
    };
    let settings = Arc::clone(&proxy.settings);
    let tls = move || Some(Arc::clone(&settings.load().scale.peers.as_ref()?.tls.as_ref()?.config));
    Some(PeerRules { places, tls: Box::new(tls) })
}

/// Tells of all places whenever the name leads elsewhere.
async fn follow(peers: PeerSettings, dns: DnsSource, found: watch::Sender<Option<BTreeSet<PeerPlace>>>) {
    let certified = peers.tls.as_ref().map(|_| dns.name.trim_end_matches('.').to_owned());
    let place = |(host, port): (IpAddr, u16)| PeerPlace {
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

fn is_allowed(settings: &Settings, names: Option<&CertificateNames>) -> bool {
    let Some(allowed) = &settings.scale.names else { return true };
    names.is_some_and(|names| names.iter().any(|name| allowed.contains(name)))
}
