//! Target of the load: addresses and request bodies.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Uri};
use serde_json::json;
use tokio::net::lookup_host;

/// Arguments shared by all commands that send requests.
#[derive(Debug, Clone, Args)]
pub struct TargetArgs {
    /// Base URL of the gateway or engine, such as http://127.0.0.1:8080.
    #[arg(long)]
    pub url: String,
    /// API key, sent as a bearer token.
    #[arg(long)]
    pub key: Option<String>,
    /// Model to ask for.
    #[arg(long)]
    pub model: String,
    /// Bytes of the prompt text.
    #[arg(long, default_value_t = 2048)]
    pub prompt_bytes: usize,
    /// Value of max_tokens; absent = none is sent.
    #[arg(long)]
    pub max_tokens: Option<u32>,
}

/// Where requests go.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Address to connect to.
    pub address: SocketAddr,
    path: Uri,
    host: HeaderValue,
}

impl Endpoint {
    /// Resolves a base URL, with or without `/v1`; `call` is the path after
    /// `/v1/`, such as `chat/completions`.
    ///
    /// # Errors
    /// When the URL is not `http://host[:port][/path]`, or its host does not
    /// resolve.
    pub async fn new(url: &str, call: &str) -> Result<Self> {
        let (authority, path) = split_url(url, call)?;
        let port = authority.port_u16().unwrap_or(80);
        let name = authority.host().trim_matches(['[', ']']);
        let address = lookup_host((name, port))
            .await
            .with_context(|| format!("cannot resolve {name}"))?
            .next()
            .with_context(|| format!("{name} has no address"))?;
        let host = HeaderValue::try_from(authority.as_str()).context("the host cannot stand in a header")?;
        Ok(Endpoint { address, path, host })
    }

    /// The same server with another path, such as `/sim/faults`.
    ///
    /// # Errors
    /// When it is no path.
    pub fn with_path(self, path: &str) -> Result<Self> {
        let path = path.parse().with_context(|| format!("{path} is not a path"))?;
        Ok(Endpoint { path, ..self })
    }

    /// The value of the `Host` header.
    pub fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// A GET.
    pub fn get(&self) -> Request<Full<Bytes>> {
        let mut request = self.request(None, Bytes::new());
        *request.method_mut() = hyper::Method::GET;
        request
    }

    /// A POST of a JSON body.
    pub fn request(&self, key: Option<&HeaderValue>, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = self.path.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = key {
            headers.insert(AUTHORIZATION, key.clone());
        }
        request
    }
}

/// The header of an API key.
///
/// # Errors
/// When it has a character that no header may have.
pub fn bearer(key: &str) -> Result<HeaderValue> {
    HeaderValue::try_from(format!("Bearer {key}")).context("the key cannot stand in a header")
}

/// A resolved target with its requests written out.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where to.
    pub endpoint: Endpoint,
    key: Option<HeaderValue>,
    plain: Bytes,
    stream: Bytes,
}

impl Target {
    /// Resolves the URL and prepares both request bodies.
    ///
    /// # Errors
    /// When the URL is not `http://host[:port][/path]`, its host does not
    /// resolve, or the key cannot stand in a header.
    pub async fn new(args: &TargetArgs) -> Result<Self> {
        Ok(Target {
            endpoint: Endpoint::new(&args.url, "chat/completions").await?,
            key: args.key.as_deref().map(bearer).transpose()?,
            plain: body(args, false),
            stream: body(args, true),
        })
    }

    /// One request, ready to send.
    pub fn request(&self, stream: bool) -> Request<Full<Bytes>> {
        let body = if stream { &self.stream } else { &self.plain };
        self.endpoint.request(self.key.as_ref(), body.clone())
    }

    /// The head and the body of one request as they go over the wire.
    pub fn wire(&self, stream: bool) -> (Vec<u8>, Bytes) {
        let body = if stream { self.stream.clone() } else { self.plain.clone() };
        let mut head = format!("POST {} HTTP/1.1\r\nhost: ", self.endpoint.path).into_bytes();
        head.extend_from_slice(self.endpoint.host.as_bytes());
        if let Some(key) = &self.key {
            head.extend_from_slice(b"\r\nauthorization: ");
            head.extend_from_slice(key.as_bytes());
        }
        let rest = format!("\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        head.extend_from_slice(rest.as_bytes());
        (head, body)
    }
}

fn split_url(url: &str, call: &str) -> Result<(hyper::http::uri::Authority, Uri)> {
    let parsed: Uri = url.parse().with_context(|| format!("--url {url} is not a URL"))?;
    let parts = parsed.into_parts();
    let Some(authority) = parts.authority.filter(|_| parts.scheme.as_ref().is_some_and(|s| s == "http"))
    else {
        bail!("--url {url} must look like http://host:port (TLS is not supported)");
    };
    let prefix = parts.path_and_query.as_ref().map_or("", |path| path.path()).trim_end_matches('/');
    let prefix = prefix.strip_suffix("/v1").unwrap_or(prefix);
    let path = format!("{prefix}/v1/{call}").parse().context("--url has an odd path")?;
    Ok((authority, path))
}

fn body(args: &TargetArgs, stream: bool) -> Bytes {
    let text: String =
        "The gate meters water into the turbine. ".chars().cycle().take(args.prompt_bytes).collect();
    let mut body = json!({"model": args.model, "messages": [{"role": "user", "content": text}]});
    if let Some(most) = args.max_tokens {
        body["max_tokens"] = most.into();
    }
    if stream {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
    }
    Bytes::from(body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(url: &str) -> TargetArgs {
        let key = Some("k".to_owned());
        TargetArgs { url: url.to_owned(), key, model: "m".to_owned(), prompt_bytes: 100, max_tokens: Some(4) }
    }

    #[test]
    fn urls_with_and_without_a_path() {
        let path = |url: &str| split_url(url, "chat/completions").map(|(_, path)| path.to_string()).ok();
        assert_eq!(path("http://h:1").as_deref(), Some("/v1/chat/completions"));
        assert_eq!(path("http://h:1/v1/").as_deref(), Some("/v1/chat/completions"));
        assert_eq!(path("http://h/a/b").as_deref(), Some("/a/b/v1/chat/completions"));
        assert_eq!(path("https://h"), None);
        assert_eq!(path("h:1"), None);
    }

    #[tokio::test]
    async fn wire_form_matches_the_body() {
        let target = Target::new(&args("http://127.0.0.1:9")).await.expect("target");
        let (head, body) = target.wire(true);
        let head = String::from_utf8(head).expect("text");
        assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:9\r\n"), "{head}");
        assert!(head.contains("\r\nauthorization: Bearer k\r\n"), "{head}");
        assert!(head.ends_with(&format!("content-length: {}\r\n\r\n", body.len())), "{head}");
        let json: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(json["stream"], true);
        assert_eq!(json["max_tokens"], 4);
        assert_eq!(json["messages"][0]["content"].as_str().map(str::len), Some(100));
    }
}
