//! Client of a gateway's admin port.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use reqwest::{Certificate, Client, Identity, RequestBuilder, Response, StatusCode};
use serde_json::Value;

use crate::cli::operate::{AccessArgs, AdminArgs};
use crate::config::secret::{MachineSecrets, Secret, SecretSource as _};
use crate::tls;

/// Default address of the admin port.
const DEFAULT_ADDRESS: &str = "http://127.0.0.1:8081";
/// Environment variable with another address.
const ADDRESS_VARIABLE: &str = "PENSTOCK_ADMIN";
/// Environment variable with an operator's token.
const TOKEN_VARIABLE: &str = "PENSTOCK_ADMIN_TOKEN";
/// Limit for a whole answer that is not a stream.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence of a stream, which shows every 10 s that it lives.
const SILENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct AdminClient {
    base: String,
    http: Client,
    token: Option<Secret>,
}

impl AdminClient {
    /// # Errors
    /// TLS cannot be set up, or a file cannot be read.
    pub(super) fn new(args: &AdminArgs) -> anyhow::Result<Self> {
        tls::install_provider();
        let base = args
            .admin
            .clone()
            .or_else(|| MachineSecrets.env(ADDRESS_VARIABLE))
            .unwrap_or_else(|| DEFAULT_ADDRESS.to_owned());
        let base = base.trim_end_matches('/');
        let base = if base.contains("://") { base.to_owned() } else { format!("http://{base}") };
        let mut http = Client::builder().connect_timeout(TIMEOUT).read_timeout(SILENCE).no_proxy();
        let access = &args.access;
        if let Some(path) = &access.ca {
            let certs = Certificate::from_pem_bundle(&read(path)?);
            http =
                http.tls_certs_only(certs.with_context(|| format!("no certificate in {}", path.display()))?);
        }
        if let Some((cert, key)) = access.cert.as_ref().zip(access.key.as_ref()) {
            let pem = [read(key)?, b"\n".to_vec(), read(cert)?].concat();
            let identity = Identity::from_pem(&pem);
            http =
                http.identity(identity.context("--cert and --key are not a certificate and its key (PEM)")?);
        }
        let http = http.build().context("cannot set up TLS")?;
        Ok(Self { base, http, token: token(access)? })
    }

    /// # Errors
    /// The gateway cannot be reached, or refuses.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.answer(self.http.get(self.url(path))).await
    }

    /// # Errors
    /// The gateway cannot be reached, or refuses.
    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let request = self.http.post(self.url(path)).header("content-type", "application/json");
        self.answer(request.body(body.to_string())).await
    }

    /// Asks `/readyz`, or another URL. No token goes along: neither needs one.
    ///
    /// # Errors
    /// Nobody answers there, or the answer is not 200.
    pub(super) async fn ready(&self, url: Option<&str>) -> anyhow::Result<()> {
        let url = url.map_or_else(|| format!("{}/readyz", self.base), str::to_owned);
        let response =
            self.http.get(&url).send().await.with_context(|| format!("nobody answers at {url}"))?;
        let status = response.status();
        if status != StatusCode::OK {
            let text = response.text().await.unwrap_or_default();
            bail!("not ready: {url} answers {status} {}", text.trim());
        }
        Ok(())
    }

    fn url(&self, path: &str) -> String {
        format!("{}/admin/v1/{path}", self.base)
    }

    /// An answer that is no JSON.
    ///
    /// # Errors
    /// The gateway cannot be reached, or refuses.
    pub(super) async fn text(&self, path: &str) -> anyhow::Result<String> {
        let answer = self.send(self.http.get(self.url(path)).timeout(TIMEOUT)).await?;
        answer.text().await.with_context(|| self.unreachable())
    }

    /// An answer that comes piece by piece, without end.
    ///
    /// # Errors
    /// The gateway cannot be reached, or refuses.
    pub(super) async fn stream(&self, path: &str) -> anyhow::Result<Response> {
        self.send(self.http.get(self.url(path))).await
    }

    async fn answer(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let text = self.send(request.timeout(TIMEOUT)).await?.text().await;
        let text = text.with_context(|| self.unreachable())?;
        serde_json::from_str(&text).ok().with_context(|| self.not_penstock_message("an answer"))
    }

    /// Sends a request and checks that it succeeded.
    async fn send(&self, mut request: RequestBuilder) -> anyhow::Result<Response> {
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose());
        }
        let response = request.send().await.with_context(|| self.unreachable())?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.with_context(|| self.unreachable())?;
        let answer = serde_json::from_str::<Value>(&text)
            .ok()
            .with_context(|| self.not_penstock_message(&status.to_string()))?;
        bail!("{}", answer["error"]["message"].as_str().unwrap_or(&text));
    }

    fn unreachable(&self) -> String {
        let base = &self.base;
        let hint = if base.starts_with("https") { "; --ca names its certificate's authorities" } else { "" };
        format!(
            "no gateway answers at {base}; is it running, and is that its admin address? \
             --admin or {ADDRESS_VARIABLE} choose another one{hint}"
        )
    }

    fn not_penstock_message(&self, answer: &str) -> String {
        format!(
            "{} answers {answer}, which no Penstock admin port does; --admin or {ADDRESS_VARIABLE} choose another address",
            self.base
        )
    }
}

/// The operator's token. No argument holds the token, because everybody on the machine can see
/// arguments.
fn token(args: &AccessArgs) -> anyhow::Result<Option<Secret>> {
    let text = match &args.token_file {
        Some(path) => {
            let text = String::from_utf8(read(path)?);
            Some(text.ok().with_context(|| format!("{} is not text", path.display()))?)
        }
        None => MachineSecrets.env(TOKEN_VARIABLE),
    };
    Ok(text.as_deref().map(str::trim).filter(|token| !token.is_empty()).map(Secret::new))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    MachineSecrets.file(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The query of a path: `?tenant=a&limit=1`, or nothing.
pub(super) fn query(pairs: &[(&str, String)]) -> String {
    let text = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    if text.is_empty() { text } else { format!("?{text}") }
}

/// A text, percent-encoded as one segment of a path.
pub(super) fn as_path_part(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let part = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_cannot_leave_their_part_of_the_path() {
        assert_eq!(as_path_part("req_1-a.b~"), "req_1-a.b~");
        assert_eq!(query(&[]), "");
        assert_eq!(
            query(&[("tenant", "a&b".to_owned()), ("limit", "1".to_owned())]),
            "?tenant=a%26b&limit=1"
        );
        assert_eq!(as_path_part("../a?b#c%"), "..%2Fa%3Fb%23c%25");
    }
}
