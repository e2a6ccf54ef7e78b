//! DNS resolver: the system's, or one for configured servers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{RData, RecordType};

use crate::config::discover::{DnsRecords, DnsSource, MAX_REPLICAS};
use crate::fleet::discovery::dns::DnsAnswer;

/// Limit for one attempt; there are two.
const TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 2;
/// Hosts of SRV records that are resolved at the same time.
const CONCURRENT_LOOKUPS: usize = 16;
/// Time for which an empty answer stays in force when it has no TTL.
const NEGATIVE_TTL: Duration = Duration::from_secs(5);

/// Resolver of one name.
pub(super) struct SystemResolver {
    dns: DnsSource,
}

/// Records of one DNS answer, and their TTL.
struct ResolvedNames {
    data: Vec<RData>,
    ttl: Duration,
}

impl SystemResolver {
    pub(super) const fn new(dns: DnsSource) -> Self {
        Self { dns }
    }

    /// Resolves the name once. The system's servers are looked up each time, because they may
    /// change.
    ///
    /// # Errors
    /// The problem as text for people.
    pub(super) async fn ask(&self) -> Result<DnsAnswer, String> {
        let resolver = self.resolver().map_err(|error| error.to_string())?;
        match self.dns.records {
            DnsRecords::A => {
                let (hosts, ttl) = addresses(&resolver, &self.dns.name).await?;
                Ok(DnsAnswer {
                    addresses: hosts.into_iter().map(|host| (host, self.dns.port)).collect(),
                    ttl,
                })
            }
            DnsRecords::Srv => services(&resolver, &self.dns.name).await,
        }
    }

    fn resolver(&self) -> Result<TokioResolver, NetError> {
        let mut builder = if self.dns.servers.is_empty() {
            TokioResolver::builder_tokio()?
        } else {
            let servers = self.dns.servers.iter().map(|server| name_server(*server)).collect();
            let config = ResolverConfig::from_name_servers(servers);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        let options: &mut ResolverOpts = builder.options_mut();
        // The source keeps the answer for its TTL, so the resolver needs no cache.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        (options.timeout, options.attempts) = (TIMEOUT, ATTEMPTS);
        builder.build()
    }
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let at = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let ways = vec![at(ConnectionConfig::udp()), at(ConnectionConfig::tcp())];
    NameServerConfig::new(address.ip(), true, ways)
}

/// Addresses of a name, IPv4 and IPv6. A failure of the IPv6 request alone is ignored when there
/// are IPv4 addresses.
async fn addresses(resolver: &TokioResolver, name: &str) -> Result<(Vec<IpAddr>, Duration), String> {
    let (four, six) =
        tokio::join!(records(resolver, name, RecordType::A), records(resolver, name, RecordType::AAAA));
    let mut found = four?;
    match six {
        Ok(six) => {
            // The TTL of a family without addresses does not apply to the other family.
            found.ttl = match (found.data.is_empty(), six.data.is_empty()) {
                (true, false) => six.ttl,
                (false, true) => found.ttl,
                _ => found.ttl.min(six.ttl),
            };
            found.data.extend(six.data);
        }
        Err(why) if found.data.is_empty() => return Err(why),
        Err(_) => {}
    }
    let address = |data: &RData| match data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    };
    Ok((found.data.iter().filter_map(address).collect(), found.ttl))
}

/// Hosts and ports of a service, from the records with the lowest priority number.
async fn services(resolver: &TokioResolver, name: &str) -> Result<DnsAnswer, String> {
    let found = records(resolver, name, RecordType::SRV).await?;
    let service = |data: &RData| match data {
        RData::SRV(srv) => Some((srv.priority, (srv.target.to_string(), srv.port))),
        _ => None,
    };
    let services: Vec<_> = found.data.iter().filter_map(service).collect();
    let first = services.iter().map(|(priority, _)| *priority).min();
    let targets: BTreeSet<(String, u16)> =
        services.into_iter().filter(|(priority, _)| Some(*priority) == first).map(|(_, host)| host).collect();
    let asked = stream::iter(targets.into_iter().take(MAX_REPLICAS)).map(|(host, port)| async move {
        let (hosts, ttl) = addresses(resolver, &host).await?;
        Ok::<_, String>((hosts.into_iter().map(move |host| (host, port)).collect::<Vec<_>>(), ttl))
    });
    let hosts: Vec<(Vec<_>, Duration)> = asked.buffer_unordered(CONCURRENT_LOOKUPS).try_collect().await?;
    let ttl = hosts.iter().map(|(_, ttl)| *ttl).chain([found.ttl]).min().unwrap_or(found.ttl);
    Ok(DnsAnswer { addresses: hosts.into_iter().flat_map(|(hosts, _)| hosts).collect(), ttl })
}

/// Records of a name; empty when there are none or no such name.
async fn records(resolver: &TokioResolver, name: &str, kind: RecordType) -> Result<ResolvedNames, String> {
    match resolver.lookup(name, kind).await {
        Ok(found) => {
            let ttl = found.answers().iter().map(|record| record.ttl).min().unwrap_or(0);
            let data = found.answers().iter().filter(|record| record.record_type() == kind);
            Ok(ResolvedNames {
                data: data.map(|record| record.data.clone()).collect(),
                ttl: Duration::from_secs(ttl.into()),
            })
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(none)))
            if matches!(none.response_code, ResponseCode::NXDomain | ResponseCode::NoError) =>
        {
            let ttl = none.negative_ttl.map_or(NEGATIVE_TTL, |ttl| Duration::from_secs(ttl.into()));
            Ok(ResolvedNames { data: Vec::new(), ttl })
        }
        Err(error) => Err(error.to_string()),
    }
}
