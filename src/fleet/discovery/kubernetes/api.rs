//! Kubernetes API client: the two requests, list and watch.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, RequestBuilder, Response};
use serde::Deserialize;
use tokio::task::spawn_blocking;

use crate::config::discover::KubernetesSource;
use crate::fleet::discovery::kubernetes::object::KubeObject;
use crate::tls;

/// File with the namespace that the program runs in. Kubernetes gives the file to every pod.
const NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for one page of a list.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit for the head of a watch's answer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time without a byte from a watch. Bookmarks arrive about once a minute.
const READ_TIMEOUT: Duration = Duration::from_secs(150);
/// Longest watch requested. API servers end a watch after some minutes.
const MAX_WATCH: Duration = Duration::from_secs(290);
/// Objects in one page of a list.
const PAGE: &str = "500";
/// Most bytes of a page; a longer page is an error.
const MAX_PAGE: usize = 64 << 20;

/// Problem of a request to the API server. The error holds no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum KubeError {
    /// There is no server to ask.
    #[error("no API server: this is not a pod of a cluster, and `server` names none")]
    NoServer,
    /// A file cannot be read.
    #[error("{0} cannot be read: {1}")]
    Unreadable(String, String),
    /// The CA's file has no certificates.
    #[error("{0} holds no certificates, or TLS cannot be set up with them")]
    NoCertificates(String),
    /// No connection, or no answer in time.
    #[error("no answer from the API server: {0}")]
    Unreachable(&'static str),
    /// The answer ended before it was whole.
    #[error("the answer broke off")]
    Broken,
    /// The requested version is too old.
    #[error("the version is too old")]
    Gone,
    /// The answer is an error.
    #[error("the API server answers {code}{}{message}", if message.is_empty() { "" } else { ": " })]
    Refused {
        code: u16,
        /// The server's own message.
        message: String,
        /// Pause that the server asks for.
        retry_after: Option<Duration>,
    },
    /// The answer is not of the requested kind.
    #[error("{0}")]
    NotUnderstood(&'static str),
    /// The slices do not name the engines' port.
    #[error("{0}")]
    NoPort(String),
}

impl KubeError {
    /// The error for a status.
    pub(super) fn of(code: u16, message: String, retry_after: Option<Duration>) -> Self {
        if code == 410 { Self::Gone } else { Self::Refused { code, message, retry_after } }
    }

    pub(super) const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Resource that is listed and watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KubeResource {
    Slices,
    Nodes,
}

#[derive(Deserialize)]
#[serde(bound = "T: serde::de::DeserializeOwned")]
pub(super) struct ListPage<T> {
    pub(super) metadata: PageMetadata,
    #[serde(default)]
    pub(super) items: Vec<T>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMetadata {
    pub(super) resource_version: String,
    /// Token of the next page; absent or empty on the last one.
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// Client for one resource, with the CA's certificates as they are now.
pub(super) struct KubeApi {
    client: Client,
    url: String,
    /// Label selector; absent = all objects.
    selector: Option<String>,
    token_file: Option<PathBuf>,
}

impl KubeApi {
    pub(super) async fn new(rules: &KubernetesSource, resource: KubeResource) -> Result<Self, KubeError> {
        let server = rules.server.as_ref().ok_or(KubeError::NoServer)?.to_string();
        let path = match resource {
            KubeResource::Slices => slices_path(rules).await?,
            KubeResource::Nodes => "/api/v1/nodes".to_owned(),
        };
        let url = format!("{}{path}", server.trim_end_matches('/'));
        tls::install_provider();
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .user_agent(concat!("penstock/", env!("CARGO_PKG_VERSION")));
        if let Some(file) = &rules.ca_file
            && url.starts_with("https:")
        {
            let nothing = || KubeError::NoCertificates(file.display().to_string());
            let pem = read_trimmed(file.clone()).await?;
            let certificates = Certificate::from_pem_bundle(pem.as_bytes()).map_err(|_| nothing())?;
            if certificates.is_empty() {
                return Err(nothing());
            }
            builder = builder.tls_certs_only(certificates);
        } else if !url.starts_with("https:") {
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|_| KubeError::NoCertificates("the system".to_owned()))?;
        let selector = (resource == KubeResource::Slices).then(|| rules.selector.clone());
        let token_file = rules.token_file.clone();
        Ok(Self { client, url, selector, token_file })
    }

    /// Requests one page of the list: the first, or the one after `after`.
    pub(super) async fn list<T: KubeObject>(&self, after: Option<&str>) -> Result<ListPage<T>, KubeError> {
        let query = [("limit", PAGE), ("continue", after.unwrap_or_default())];
        let query = if after.is_some() { &query[..] } else { &query[..1] };
        let asked = async {
            let mut answer = self.send(query).await?;
            let mut body = Vec::new();
            while let Some(chunk) = answer.chunk().await.map_err(|_| KubeError::Broken)? {
                if body.len() + chunk.len() > MAX_PAGE {
                    return Err(KubeError::NotUnderstood("the list is too long"));
                }
                body.extend_from_slice(&chunk);
            }
            serde_json::from_slice(&body).map_err(|_| KubeError::NotUnderstood(T::NO_LIST))
        };
        let late = Err(KubeError::Unreachable("no whole list in time"));
        tokio::time::timeout(LIST_TIMEOUT, asked).await.unwrap_or(late)
    }

    /// Requests the changes since `version`, for at most `rest`.
    pub(super) async fn watch(&self, version: &str, rest: Duration) -> Result<Response, KubeError> {
        let seconds = rest.min(MAX_WATCH).as_secs().max(1).to_string();
        let query = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", &seconds),
        ];
        let late = Err(KubeError::Unreachable("no head in time"));
        tokio::time::timeout(HEAD_TIMEOUT, self.send(&query)).await.unwrap_or(late)
    }

    async fn send(&self, query: &[(&str, &str)]) -> Result<Response, KubeError> {
        let mut url = self.url.clone();
        let selector = self.selector.as_deref().map(|selector| ("labelSelector", selector));
        for (at, (key, value)) in selector.into_iter().chain(query.iter().copied()).enumerate() {
            let sign = if at == 0 { '?' } else { '&' };
            url += &format!("{sign}{key}={}", percent_encode(value));
        }
        let request = self.authorized(self.client.get(url)).await?;
        let answer = request.send().await.map_err(|error| {
            KubeError::Unreachable(if error.is_connect() { "no connection" } else { "the connection broke" })
        })?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let code = answer.status().as_u16();
        let after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Err(KubeError::of(code, String::new(), after.map(Duration::from_secs)))
    }

    async fn authorized(&self, request: RequestBuilder) -> Result<RequestBuilder, KubeError> {
        Ok(match &self.token_file {
            Some(file) => request.bearer_auth(read_trimmed(file.clone()).await?),
            None => request,
        })
    }
}

async fn slices_path(rules: &KubernetesSource) -> Result<String, KubeError> {
    let namespace = match &rules.namespace {
        Some(namespace) => namespace.clone(),
        None => read_trimmed(PathBuf::from(NAMESPACE)).await?,
    };
    Ok(format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"))
}

/// Text of a small file, without leading and trailing white space.
async fn read_trimmed(path: PathBuf) -> Result<String, KubeError> {
    let shown = path.display().to_string();
    let read = spawn_blocking(move || std::fs::read_to_string(path)).await;
    let text = read.unwrap_or_else(|error| Err(io::Error::other(error)));
    text.map(|text| text.trim().to_owned()).map_err(|error| KubeError::Unreadable(shown, error.to_string()))
}

/// Percent-encoded form of a value in a query.
fn percent_encode(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    value.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
