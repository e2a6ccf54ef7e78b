//! Operators' tokens of an identity provider, and what the console needs to sign in there.

use std::slice;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::auth::issuers::Issuers;
use crate::auth::jwt::{self, TokenError};
use crate::auth::sign_in::SignInDiscovery;
pub use crate::auth::sign_in::SignInEndpoints;
use crate::config::settings::identity::{Issuer, OperatorClaims, OperatorRole, Operators};
use crate::telemetry::Telemetry;

/// The identity provider of operators.
#[derive(Debug, Default)]
pub struct OperatorTokens {
    issuers: Issuers<OperatorClaims>,
    /// Absent where the console offers no sign-in.
    sign_in: Mutex<Option<SignInDiscovery>>,
}

/// An operator whose token was found valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenOperator {
    /// Name at the provider.
    pub name: String,
    pub role: OperatorRole,
}

/// Reason why an operator's token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperatorTokenError {
    error: TokenError,
}

/// Meaning of a refused token for its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedToken {
    /// The token was never valid here.
    Invalid,
    /// The token was valid, and has expired.
    Expired,
    /// The token is valid and gives no right.
    NoRight,
    /// The token cannot be checked now.
    Unavailable,
}

impl OperatorTokenError {
    /// A stable code for logs and metrics.
    pub const fn reason(self) -> &'static str {
        self.error.reason()
    }

    pub const fn meaning(self) -> RefusedToken {
        match self.error {
            TokenError::Expired => RefusedToken::Expired,
            TokenError::NotMapped | TokenError::Nameless => RefusedToken::NoRight,
            TokenError::Unavailable => RefusedToken::Unavailable,
            _ => RefusedToken::Invalid,
        }
    }

    /// Message for the holder: what is wrong, and what to do.
    pub const fn message(self) -> &'static str {
        match self.error {
            TokenError::Expired => "the token has expired; sign in again",
            TokenError::NotMapped => {
                "the token is valid, but no value of its `role_claim` is among `admin.auth.oidc.roles`: whoever keeps \
                 the provider's groups, or the gateway's file, gives the right"
            }
            TokenError::Unavailable => {
                "the token cannot be checked now: the identity provider's keys are not to be had"
            }
            TokenError::Issuer => "the token is not of `admin.auth.oidc.issuer`",
            TokenError::Audience => {
                "the token is meant for another audience: its claim `aud` has neither `client_id` nor one of \
                 `audience` of `admin.auth.oidc`, or `azp` names another client than `client_id`"
            }
            TokenError::Nameless => {
                "the token is valid, but names nobody: it has neither the `name_claim` of `admin.auth.oidc` nor `sub`"
            }
            TokenError::NotYet => "the token is not valid yet",
            TokenError::TooLong => "the token is longer than `admin.auth.oidc.max_token`",
            TokenError::Algorithm => "the token is not signed with one of `admin.auth.oidc.algorithms`",
            TokenError::Malformed | TokenError::Critical | TokenError::UnknownKey | TokenError::Signature => {
                "the token is not valid here"
            }
        }
    }
}

/// Whether a credential has the form of a provider's token.
pub fn is_token(text: &str) -> bool {
    jwt::is_token(text)
}

impl OperatorTokens {
    /// Fetches what is needed of the provider in `operators` from now on. Must be called inside a
    /// tokio runtime.
    pub fn set_provider(&self, operators: &Operators, telemetry: &Telemetry) {
        let issuer = operators.oidc.as_slice();
        self.issuers.set_issuers(issuer, telemetry);
        let mut sign_in = self.sign_in.lock();
        let source = operators.sign_in_provider().map(|(issuer, _)| &issuer.source);
        let known = sign_in.take().filter(|known| source.is_some_and(|source| known.is_of(source)));
        *sign_in = known.or_else(|| Some(SignInDiscovery::start(source?.clone(), telemetry.clone())));
    }

    /// Verifies a token. Waits, for a short time, only if the token's key is unknown.
    ///
    /// # Errors
    /// The token is not valid here, or gives no right.
    pub async fn verify(
        &self,
        issuer: &Arc<Issuer<OperatorClaims>>,
        epoch: u64,
        text: &str,
    ) -> Result<TokenOperator, OperatorTokenError> {
        let verified = self.issuers.verify(slice::from_ref(issuer), epoch, text).await;
        let token = verified.map_err(|error| OperatorTokenError { error })?;
        Ok(TokenOperator { name: token.id.clone(), role: token.grant })
    }

    /// Where the console signs in; `None` while the provider has not told. It is asked again then.
    pub fn sign_in_endpoints(&self, issuer: &Issuer<OperatorClaims>) -> Option<Arc<SignInEndpoints>> {
        self.sign_in.lock().as_ref().filter(|known| known.is_of(&issuer.source))?.endpoints()
    }
}
