//! Identity provider on loopback, which signs with changing keys.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use penstock::telemetry::wall;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// One signing key.
#[derive(Clone)]
pub(crate) struct Signer {
    id: String,
    algorithm: Algorithm,
    pub(crate) key: EncodingKey,
    /// What the provider publishes.
    pub(crate) public: Value,
}

impl Signer {
    pub(crate) fn new(id: &str, algorithm: Algorithm) -> Self {
        let key = match algorithm {
            Algorithm::ES256 => {
                let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
                EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap()
            }
            _ => {
                let pair = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
                EncodingKey::from_rsa_pem(pair.serialize_pem().as_bytes()).unwrap()
            }
        };
        let mut public = serde_json::to_value(Jwk::from_encoding_key(&key, algorithm).unwrap()).unwrap();
        public["kid"] = id.into();
        public["use"] = "sig".into();
        Self { id: id.to_owned(), algorithm, key, public }
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.id.clone());
        jsonwebtoken::encode(&header, claims, &self.key).unwrap()
    }
}

/// The provider. Dropping it takes it off the network.
pub(crate) struct Provider {
    address: SocketAddr,
    public: Arc<Mutex<Vec<Value>>>,
    pub(crate) away: Arc<AtomicBool>,
    fetches: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Provider {
    pub(crate) async fn start(signers: &[&Signer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let public =
            Arc::new(Mutex::new(signers.iter().map(|signer| signer.public.clone()).collect::<Vec<_>>()));
        let (away, fetches) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let shared = (Arc::clone(&public), Arc::clone(&away), Arc::clone(&fetches));
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = shared.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request: Request<Incoming>| {
                        let answer = answer(&request, address, &shared.0, &shared.1, &shared.2);
                        async move { Ok::<_, Infallible>(answer) }
                    });
                    let io = TokioIo::new(stream);
                    let _ended =
                        hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
                });
            }
        });
        Self { address, public, away, fetches, serving }
    }

    pub(crate) fn issuer(&self) -> String {
        format!("http://{}/realm", self.address)
    }

    pub(crate) fn publish(&self, signers: &[&Signer]) {
        *self.public.lock() = signers.iter().map(|signer| signer.public.clone()).collect();
    }

    pub(crate) fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }

    /// Claims of a token that is right in every way.
    pub(crate) fn claims(&self) -> Value {
        json!({
            "iss": self.issuer(), "aud": ["penstock", "another"], "sub": "somebody@example.com",
            "exp": now() + 600, "nbf": now() - 5, "iat": now(),
            "team": { "name": "ml-alpha" }, "classes": "standard batch", "models": ["sim"],
        })
    }

    pub(crate) fn claims_with(&self, key: &str, value: Value) -> Value {
        let mut claims = self.claims();
        claims[key] = value;
        claims
    }
}

fn answer(
    request: &Request<Incoming>,
    address: SocketAddr,
    public: &Mutex<Vec<Value>>,
    away: &AtomicBool,
    fetches: &AtomicUsize,
) -> Response<Full<Bytes>> {
    let issuer = format!("http://{address}/realm");
    let (status, body) = match request.uri().path() {
        _ if away.load(Ordering::SeqCst) => (StatusCode::BAD_GATEWAY, json!({})),
        "/realm/.well-known/openid-configuration" => {
            let at = |path: &str| format!("{issuer}/{path}");
            let document = json!({
                "issuer": issuer, "jwks_uri": at("keys"),
                "authorization_endpoint": at("authorize"), "token_endpoint": at("token"),
            });
            (StatusCode::OK, document)
        }
        "/realm/keys" => {
            fetches.fetch_add(1, Ordering::SeqCst);
            (StatusCode::OK, json!({ "keys": *public.lock() }))
        }
        _ => (StatusCode::NOT_FOUND, json!({})),
    };
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response
}

pub(crate) fn now() -> u64 {
    wall::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}
