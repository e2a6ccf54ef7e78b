//! Bounded GET of an engine's document.

use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::HOST;
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Method, RequestBuilder, Response, Url};
use rustls::ClientConfig;
use tokio::net::lookup_host;

use crate::config::secret::Secret;
use crate::config::settings::identity::ClientTls;
use crate::tls;

/// Most bytes of an answer; a longer answer is an error.
pub const MAX_BODY: usize = 4 << 20;

/// Unused connections are closed after 4 s, before uvicorn closes them (after 5 s).
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Problem of a request to a replica. The error holds no text from outside: no URL, no key, nothing
/// that the replica sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FetchError {
    /// The whole answer did not arrive in time.
    #[error("no whole answer in time")]
    Timeout,
    /// The connection was refused or failed (name, network, TLS).
    #[error("no connection")]
    Connect,
    /// The connection broke before the answer was complete.
    #[error("the connection broke before the answer was whole")]
    Broken,
    /// The request could not be sent, because its URL or API key is not valid.
    #[error("the URL or the API key cannot be sent; check `url` and `api_key`")]
    Unsendable,
    /// The answer is a redirect. No redirect is followed, because the key would go with it.
    #[error("a redirect ({0}), which is not followed")]
    Redirect(u16),
    /// The answer has a status other than 2xx.
    #[error("status {0}")]
    Status(u16),
    /// The answer is longer than 4 MiB.
    #[error("more than 4 MiB")]
    TooLarge,
    /// The answer is not in the expected format.
    #[error("the answer is not what was asked for")]
    Malformed,
}

impl FetchError {
    /// Whether the replica answered in any way.
    pub const fn is_answered(self) -> bool {
        !matches!(self, Self::Timeout | Self::Connect)
    }

    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connect => "connect",
            Self::Broken => "broken",
            Self::Unsendable => "unsendable",
            Self::Redirect(_) => "redirect",
            Self::Status(_) => "status",
            Self::TooLarge => "too_large",
            Self::Malformed => "not_understood",
        }
    }
}

/// Reason why no client could be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up TLS: no trusted certificates found; install the system's CA certificates")]
pub struct NoTrustedCertificates;

/// HTTP client for requests to replicas.
#[derive(Debug)]
pub(crate) struct ReplicaClient {
    pooled: Client,
    fresh: Client,
    alias: Option<HostAlias>,
}

/// The server name of a replica that is not the host of its URL. Requests go to the host under the
/// name, because reqwest takes the server name from the URL.
#[derive(Debug, Clone)]
struct HostAlias {
    name: Arc<str>,
    host: String,
}

impl HostAlias {
    /// The URL under the name, and the host and port that it had. `None` for other hosts.
    fn renamed(&self, url: &str) -> Option<(Url, String)> {
        let mut url: Url = url.parse().ok()?;
        if url.scheme() != "https" || url.host_str() != Some(&self.host) {
            return None;
        }
        let authority = url.authority().to_owned();
        url.set_host(Some(&self.name)).ok()?;
        Some((url, authority))
    }
}

impl Resolve for HostAlias {
    fn resolve(&self, name: Name) -> Resolving {
        let host = if name.as_str() == &*self.name { &self.host } else { name.as_str() };
        let host = host.trim_matches(['[', ']']).to_owned();
        Box::pin(async move {
            let found: Vec<_> = lookup_host((host.as_str(), 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

impl ReplicaClient {
    /// Makes the client. Without the system's trusted certificates, the call fails if `needs_tls`.
    /// Otherwise the client trusts no certificate, and a later `https` URL fails with
    /// [`FetchError::Connect`].
    pub(crate) fn new(needs_tls: bool) -> Result<Self, NoTrustedCertificates> {
        tls::install_provider();
        let pooled = || base().pool_idle_timeout(IDLE_TIMEOUT).pool_max_idle_per_host(1);
        let fresh = || base().pool_max_idle_per_host(0);
        Ok(Self { pooled: build(pooled, needs_tls)?, fresh: build(fresh, needs_tls)?, alias: None })
    }

    /// Makes the client of the replica at `url`, which has TLS of its own.
    pub(crate) fn with_tls(tls: &ClientTls, url: &str) -> Option<Self> {
        let url: Url = url.parse().ok()?;
        let host = url.host_str()?.to_owned();
        let alias = tls.server_name.clone().map(|name| HostAlias { name, host });
        let builder = || {
            let builder = base().tls_backend_preconfigured(ClientConfig::clone(&tls.config));
            alias.iter().fold(builder, |builder, alias| builder.dns_resolver(Arc::new(alias.clone())))
        };
        let pooled = builder().pool_idle_timeout(IDLE_TIMEOUT).pool_max_idle_per_host(1);
        let fresh = builder().pool_max_idle_per_host(0);
        Some(Self { pooled: pooled.build().ok()?, fresh: fresh.build().ok()?, alias: alias.clone() })
    }

    fn request(&self, client: &Client, method: Method, url: &str, key: Option<&Secret>) -> RequestBuilder {
        let request = match self.alias.as_ref().and_then(|alias| alias.renamed(url)) {
            Some((url, host)) => client.request(method, url).header(HOST, host),
            None => client.request(method, url),
        };
        match key {
            Some(key) => request.bearer_auth(key.expose()),
            None => request,
        }
    }

    /// The body of a 2xx answer to a GET.
    pub(crate) async fn get(
        &self,
        url: &str,
        key: Option<&Secret>,
        limit: Duration,
    ) -> Result<Vec<u8>, FetchError> {
        let whole = async {
            let answer = self.request(&self.pooled, Method::GET, url, key).send().await;
            let answer = answer.map_err(|error| problem(&error))?;
            match answer.status() {
                status if status.is_success() => read(answer).await,
                status if status.is_redirection() => Err(FetchError::Redirect(status.as_u16())),
                status => Err(FetchError::Status(status.as_u16())),
            }
        };
        tokio::time::timeout(limit, whole).await.unwrap_or(Err(FetchError::Timeout))
    }

    /// Sends a POST without a body over a new connection. Succeeds when a 2xx answer arrives within
    /// `limit`.
    pub(super) async fn post(
        &self,
        url: &str,
        key: Option<&Secret>,
        limit: Duration,
    ) -> Result<(), FetchError> {
        let request = self.request(&self.fresh, Method::POST, url, key);
        let answer = tokio::time::timeout(limit, request.send()).await.map_err(|_| FetchError::Timeout)?;
        match answer.map_err(|error| problem(&error))?.status() {
            status if status.is_success() => Ok(()),
            status => Err(FetchError::Status(status.as_u16())),
        }
    }

    /// Answer to a GET over a new connection: a kept connection may outlive the listener. The caller
    /// limits the time.
    pub(crate) async fn get_fresh(&self, url: &str, key: Option<&Secret>) -> reqwest::Result<Response> {
        self.request(&self.fresh, Method::GET, url, key).send().await
    }

    /// Status of that answer.
    pub(super) async fn get_status(&self, url: &str, key: Option<&Secret>) -> Result<u16, FetchError> {
        Ok(self.get_fresh(url, key).await.map_err(|error| problem(&error))?.status().as_u16())
    }
}

fn base() -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .http1_only()
        .user_agent(concat!("penstock/", env!("CARGO_PKG_VERSION")))
}

fn build(builder: impl Fn() -> ClientBuilder, needs_tls: bool) -> Result<Client, NoTrustedCertificates> {
    builder().build().or_else(|_| {
        if needs_tls {
            return Err(NoTrustedCertificates);
        }
        builder().tls_certs_only([]).build().map_err(|_| NoTrustedCertificates)
    })
}

async fn read(mut answer: Response) -> Result<Vec<u8>, FetchError> {
    if answer.content_length().is_some_and(|length| length > MAX_BODY as u64) {
        return Err(FetchError::TooLarge);
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| problem(&error))? {
        if body.len() + chunk.len() > MAX_BODY {
            return Err(FetchError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn problem(error: &reqwest::Error) -> FetchError {
    if error.is_builder() {
        FetchError::Unsendable
    } else if error.is_connect() {
        FetchError::Connect
    } else {
        FetchError::Broken
    }
}
