//! JSON Web Tokens: form, signature and claims.
//!
//! A token alone never decides its key and algorithm. The provider's settings must allow the
//! algorithm, and the key must be made for it. The gateway knows public keys only.

use std::time::{Duration, SystemTime};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::auth::jwks::PublicKey;
use crate::config::settings::identity::{
    ClaimRule, ClientClaims, Grant, Issuer, OperatorClaims, OperatorRole,
};
use crate::core::model::ids::TenantId;

/// Most values that are read from a claim. Further values are ignored.
const MAX_VALUES: usize = 256;
/// Most characters of an operator's name.
const MAX_NAME: usize = 128;

/// Reason why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenError {
    /// The text is not a readable token.
    Malformed,
    /// The token is longer than its provider's `max_token` bytes.
    TooLong,
    /// No provider in the settings issued the token.
    Issuer,
    /// The token is meant for another audience.
    Audience,
    /// The token is unsigned, or signed with an algorithm that its provider does not use.
    Algorithm,
    /// The token has a `crit` header: it demands extensions that the gateway does not implement.
    Critical,
    /// The token names a key that its provider does not have.
    UnknownKey,
    /// The signature does not match the key.
    Signature,
    /// The token has expired.
    Expired,
    /// The token is not valid yet.
    NotYet,
    /// The token is valid, but its claims map to no tenant, class or model of the gateway.
    NotMapped,
    /// The provider's keys cannot be fetched.
    Unavailable,
}

impl TokenError {
    /// A stable code for logs and metrics.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "token_malformed",
            Self::TooLong => "token_too_long",
            Self::Issuer => "token_issuer",
            Self::Audience => "token_audience",
            Self::Algorithm => "token_algorithm",
            Self::Critical => "token_critical",
            Self::UnknownKey => "token_key_unknown",
            Self::Signature => "token_signature",
            Self::Expired => "token_expired",
            Self::NotYet => "token_not_yet",
            Self::NotMapped => "token_not_mapped",
            Self::Unavailable => "token_keys_unavailable",
        }
    }
}

/// Whether a credential has the form of a token: three parts, of which the first begins like a
/// JSON object in base 64.
pub(super) fn is_token(text: &str) -> bool {
    text.starts_with("eyJ") && text.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// Header and issuer that a token states, before the token is verified.
#[derive(Debug)]
pub(super) struct UnverifiedToken {
    pub(super) header: Header,
    pub(super) issuer: String,
}

/// Reads the header and issuer of a token, which select the rules for its verification.
pub(super) fn read(text: &str) -> Result<UnverifiedToken, TokenError> {
    #[derive(Deserialize)]
    struct UnverifiedClaims {
        iss: String,
    }

    let header = jsonwebtoken::decode_header(text).map_err(|error| match error.kind() {
        // Names of unknown algorithms fail to parse. So does `none`.
        ErrorKind::Json(_) | ErrorKind::InvalidAlgorithmName => TokenError::Algorithm,
        _ => TokenError::Malformed,
    })?;
    let said: UnverifiedClaims =
        jsonwebtoken::dangerous::insecure_decode_claims(text).map_err(|_| TokenError::Malformed)?;
    Ok(UnverifiedToken { header, issuer: said.iss })
}

/// The algorithm of a token, if its provider uses it.
pub(super) fn algorithm<C>(header: &Header, issuer: &Issuer<C>) -> Result<Algorithm, TokenError> {
    if header.crit.is_some() {
        return Err(TokenError::Critical);
    }
    let name = format!("{:?}", header.alg);
    if issuer.algorithms.iter().any(|allowed| *allowed == name) {
        Ok(header.alg)
    } else {
        Err(TokenError::Algorithm)
    }
}

/// Claims of a token whose signature was verified.
#[derive(Debug)]
pub(super) struct VerifiedClaims {
    claims: Map<String, Value>,
    /// Expiry of the token, the leeway included.
    pub(super) ends: SystemTime,
}

/// Verifies the signature, then the claims that every token must have.
pub(super) fn verify<C>(
    text: &str,
    key: &PublicKey,
    algorithm: Algorithm,
    issuer: &Issuer<C>,
) -> Result<VerifiedClaims, TokenError> {
    let mut validation = Validation::new(algorithm);
    validation.leeway = issuer.leeway.as_secs();
    validation.validate_nbf = true;
    validation.set_audience(&issuer.audience);
    validation.set_issuer(&[&issuer.source.issuer]);
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    let decoded = jsonwebtoken::decode::<Map<String, Value>>(text, &key.key, &validation);
    let claims = decoded.map_err(|error| fault(error.kind()))?.claims;
    let seconds = claims.get("exp").and_then(Value::as_f64).unwrap_or_default();
    let ends = Duration::try_from_secs_f64(seconds)
        .ok()
        .and_then(|end| SystemTime::UNIX_EPOCH.checked_add(end)?.checked_add(issuer.leeway));
    Ok(VerifiedClaims { claims, ends: ends.ok_or(TokenError::Malformed)? })
}

/// Reads a token that nobody has verified yet.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_token(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if is_token(&text)
        && let Ok(token) = read(&text)
    {
        assert!(token.issuer.len() <= text.len());
    }
}

fn fault(kind: &ErrorKind) -> TokenError {
    match kind {
        ErrorKind::ExpiredSignature => TokenError::Expired,
        ErrorKind::ImmatureSignature => TokenError::NotYet,
        ErrorKind::InvalidIssuer => TokenError::Issuer,
        ErrorKind::InvalidAudience => TokenError::Audience,
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName | ErrorKind::MissingAlgorithm => {
            TokenError::Algorithm
        }
        ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => TokenError::Audience,
        ErrorKind::InvalidSignature
        | ErrorKind::InvalidEcdsaKey
        | ErrorKind::InvalidEddsaKey
        | ErrorKind::InvalidRsaKey(_)
        | ErrorKind::InvalidKeyFormat
        | ErrorKind::Provider(_) => TokenError::Signature,
        _ => TokenError::Malformed,
    }
}

/// What the claims of a verified token grant.
pub(super) trait TokenClaims: Sized {
    /// Rights of the token's holder.
    type Grant;

    /// Rights that a token's claims grant, and its holder's name for logs.
    fn grant(claims: &VerifiedClaims, issuer: &Issuer<Self>) -> Result<(Self::Grant, String), TokenError>;
}

impl TokenClaims for ClientClaims {
    type Grant = Grant;

    /// The name is a pseudonym: a hash of issuer and subject. Only someone who knows the subject can
    /// compute it.
    fn grant(claims: &VerifiedClaims, issuer: &Issuer<Self>) -> Result<(Grant, String), TokenError> {
        let tenant = claims.tenant(&issuer.claims.tenants)?;
        let classes = issuer.claims.classes.as_ref().map(|rule| claims.listed(rule)).transpose()?;
        let models = issuer.claims.models.as_ref().map(|rule| claims.listed(rule)).transpose()?;
        let hash = blake3::hash(format!("{} {}", issuer.source.issuer, claims.subject()).as_bytes());
        let grant = Grant {
            classes: classes.map(|list| list.into_iter().collect()).map(std::sync::Arc::new),
            models: models.map(|list| list.into_iter().collect()).map(std::sync::Arc::new),
            ..Grant::whole(tenant)
        };
        Ok((grant, format!("jwt:{}", &hash.to_hex()[..12])))
    }
}

impl TokenClaims for OperatorClaims {
    type Grant = OperatorRole;

    /// The name is the one that the operator has at the provider, for the audit log.
    fn grant(claims: &VerifiedClaims, issuer: &Issuer<Self>) -> Result<(OperatorRole, String), TokenError> {
        let roles = claims.listed(&issuer.claims.roles)?;
        let role = roles.into_iter().max().ok_or(TokenError::NotMapped)?;
        let name = claims.claim(&issuer.claims.name).and_then(Value::as_str);
        let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| claims.subject());
        let is_plain = |c: &char| !(c.is_whitespace() || c.is_control());
        Ok((role, name.chars().filter(is_plain).take(MAX_NAME).collect()))
    }
}

impl VerifiedClaims {
    fn subject(&self) -> &str {
        self.claims.get("sub").and_then(Value::as_str).unwrap_or_default()
    }

    fn tenant(&self, rule: &ClaimRule<TenantId>) -> Result<TenantId, TokenError> {
        let has: Vec<&str> = match self.claim(&rule.claim) {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(list)) => list.iter().take(MAX_VALUES).filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let found = rule.values.iter().find(|(value, _)| has.contains(&&**value));
        found.map(|(_, tenant)| *tenant).ok_or(TokenError::NotMapped)
    }

    /// The known values that a claim lists. A token without the claim, or without a known value,
    /// has no rights.
    fn listed<T: Copy>(&self, rule: &ClaimRule<T>) -> Result<Vec<T>, TokenError> {
        let has: Vec<&str> = match self.claim(&rule.claim) {
            Some(Value::String(text)) => text.split_ascii_whitespace().take(MAX_VALUES).collect(),
            Some(Value::Array(list)) => list.iter().take(MAX_VALUES).filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let known = rule.values.iter().filter(|(value, _)| has.contains(&&**value));
        let known: Vec<T> = known.map(|(_, id)| *id).collect();
        if known.is_empty() { Err(TokenError::NotMapped) } else { Ok(known) }
    }

    /// The claim called `name`. If there is none, the dots in `name` are read as a path into nested
    /// claims.
    fn claim(&self, name: &str) -> Option<&Value> {
        if let Some(claim) = self.claims.get(name) {
            return Some(claim);
        }
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(self.claims.get(first)?, |value, key| value.get(key))
    }
}
