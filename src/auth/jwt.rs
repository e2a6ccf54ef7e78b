//! JSON Web Tokens: form, signature and claims.
//!
//! Which key it is checked with, and by which algorithm, is never the token's
//! choice alone: the algorithm must be one of the provider's settings and one
//! that the key is for, and only public keys are ever known.

use std::time::{Duration, SystemTime};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::auth::jwks::PublicKey;
use crate::config::settings::identity::{ClaimRule, Grant, Issuer};
use crate::core::model::ids::TenantId;

/// Values of a claim that are looked at.
const MAX_VALUES: usize = 256;

/// Why a token does not open the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenError {
    /// Not a token that can be read.
    Malformed,
    /// More bytes than its provider's tokens have.
    TooLong,
    /// Of nobody that we trust.
    Issuer,
    /// For somebody else.
    Audience,
    /// Signed in a way that its provider does not, or not at all.
    Algorithm,
    /// It asks for something that we do not know.
    Critical,
    /// Signed with a key that its provider does not have.
    UnknownKey,
    /// Not signed with that key.
    Signature,
    /// Its time is over.
    Expired,
    /// Its time has not come.
    NotYet,
    /// Valid, and nobody here.
    NotMapped,
    /// Its provider's keys cannot be had.
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

/// Whether a credential has the form of a token: three parts, the first of
/// which begins like a JSON object in base 64.
pub(super) fn is_token(text: &str) -> bool {
    text.starts_with("eyJ") && text.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// What a token says of itself, before anything of it is believed.
#[derive(Debug)]
pub(super) struct UnverifiedToken {
    pub(super) header: Header,
    pub(super) issuer: String,
}

/// Reads what is needed to find the rules for a token.
pub(super) fn read(text: &str) -> Result<UnverifiedToken, TokenError> {
    #[derive(Deserialize)]
    struct UnverifiedClaims {
        iss: String,
    }

    let header = jsonwebtoken::decode_header(text).map_err(|error| match error.kind() {
        // Names of algorithms that do not exist fail to be read: `none` too.
        ErrorKind::Json(_) | ErrorKind::InvalidAlgorithmName => TokenError::Algorithm,
        _ => TokenError::Malformed,
    })?;
    let said: UnverifiedClaims =
        jsonwebtoken::dangerous::insecure_decode_claims(text).map_err(|_| TokenError::Malformed)?;
    Ok(UnverifiedToken { header, issuer: said.iss })
}

/// The algorithm of a token, if its provider uses it.
pub(super) fn algorithm(header: &Header, issuer: &Issuer) -> Result<Algorithm, TokenError> {
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

/// What a token's claims say, once they are proved.
#[derive(Debug)]
pub(super) struct VerifiedClaims {
    claims: Map<String, Value>,
    /// When it ends, the leeway included.
    pub(super) ends: SystemTime,
}

/// Checks the signature, then the claims that every token has.
pub(super) fn prove(
    text: &str,
    key: &PublicKey,
    algorithm: Algorithm,
    issuer: &Issuer,
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

impl VerifiedClaims {
    /// What the token may do here.
    pub(super) fn grant(&self, issuer: &Issuer) -> Result<Grant, TokenError> {
        let tenant = self.tenant(&issuer.tenants)?;
        let classes = issuer.classes.as_ref().map(|rule| self.listed(rule)).transpose()?;
        let models = issuer.models.as_ref().map(|rule| self.listed(rule)).transpose()?;
        Ok(Grant {
            classes: classes.map(|list| list.into_iter().collect()).map(std::sync::Arc::new),
            models: models.map(|list| list.into_iter().collect()).map(std::sync::Arc::new),
            ..Grant::whole(tenant)
        })
    }

    /// A name for the token's holder that tells nothing of them: who knows the
    /// subject can find it, nobody else.
    pub(super) fn id(&self, issuer: &Issuer) -> String {
        let subject = self.claims.get("sub").and_then(Value::as_str).unwrap_or_default();
        let hash = blake3::hash(format!("{} {subject}", issuer.source.issuer).as_bytes());
        format!("jwt:{}", &hash.to_hex()[..12])
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

    /// What a claim lists of what there is; a token without it has no right to
    /// anything.
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

    /// The claim of that name, or else the one inside others that its dots
    /// lead to.
    fn claim(&self, name: &str) -> Option<&Value> {
        if let Some(claim) = self.claims.get(name) {
            return Some(claim);
        }
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(self.claims.get(first)?, |value, key| value.get(key))
    }
}
