//! JWKS documents: the address of a provider's public keys, and the keys in them that can be used.

use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client};
use serde_json::Value;

use crate::config::settings::identity::KeySource;
use crate::tls;

/// Timeout of one request to a provider.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest accepted answer of a provider, in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// Most keys that are read from a provider's list. Further keys are ignored.
const MAX_KEYS: usize = 128;
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Reason for a failed fetch of keys. An error never contains text from the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum JwksError {
    /// The HTTP client could not be built, because TLS could not be set up.
    #[error("no client for its address: are there CA certificates on this machine?")]
    NoClient,
    /// The provider could not be connected, or sent no whole answer in time.
    #[error("no whole answer from it")]
    Unreachable,
    /// The provider answered with a status other than 200.
    #[error("status {0}")]
    Status(u16),
    /// The answer is longer than 1 MiB.
    #[error("its answer is longer than 1 MiB")]
    TooLarge,
    /// The answer is not JSON, or lacks the expected fields.
    #[error("its answer is not what was asked for")]
    NotUnderstood,
    /// The discovery document names another issuer.
    #[error("its discovery document names another issuer")]
    OtherIssuer,
    /// The discovery document gives a key address without https.
    #[error("its discovery document leads to keys without https")]
    PlainHttp,
    /// The key set contains no key that can be used.
    #[error("it has no key that can be used")]
    NoKeys,
}

/// Where a browser signs in at a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignInEndpoints {
    /// The page that asks the user.
    pub authorization: String,
    /// Where the page's answer is exchanged for a token.
    pub token: String,
}

impl SignInEndpoints {
    /// The address, if it is a whole one that a page may be told of.
    fn usable(url: &str) -> Option<String> {
        origin(url).map(|_| url.to_owned())
    }

    /// The origin of the token's address, for a page's security policy.
    #[must_use]
    pub fn token_origin(&self) -> Option<String> {
        origin(&self.token)
    }
}

/// Scheme, host and port of a URL, if they are plain enough for a header.
fn origin(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?.as_str());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    let is_web = matches!(scheme, "http" | "https");
    (is_web && authority.bytes().all(is_plain)).then(|| format!("{scheme}://{authority}"))
}

/// What one fetch from a provider brought.
#[derive(Debug)]
pub(super) struct FetchedKeys {
    pub(super) keys: KeySet,
    /// Absent where no sign-in is wanted, and where the provider does not tell.
    pub(super) endpoints: Option<SignInEndpoints>,
}

#[derive(Debug, Clone)]
pub(super) struct PublicKey {
    pub(super) id: Option<String>,
    pub(super) key: DecodingKey,
    algorithms: Vec<Algorithm>,
}

/// The public keys of a provider at one time.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    keys: Vec<PublicKey>,
    /// Hash of the document that the keys were read from.
    pub(super) digest: Option<blake3::Hash>,
}

impl KeySet {
    /// Reads the keys of a JWK set. Keys that cannot be used (secrets, keys for encryption, unknown
    /// kinds) are left out.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, JwksError> {
        let set: Value = serde_json::from_slice(bytes).map_err(|_| JwksError::NotUnderstood)?;
        let listed = set.get("keys").and_then(Value::as_array).ok_or(JwksError::NotUnderstood)?;
        let keys: Vec<PublicKey> = listed.iter().take(MAX_KEYS).filter_map(public_key).collect();
        if keys.is_empty() {
            return Err(JwksError::NoKeys);
        }
        Ok(Self { keys, digest: Some(blake3::hash(bytes)) })
    }

    /// The key that verifies a token whose header names the key `id`. Without `id`, the only key
    /// made for the algorithm. `None` if several keys are.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&PublicKey> {
        let mut fit = self.keys.iter().filter(|key| {
            key.algorithms.contains(&algorithm) && id.is_none_or(|id| key.id.as_deref() == Some(id))
        });
        let first = fit.next();
        if id.is_none() && fit.next().is_some() { None } else { first }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}

fn public_key(value: &Value) -> Option<PublicKey> {
    let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
    if jwk.common.public_key_use.as_ref().is_some_and(|of| *of != PublicKeyUse::Signature) {
        return None;
    }
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => vec![RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => vec![ES256],
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P384 => vec![ES384],
        AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => vec![EdDSA],
        _ => return None,
    };
    if let Some(only) = jwk.common.key_algorithm {
        algorithms.retain(|algorithm| named(*algorithm) == Some(only));
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    (!algorithms.is_empty()).then_some(PublicKey { id: jwk.common.key_id, key, algorithms })
}

const fn named(algorithm: Algorithm) -> Option<KeyAlgorithm> {
    Some(match algorithm {
        Algorithm::RS256 => KeyAlgorithm::RS256,
        Algorithm::RS384 => KeyAlgorithm::RS384,
        Algorithm::RS512 => KeyAlgorithm::RS512,
        Algorithm::PS256 => KeyAlgorithm::PS256,
        Algorithm::PS384 => KeyAlgorithm::PS384,
        Algorithm::PS512 => KeyAlgorithm::PS512,
        Algorithm::ES256 => KeyAlgorithm::ES256,
        Algorithm::ES384 => KeyAlgorithm::ES384,
        Algorithm::EdDSA => KeyAlgorithm::EdDSA,
        _ => return None,
    })
}

/// Client that fetches the keys of one provider.
#[derive(Debug)]
pub(super) struct JwksFetcher {
    source: KeySource,
    client: Option<Client>,
}

impl JwksFetcher {
    pub(super) fn new(source: KeySource) -> Self {
        tls::install_provider();
        let client = client(source.ca.as_deref());
        Self { source, client }
    }

    /// Fetches the provider's current keys, and its addresses for a sign-in where one is wanted.
    pub(super) async fn fetch(&self) -> Result<FetchedKeys, JwksError> {
        let client = self.client.as_ref().ok_or(JwksError::NoClient)?;
        let (url, document) = match &self.source.jwks_url {
            Some(url) if self.source.has_sign_in => (url.clone(), self.discover(client).await.ok()),
            Some(url) => (url.clone(), None),
            None => {
                let document = self.discover(client).await?;
                (self.address(&document, "jwks_uri")?.to_owned(), Some(document))
            }
        };
        let endpoints = document.filter(|_| self.source.has_sign_in).and_then(|document| {
            let address = |key| SignInEndpoints::usable(self.address(&document, key).ok()?);
            Some(SignInEndpoints {
                authorization: address("authorization_endpoint")?,
                token: address("token_endpoint")?,
            })
        });
        Ok(FetchedKeys { keys: KeySet::read(&get(client, &url).await?)?, endpoints })
    }

    /// The discovery document.
    async fn discover(&self, client: &Client) -> Result<Value, JwksError> {
        let issuer = &self.source.issuer;
        let answer = get(client, &format!("{}{DISCOVERY}", issuer.trim_end_matches('/'))).await?;
        let document: Value = serde_json::from_slice(&answer).map_err(|_| JwksError::NotUnderstood)?;
        if document["issuer"].as_str() != Some(issuer) {
            return Err(JwksError::OtherIssuer);
        }
        Ok(document)
    }

    /// An address of the discovery document.
    fn address<'a>(&self, document: &'a Value, key: &str) -> Result<&'a str, JwksError> {
        let url = document[key].as_str().ok_or(JwksError::NotUnderstood)?;
        // The issuer's own URL may be plain http only on this machine.
        if !url.starts_with("https://") && !self.source.issuer.starts_with("http://") {
            return Err(JwksError::PlainHttp);
        }
        Ok(url)
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

async fn get(client: &Client, url: &str) -> Result<Vec<u8>, JwksError> {
    let mut answer = client.get(url).send().await.map_err(|_| JwksError::Unreachable)?;
    if answer.status().as_u16() != 200 {
        return Err(JwksError::Status(answer.status().as_u16()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|_| JwksError::Unreachable)? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(JwksError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
