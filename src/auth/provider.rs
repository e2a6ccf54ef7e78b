//! Client of an identity provider: its discovery document and what this leads to.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Certificate, Client};
use serde_json::Value;

use crate::auth::jwks::KeySet;
use crate::auth::provider_error::ProviderError;
use crate::config::settings::identity::KeySource;
use crate::tls;

/// Timeout of one request to a provider.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest accepted answer of a provider, in bytes.
const MAX_ANSWER: usize = 1 << 20;
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Client that asks one provider.
#[derive(Debug)]
pub(super) struct ProviderClient {
    source: KeySource,
    client: Option<Client>,
}

impl ProviderClient {
    pub(super) fn new(source: KeySource) -> Self {
        tls::install_provider();
        let client = client(source.ca.as_deref());
        Self { source, client }
    }

    /// Fetches the provider's current keys.
    pub(super) async fn keys(&self) -> Result<KeySet, ProviderError> {
        let url = match &self.source.jwks_url {
            Some(url) => url.clone(),
            None => self.discover().await?.address("jwks_uri")?,
        };
        KeySet::read(&self.get(&url).await?)
    }

    /// Fetches the addresses at which a browser signs in: that of the page which asks the user, and
    /// that of tokens.
    pub(super) async fn sign_in_addresses(&self) -> Result<(String, String), ProviderError> {
        let document = self.discover().await?;
        Ok((document.address("authorization_endpoint")?, document.address("token_endpoint")?))
    }

    async fn discover(&self) -> Result<DiscoveryDocument, ProviderError> {
        let issuer = &self.source.issuer;
        let answer = self.get(&format!("{}{DISCOVERY}", issuer.trim_end_matches('/'))).await?;
        let document: Value = serde_json::from_slice(&answer).map_err(|_| ProviderError::NotUnderstood)?;
        if document["issuer"].as_str() != Some(issuer) {
            return Err(ProviderError::OtherIssuer);
        }
        // The issuer's own URL may be plain http only on this machine.
        Ok(DiscoveryDocument { document, allows_http: issuer.starts_with("http://") })
    }

    async fn get(&self, url: &str) -> Result<Vec<u8>, ProviderError> {
        let client = self.client.as_ref().ok_or(ProviderError::NoClient)?;
        let mut answer = client.get(url).send().await.map_err(|_| ProviderError::Unreachable)?;
        if answer.status().as_u16() != 200 {
            return Err(ProviderError::Status(answer.status().as_u16()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|_| ProviderError::Unreachable)? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(ProviderError::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

/// The document in which a provider tells its addresses.
struct DiscoveryDocument {
    document: Value,
    allows_http: bool,
}

impl DiscoveryDocument {
    fn address(&self, name: &'static str) -> Result<String, ProviderError> {
        let url = self.document[name].as_str().ok_or(ProviderError::NoAddress(name))?;
        if !url.starts_with("https://") && !self.allows_http {
            return Err(ProviderError::PlainHttp(name));
        }
        Ok(url.to_owned())
    }
}

fn client(ca: Option<&[u8]>) -> Option<Client> {
    let builder = || Client::builder().no_proxy().redirect(Policy::none()).timeout(TIMEOUT);
    match ca {
        Some(pem) => builder().tls_certs_only(Certificate::from_pem_bundle(pem).ok()?).build().ok(),
        // A machine without CA certificates can still fetch over plain http.
        None => builder().build().or_else(|_| builder().tls_certs_only([]).build()).ok(),
    }
}
