//! JSON Web Tokens: form, signature and claims.
//!
//! A token alone never decides its key and algorithm. The provider's settings must allow the
//! algorithm, and the key must be made for it. The gateway knows public keys only.

use std::collections::HashSet;
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
    /// The token is valid, but its claims map to no tenant, class, model or role of the gateway.
    NotMapped,
    /// The token is valid, but nothing in it names the operator.
    Nameless,
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
            Self::Nameless => "token_nameless",
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
        if let Some(console) = &issuer.claims.console
            && claims.is_for_another_client(&console.id, &issuer.audience)
        {
            return Err(TokenError::Audience);
        }
        let rule = &issuer.claims.roles;
        let has = claims.values(&rule.claim);
        let roles = rule.values.iter().filter(|(value, _)| has.contains(&**value)).map(|(_, role)| *role);
        let role = roles.max().ok_or(TokenError::NotMapped)?;
        let name = claims.claim(&issuer.claims.name).and_then(Value::as_str).unwrap_or_default();
        let mut names = [name, claims.subject()].into_iter().map(plain_name);
        Ok((role, names.find(|name| !name.is_empty()).ok_or(TokenError::Nameless)?))
    }
}

/// The letters, digits and ASCII signs of a name: neither spaces nor marks that change how a line of
/// the log reads.
fn plain_name(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric() || c.is_ascii_graphic()).take(MAX_NAME).collect()
}

impl VerifiedClaims {
    fn subject(&self) -> &str {
        self.claims.get("sub").and_then(Value::as_str).unwrap_or_default()
    }

    fn tenant(&self, rule: &ClaimRule<TenantId>) -> Result<TenantId, TokenError> {
        let has = self.values(&rule.claim);
        let found = rule.values.iter().find(|(value, _)| has.contains(&&**value));
        found.map(|(_, tenant)| *tenant).ok_or(TokenError::NotMapped)
    }

    /// Whether another client got the token (`azp`), which is taken only because it names the client
    /// `id` among its audiences.
    fn is_for_another_client(&self, id: &str, audience: &[String]) -> bool {
        let has = self.values("aud");
        let is_for_others = audience.iter().any(|name| name != id && has.contains(&**name));
        let party = self.claims.get("azp").filter(|party| !party.is_null());
        !is_for_others && party.is_some_and(|party| party.as_str() != Some(id))
    }

    /// The values of a claim that is a text or a list. The provider's `max_token` bounds their number.
    fn values(&self, claim: &str) -> HashSet<&str> {
        match self.claim(claim) {
            Some(Value::String(one)) => HashSet::from([&**one]),
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => HashSet::new(),
        }
    }

    /// The known values that a claim lists, as a list or as a text with spaces between. A token without
    /// the claim, or without a known value, has no rights.
    fn listed<T: Copy>(&self, rule: &ClaimRule<T>) -> Result<Vec<T>, TokenError> {
        let has = match self.claim(&rule.claim) {
            Some(Value::String(text)) => text.split_ascii_whitespace().collect(),
            _ => self.values(&rule.claim),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::settings::identity::{ConsoleClient, KeySource};

    fn operators() -> Issuer<OperatorClaims> {
        let values = [
            ("viewers", OperatorRole::Read),
            ("sre", OperatorRole::Operate),
            ("Site Reliability", OperatorRole::Operate),
        ];
        Issuer {
            source: KeySource { issuer: "https://id.test".to_owned(), jwks_url: None, ca: None },
            audience: vec!["console".to_owned(), "cli".to_owned()],
            algorithms: vec!["RS256"],
            leeway: Duration::ZERO,
            max_token: 8_192,
            claims: OperatorClaims {
                roles: ClaimRule {
                    claim: "groups".to_owned(),
                    values: values.map(|(value, role)| (value.to_owned(), role)).to_vec(),
                },
                name: "email".to_owned(),
                console: Some(ConsoleClient { id: "console".to_owned(), scopes: Vec::new() }),
            },
        }
    }

    /// Role and name of a token that has these claims beside usual ones.
    fn granted(claims: &Value) -> Result<(OperatorRole, String), TokenError> {
        let usual = json!({ "aud": "console", "sub": "7", "email": "ann@example.com", "groups": ["sre"] });
        let mut all = usual.as_object().unwrap().clone();
        all.extend(claims.as_object().unwrap().clone());
        OperatorClaims::grant(&VerifiedClaims { claims: all, ends: SystemTime::UNIX_EPOCH }, &operators())
    }

    #[test]
    fn a_text_is_one_role_and_the_highest_of_a_list_counts() {
        let role = |groups: Value| granted(&json!({ "groups": groups })).map(|(role, _)| role);
        let many: Vec<String> =
            (0..1_000).map(|number| format!("g{number}")).chain(["sre".to_owned()]).collect();
        for (groups, expected) in [
            (json!("Site Reliability"), Ok(OperatorRole::Operate)),
            (json!(["others", "Site Reliability"]), Ok(OperatorRole::Operate)),
            (json!("formerly sre"), Err(TokenError::NotMapped)),
            (json!(["formerly sre"]), Err(TokenError::NotMapped)),
            (json!("viewers"), Ok(OperatorRole::Read)),
            (json!(["sre", "viewers"]), Ok(OperatorRole::Operate)),
            (json!(many), Ok(OperatorRole::Operate)),
            (json!([]), Err(TokenError::NotMapped)),
            (json!(7), Err(TokenError::NotMapped)),
        ] {
            assert_eq!(role(groups.clone()), expected, "{groups}");
        }
    }

    #[test]
    fn a_name_is_plain_and_never_empty() {
        let name =
            |email: Value, sub: Value| granted(&json!({ "email": email, "sub": sub })).map(|(_, name)| name);
        assert_eq!(name(json!("ann@example.com"), json!("7")), Ok("ann@example.com".to_owned()));
        assert_eq!(name(json!("Änn\u{202e} \u{200f}X\n[y]\u{7f}"), json!("7")), Ok("ÄnnX[y]".to_owned()));
        for email in [json!(" "), json!("\u{2066}\u{2069}"), json!(""), Value::Null, json!(["ann"])] {
            assert_eq!(name(email.clone(), json!("some body")), Ok("somebody".to_owned()), "{email}");
            assert_eq!(name(email.clone(), json!("\t")), Err(TokenError::Nameless), "{email}");
            assert_eq!(name(email, Value::Null), Err(TokenError::Nameless));
        }
        assert_eq!(name(json!("a".repeat(MAX_NAME + 1)), Value::Null), Ok("a".repeat(MAX_NAME)));
    }

    #[test]
    fn a_token_that_another_client_got_needs_an_audience_of_the_file() {
        let role = |aud: Value, azp: Value| granted(&json!({ "aud": aud, "azp": azp })).map(|(role, _)| role);
        for azp in [json!("console"), Value::Null] {
            assert_eq!(role(json!("console"), azp), Ok(OperatorRole::Operate));
        }
        for azp in [json!("other"), json!(""), json!(["console"])] {
            assert_eq!(role(json!(["console", "x"]), azp.clone()), Err(TokenError::Audience), "{azp}");
            assert_eq!(role(json!(["console", "cli"]), azp), Ok(OperatorRole::Operate));
        }
    }
}
