//! Bounded GET of an engine's document.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Response};

use crate::config::secret::Secret;
use crate::tls;

/// Bytes of an answer beyond which it is not read on.
pub const MAX_ANSWER: usize = 4 << 20;

/// Unused connections are closed before uvicorn does it (after 5 s).
const KEEP_ALIVE: Duration = Duration::from_secs(4);

/// What went wrong with a question to a replica. It holds no text from
/// outside: no URL, no key, nothing that the replica sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FetchError {
    /// No whole answer in time.
    #[error("no whole answer in time")]
    Timeout,
    /// The connection was refused or failed (name, network, TLS).
    #[error("no connection")]
    Connect,
    /// The connection broke before the answer was whole.
    #[error("the connection broke before the answer was whole")]
    Broken,
    /// The question could not be sent; its URL or API key is not valid.
    #[error("the URL or the API key cannot be sent; check `url` and `api_key`")]
    Unsendable,
    /// A redirect; none is followed, because the key would go with it.
    #[error("a redirect ({0}), which is not followed")]
    Redirect(u16),
    /// Another status than the one that was hoped for.
    #[error("status {0}")]
    Status(u16),
    /// More than 4 MiB.
    #[error("more than 4 MiB")]
    TooLarge,
    /// Not the format that was asked for.
    #[error("the answer is not what was asked for")]
    NotUnderstood,
}

impl FetchError {
    /// Whether something was there that answered, in whatever way.
    #[must_use]
    pub const fn answers(self) -> bool {
        !matches!(self, Self::Timeout | Self::Connect)
    }

    /// A short stable name for logs and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connect => "connect",
            Self::Broken => "broken",
            Self::Unsendable => "unsendable",
            Self::Redirect(_) => "redirect",
            Self::Status(_) => "status",
            Self::TooLarge => "too_large",
            Self::NotUnderstood => "not_understood",
        }
    }
}

/// Why no client could be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up TLS: no trusted certificates found; install the system's CA certificates")]
pub struct NoTls;

/// Asks replicas.
#[derive(Debug)]
pub(super) struct ReplicaClient {
    pooled: Client,
    fresh: Client,
}

impl ReplicaClient {
    /// `needs_tls`: without trusted certificates it fails; otherwise it goes
    /// without, and an `https` URL that comes later meets `Trouble::Connect`.
    pub(super) fn new(needs_tls: bool) -> Result<Self, NoTls> {
        tls::install_provider();
        let pooled = || base().pool_idle_timeout(KEEP_ALIVE).pool_max_idle_per_host(1);
        let fresh = || base().pool_max_idle_per_host(0);
        Ok(Self { pooled: build(pooled, needs_tls)?, fresh: build(fresh, needs_tls)? })
    }

    /// The body of a 2xx answer to a GET.
    pub(super) async fn body(
        &self,
        url: &str,
        key: Option<&Secret>,
        limit: Duration,
    ) -> Result<Vec<u8>, FetchError> {
        let whole = async {
            let answer = send(&self.pooled, url, key).await?;
            match answer.status() {
                status if status.is_success() => read(answer).await,
                status if status.is_redirection() => Err(FetchError::Redirect(status.as_u16())),
                status => Err(FetchError::Status(status.as_u16())),
            }
        };
        tokio::time::timeout(limit, whole).await.unwrap_or(Err(FetchError::Timeout))
    }

    /// Whether a POST without a body is answered with 2xx, over a connection of
    /// its own, in time.
    pub(super) async fn post(
        &self,
        url: &str,
        key: Option<&Secret>,
        limit: Duration,
    ) -> Result<(), FetchError> {
        let mut request = self.fresh.post(url);
        if let Some(key) = key {
            request = request.bearer_auth(key.expose());
        }
        let answer = tokio::time::timeout(limit, request.send()).await.map_err(|_| FetchError::Timeout)?;
        match answer.map_err(|error| problem(&error))?.status() {
            status if status.is_success() => Ok(()),
            status => Err(FetchError::Status(status.as_u16())),
        }
    }

    /// The status of the answer to a GET over a connection of its own: one
    /// from before may outlive the listener. The caller limits the time.
    pub(super) async fn status(&self, url: &str, key: Option<&Secret>) -> Result<u16, FetchError> {
        Ok(send(&self.fresh, url, key).await?.status().as_u16())
    }
}

fn base() -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .http1_only()
        .user_agent(concat!("penstock/", env!("CARGO_PKG_VERSION")))
}

fn build(builder: impl Fn() -> ClientBuilder, needs_tls: bool) -> Result<Client, NoTls> {
    builder().build().or_else(|_| {
        if needs_tls {
            return Err(NoTls);
        }
        builder().tls_certs_only([]).build().map_err(|_| NoTls)
    })
}

async fn send(client: &Client, url: &str, key: Option<&Secret>) -> Result<Response, FetchError> {
    let mut request = client.get(url);
    if let Some(key) = key {
        request = request.bearer_auth(key.expose());
    }
    request.send().await.map_err(|error| problem(&error))
}

async fn read(mut answer: Response) -> Result<Vec<u8>, FetchError> {
    if answer.content_length().is_some_and(|length| length > MAX_ANSWER as u64) {
        return Err(FetchError::TooLarge);
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| problem(&error))? {
        if body.len() + chunk.len() > MAX_ANSWER {
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
