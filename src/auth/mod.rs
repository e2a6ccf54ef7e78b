//! Authentication of clients by API key, identity provider's token, or certificate; and of operators by
//! token.

mod cache;
mod issuers;
mod jwks;
mod jwt;
pub mod operators;
mod provider;
mod provider_error;
mod sign_in;
pub mod throttle;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::HeaderMap;
use parking_lot::Mutex;

use crate::auth::issuers::Issuers;
use crate::auth::jwt::TokenError;
#[cfg(any(test, fuzzing))]
pub(crate) use crate::auth::jwt::fuzz_token;
use crate::auth::operators::OperatorTokens;
use crate::auth::throttle::{FailureRate, FailureThrottle};
use crate::config::keys::{self, KeyError};
use crate::config::settings::identity::{Auth, ClientClaims, Credentials, Grant, Operators};
use crate::core::model::ids::TenantId;
use crate::core::model::time::Tick;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::headers;
use crate::telemetry::event::AuthFailed;
use crate::telemetry::{Telemetry, wall};
use crate::tls::{CertificateNames, address_group};

/// The address of a connected client and the names that its certificate proves.
#[derive(Debug, Clone)]
pub struct ConnectedClient {
    /// The client's end of the TCP connection.
    pub address: SocketAddr,
    /// The subject alternative names of the client's certificate. `None` if the client has no
    /// certificate that an authority of this listener signed.
    pub names: Option<Arc<CertificateNames>>,
}

/// A caller whose credential was found valid.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) tenant: TenantId,
    /// The credential's public id. `None` if the gateway asks for no credentials.
    pub(crate) key_id: Option<String>,
    /// Rights that the credential grants.
    pub(crate) grant: Grant,
}

impl Identity {
    fn new(grant: Grant, key_id: Option<String>) -> Self {
        Self { tenant: grant.tenant, key_id, grant }
    }
}

/// Checks the credentials of requests, and throttles failures by address.
#[derive(Debug, Default)]
pub struct Authenticator {
    operators: Arc<OperatorTokens>,
    issuers: Issuers<ClientClaims>,
    failures: Mutex<FailureThrottle>,
}

/// The parts of a request that its authentication needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PresentedCredential<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) peer: &'a ConnectedClient,
    /// Address of the client, which may be behind the load balancer at the other end of the
    /// connection.
    pub(crate) address: IpAddr,
    pub(crate) now: Tick,
}

/// Reason and answer for a request whose authentication failed.
struct AuthError {
    /// A stable code for logs and metrics.
    reason: &'static str,
    /// Public part of the API key.
    key_id: Option<String>,
    /// Whether the failure counts against the client's address.
    counts: bool,
    answer: ApiError,
}

impl Authenticator {
    /// Fetches the keys of exactly the providers of clients and operators from now on. Must be called
    /// inside a tokio runtime.
    pub fn set_providers(&self, auth: &Auth, operators: &Operators, telemetry: &Telemetry) {
        self.operators.set_provider(operators, telemetry);
        let issuers = match auth {
            Auth::Off(_) => &[][..],
            Auth::Known(known) => &known.issuers,
        };
        self.issuers.set_issuers(issuers, telemetry);
    }

    /// Tokens of the operators' identity provider.
    pub fn operator_tokens(&self) -> Arc<OperatorTokens> {
        Arc::clone(&self.operators)
    }

    /// Checks the credentials of a request. The call waits, for a short time, only if the key of a
    /// token is unknown.
    ///
    /// An API key or token takes precedence over a certificate. A credential that is neither, such
    /// as the `none` that SDKs are configured to send, does not hide a certificate.
    ///
    /// # Errors
    /// The request has no credential, or an invalid one. The answer never tells which part of a key
    /// was wrong.
    pub(crate) async fn identify(
        &self,
        auth: &Auth,
        caller: PresentedCredential<'_>,
        telemetry: &Telemetry,
    ) -> Result<Identity, ApiError> {
        let known = match auth {
            Auth::Off(tenant) => return Ok(Identity::new(Grant::whole(*tenant), None)),
            Auth::Known(known) => known,
        };
        match self.check(known, caller).await {
            Ok(identity) => Ok(identity),
            Err(refusal) => Err(self.refuse(known, caller, refusal, telemetry)),
        }
    }

    async fn check(
        &self,
        known: &Credentials,
        caller: PresentedCredential<'_>,
    ) -> Result<Identity, AuthError> {
        let text = headers::credentials(caller.headers);
        if let Some(text) = text {
            match known.keys.verify(text, wall::now) {
                Ok((id, entry)) => return Ok(Identity::new(entry.grant.clone(), Some(id.to_owned()))),
                // Perhaps a token, or what an SDK sends that must send some key.
                Err(KeyError::Malformed) => {}
                Err(error) => {
                    let key_id = keys::parse(text).map(|parts| parts.id.to_owned());
                    return Err(wrong_key(error, key_id));
                }
            }
            if !known.issuers.is_empty() && jwt::is_token(text) {
                let verified = self.issuers.verify(&known.issuers, known.epoch, text).await;
                return verified
                    .map(|token| Identity::new(token.grant.clone(), Some(token.id.clone())))
                    .map_err(wrong_token);
            }
        }
        if let Some(names) = &caller.peer.names {
            if let Some((name, grant)) = names.iter().find_map(|name| Some((name, known.certs.get(name)?))) {
                return Ok(Identity::new(grant.clone(), Some(name.to_owned())));
            }
            if text.is_none() {
                let text = "The client certificate is valid, but none of its subject alternative names is known \
                            here. Ask the operator of this gateway to add one, or send an API key.";
                let answer = ApiError::new(ErrorKind::IdentityNotMapped, text);
                return Err(AuthError { reason: "certificate_unknown", key_id: None, counts: false, answer });
            }
        }
        Err(match text {
            Some(_) => wrong_key(KeyError::Malformed, None),
            None => missing(),
        })
    }

    /// Counts a failure and builds its answer. An address above the failure rate gets
    /// `TooManyFailures` instead.
    fn refuse(
        &self,
        known: &Credentials,
        caller: PresentedCredential<'_>,
        refusal: AuthError,
        telemetry: &Telemetry,
    ) -> ApiError {
        let limit = known.failures;
        if refusal.counts && limit.per_minute > 0 {
            let rate = FailureRate { burst: limit.burst, per_minute: limit.per_minute };
            let heard = self.failures.lock().failed(address_group(caller.address), caller.now, rate);
            if let Err(wait) = heard {
                AuthFailed { reason: "throttled", key_id: None }.emit(telemetry);
                let text = "Too many attempts from this address had credentials that are not valid here.";
                return ApiError::new(ErrorKind::TooManyFailures, text).with_retry_after(wait);
            }
        }
        AuthFailed { reason: refusal.reason, key_id: refusal.key_id.as_deref() }.emit(telemetry);
        refusal.answer
    }
}

/// It does not count against the address: it guesses nothing and costs little, and health checks send
/// no credential.
fn missing() -> AuthError {
    let text = "No API key was given. Send it as `Authorization: Bearer <key>` or `x-api-key: <key>`.";
    let answer = ApiError::new(ErrorKind::MissingKey, text);
    AuthError { reason: "missing", key_id: None, counts: false, answer }
}

fn wrong_key(error: KeyError, key_id: Option<String>) -> AuthError {
    let (reason, text) = match error {
        KeyError::Malformed => ("malformed", NOT_VALID),
        KeyError::Unknown => ("unknown", NOT_VALID),
        KeyError::Mismatch => ("mismatch", NOT_VALID),
        KeyError::Expired => {
            ("expired", "The API key has expired. Ask the operator of this gateway for a new one.")
        }
    };
    AuthError { reason, key_id, counts: true, answer: ApiError::new(ErrorKind::InvalidKey, text) }
}

const NOT_VALID: &str = "The API key is not valid here. Ask the operator of this gateway for one.";

fn wrong_token(error: TokenError) -> AuthError {
    let reason = error.reason();
    let (kind, text) = match error {
        TokenError::Unavailable => {
            let text = "The token cannot be checked now: the identity provider's keys are not to be had.";
            let answer = ApiError::new(ErrorKind::IdentityUnavailable, text)
                .with_retry_after(issuers::USUAL_RETRY_AFTER);
            return AuthError { reason, key_id: None, counts: false, answer };
        }
        TokenError::NotMapped | TokenError::Nameless => {
            let text = "The token is valid, but it gives no right to anything here. Ask the operator of this gateway.";
            let answer = ApiError::new(ErrorKind::IdentityNotMapped, text);
            return AuthError { reason, key_id: None, counts: false, answer };
        }
        TokenError::Expired => {
            (ErrorKind::InvalidKey, "The token has expired. Get a new one from its provider.")
        }
        TokenError::NotYet => (ErrorKind::InvalidKey, "The token is not valid yet."),
        TokenError::Malformed
        | TokenError::TooLong
        | TokenError::Issuer
        | TokenError::Audience
        | TokenError::Algorithm
        | TokenError::Critical
        | TokenError::UnknownKey
        | TokenError::Signature => (ErrorKind::InvalidKey, "The token is not valid here."),
    };
    AuthError { reason, key_id: None, counts: true, answer: ApiError::new(kind, text) }
}
