//! Client addresses: whose connection one is, and how many connections each address has.

mod proxy_protocol;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::settings::{ListenerLimits, ProxyHeader, TrustedProxies};
use crate::proxy::listener::client_address::proxy_protocol::BadProxyHeader;
use crate::tls::{AddressLimit, AddressPermit};

/// Load balancers, and the places of each client address.
pub(super) struct ClientAddresses {
    proxies: TrustedProxies,
    places: Arc<AddressLimit>,
    header_timeout: Duration,
}

pub(super) enum ConnectionOwner {
    /// One address, which holds a place.
    Client(AddressPermit),
    /// A load balancer, whose connections carry requests of many clients.
    Shared,
    /// The client that the PROXY header will name.
    InHeader,
}

/// Reason why a connection is closed before its first byte is read as HTTP or TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionDenied {
    /// Its address has too many connections.
    TooMany,
    /// It is a load balancer's, and begins with no PROXY header.
    ProxyHeader,
}

impl ConnectionDenied {
    /// Stable name for logs and metric labels.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::TooMany => "address",
            Self::ProxyHeader => "proxy_header",
        }
    }
}

impl ClientAddresses {
    pub(super) fn new(limits: &ListenerLimits) -> Self {
        Self {
            proxies: limits.proxies.clone(),
            places: AddressLimit::new(limits.max_address_connections),
            header_timeout: limits.head_timeout,
        }
    }

    /// Owner of a new connection from `peer`.
    pub(super) fn owner(&self, peer: IpAddr) -> Result<ConnectionOwner, ConnectionDenied> {
        if self.proxies.trusts(peer, ProxyHeader::ProxyProtocol) {
            return Ok(ConnectionOwner::InHeader);
        }
        if self.proxies.trusts(peer, ProxyHeader::ForwardedFor) {
            return Ok(ConnectionOwner::Shared);
        }
        self.places.try_enter(peer).map(ConnectionOwner::Client).ok_or(ConnectionDenied::TooMany)
    }

    /// Finds the client: reads the PROXY header where there is to be one. A load balancer that speaks
    /// for itself is a client of its own address.
    pub(super) async fn find_client(
        &self,
        owner: ConnectionOwner,
        stream: &mut TcpStream,
        peer: SocketAddr,
    ) -> Result<(SocketAddr, Option<AddressPermit>), ConnectionDenied> {
        match owner {
            ConnectionOwner::Client(place) => Ok((peer, Some(place))),
            ConnectionOwner::Shared => Ok((peer, None)),
            ConnectionOwner::InHeader => {
                let header = timeout(self.header_timeout, proxy_protocol::read(stream)).await;
                let named = header.unwrap_or(Err(BadProxyHeader));
                let client = named.map_err(|BadProxyHeader| ConnectionDenied::ProxyHeader)?.unwrap_or(peer);
                let place = self.places.try_enter(client.ip()).ok_or(ConnectionDenied::TooMany)?;
                Ok((client, Some(place)))
            }
        }
    }
}
