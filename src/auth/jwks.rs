//! JWKS documents: the keys in a provider's set that can be used.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;

use crate::auth::provider_error::ProviderError;

/// Most keys that are read from a provider's list. Further keys are ignored.
const MAX_KEYS: usize = 128;

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
    pub(super) fn read(bytes: &[u8]) -> Result<Self, ProviderError> {
        let set: Value = serde_json::from_slice(bytes).map_err(|_| ProviderError::NotUnderstood)?;
        let listed = set.get("keys").and_then(Value::as_array).ok_or(ProviderError::NotUnderstood)?;
        let keys: Vec<PublicKey> = listed.iter().take(MAX_KEYS).filter_map(public_key).collect();
        if keys.is_empty() {
            return Err(ProviderError::NoKeys);
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
