//! API keys: `pst_<public id>_<secret>`.
//!
//! The file holds the BLAKE3 digest of the whole key, so reading the file
//! gives nobody a key. A plain digest is enough because the secret is 32
//! random bytes and not a password. The public id finds the digest and is
//! what logs show.

use std::collections::HashMap;
use std::fmt;
use std::time::SystemTime;

use subtle::ConstantTimeEq;

use crate::config::settings::identity::{KeyEntry, TokenEntry};

const PREFIX: &str = "pst_";
const DIGEST_PREFIX: &str = "blake3:";
/// Bytes of the longest text that is looked at.
const MAX_KEY_BYTES: usize = 256;
/// Letters of the shortest secret: 160 random bits in base 32.
const MIN_SECRET: usize = 32;

/// Random bytes that a new key is made of.
pub const RANDOM_BYTES: usize = 40;
/// The first of them are the public id's.
const ID_BYTES: usize = 5;

/// A new key. The text is shown once and kept nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct NewKey {
    /// The whole key, for its holder.
    pub text: String,
    /// The public id, for the file and for logs.
    pub id: String,
    /// `blake3:<hex>`, for the file.
    pub digest: String,
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewKey").field("id", &self.id).field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// The parts of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyParts<'a> {
    /// The public id.
    pub id: &'a str,
    /// The secret.
    pub secret: &'a str,
}

impl fmt::Debug for KeyParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyParts").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why a key was refused. Clients get the same answer for all of them; logs
/// may tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not the form of a key.
    #[error("not a Penstock key")]
    Malformed,
    /// No such public id.
    #[error("unknown key id")]
    Unknown,
    /// The public id is known, the secret is wrong.
    #[error("wrong secret")]
    Mismatch,
    /// It was right, and its time is over.
    #[error("expired")]
    Expired,
}

/// Makes a key of random bytes.
#[must_use]
pub fn new(random: &[u8; RANDOM_BYTES]) -> NewKey {
    let (id, secret) = random.split_at(ID_BYTES);
    let id = base32(id);
    let text = format!("{PREFIX}{id}_{}", base32(secret));
    let digest = digest_text(&digest(&text));
    NewKey { text, id, digest }
}

/// Takes a key apart; `None` when it has not the form of one.
#[must_use]
pub fn parse(text: &str) -> Option<KeyParts<'_>> {
    if text.len() > MAX_KEY_BYTES {
        return None;
    }
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let url_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let secret_fits = secret.len() >= MIN_SECRET && secret.bytes().all(url_safe);
    (is_id(id) && secret_fits).then_some(KeyParts { id, secret })
}

/// Whether this is the form of a public id: 8 to 12 lower-case letters and
/// digits.
#[must_use]
pub fn is_id(id: &str) -> bool {
    (8..=12).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// The digest of a key's whole text.
#[must_use]
pub fn digest(text: &str) -> [u8; 32] {
    *blake3::hash(text.as_bytes()).as_bytes()
}

/// A digest as it is written in the file: `blake3:<hex>`.
#[must_use]
pub fn digest_text(digest: &[u8; 32]) -> String {
    format!("{DIGEST_PREFIX}{}", blake3::Hash::from_bytes(*digest).to_hex())
}

/// Reads `blake3:<hex>`.
#[must_use]
pub fn parse_digest(text: &str) -> Option<[u8; 32]> {
    let hex = text.strip_prefix(DIGEST_PREFIX)?;
    blake3::Hash::from_hex(hex).ok().map(|hash| *hash.as_bytes())
}

/// What a key opens.
pub trait HashedCredential {
    /// BLAKE3 of the whole key.
    fn digest(&self) -> &[u8; 32];
    /// From when on it opens nothing; absent = it always does.
    fn expires(&self) -> Option<SystemTime>;
}

impl HashedCredential for KeyEntry {
    fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    fn expires(&self) -> Option<SystemTime> {
        self.expires
    }
}

impl HashedCredential for TokenEntry {
    fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    fn expires(&self) -> Option<SystemTime> {
        self.expires
    }
}

/// The entry that a key opens, found in a time that does not depend on how
/// much of the secret is right. `now` is asked only for keys that expire.
///
/// # Errors
/// When the text is no key, or none that `keys` holds, or one whose time is
/// over.
pub fn verify<'a, L: HashedCredential>(
    keys: &'a HashMap<String, L>,
    text: &str,
    now: impl FnOnce() -> SystemTime,
) -> Result<&'a L, KeyError> {
    let parts = parse(text).ok_or(KeyError::Malformed)?;
    let digest = digest(text);
    let entry = keys.get(parts.id).ok_or(KeyError::Unknown)?;
    if !bool::from(entry.digest().ct_eq(&digest)) {
        return Err(KeyError::Mismatch);
    }
    match entry.expires() {
        Some(end) if end <= now() => Err(KeyError::Expired),
        _ => Ok(entry),
    }
}

/// RFC 4648 base 32 in lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| usize::from(byte >> (7 - at % 8) & 1));
    let letter = |at: usize| char::from(ALPHABET[(at..at + 5).fold(0, |value, at| value << 1 | bit(at))]);
    (0..bytes.len() * 8).step_by(5).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::config::settings::identity::Grant;
    use crate::core::model::ids::TenantId;

    fn ring(text: &str) -> HashMap<String, KeyEntry> {
        let entry = KeyEntry { digest: digest(text), grant: Grant::whole(TenantId::new(3)), expires: None };
        HashMap::from([(parse(text).unwrap().id.to_owned(), entry)])
    }

    #[test]
    fn base32_agrees_with_the_rfc() {
        for (bytes, text) in
            [("", ""), ("f", "my"), ("fo", "mzxq"), ("foob", "mzxw6yq"), ("foobar", "mzxw6ytboi")]
        {
            assert_eq!(base32(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn only_the_whole_key_opens() {
        let key = new(&std::array::from_fn(|at| at as u8));
        assert_eq!(key.text.len(), 4 + 8 + 1 + 56);
        let keys = ring(&key.text);
        let verify = |text: &str| verify(&keys, text, || SystemTime::UNIX_EPOCH);
        assert_eq!(verify(&key.text).unwrap().grant.tenant, TenantId::new(3));
        let other = new(&[9; RANDOM_BYTES]);
        assert_eq!(verify(&other.text).unwrap_err(), KeyError::Unknown);
        let forged = format!("pst_{}_{}", key.id, parse(&other.text).unwrap().secret);
        assert_eq!(verify(&forged).unwrap_err(), KeyError::Mismatch);
        for text in ["", "sk-123", "pst_", "pst_abc_def", &key.text.to_uppercase(), &key.text[..40]] {
            assert_eq!(verify(text).unwrap_err(), KeyError::Malformed, "{text:?}");
        }
        assert_eq!(parse(&format!("{}{}", key.text, "a".repeat(300))), None);
        assert_eq!(parse(&format!("{}\u{e9}", key.text)), None);
    }

    #[test]
    fn a_key_ends_at_its_moment_and_only_for_its_holder() {
        let key = new(&[1; RANDOM_BYTES]);
        let mut keys = ring(&key.text);
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        keys.get_mut(&key.id).unwrap().expires = Some(end);
        let at = |text: &str, seconds| {
            verify(&keys, text, || SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).map(|_| ())
        };
        assert_eq!(at(&key.text, 99), Ok(()));
        assert_eq!(at(&key.text, 100), Err(KeyError::Expired));
        let wrong = format!("{}a", key.text);
        assert_eq!(at(&wrong, 100), Err(KeyError::Mismatch), "others are not told");
    }

    #[test]
    fn debug_hides_the_secret() {
        let key = new(&[7; RANDOM_BYTES]);
        let secret = parse(&key.text).unwrap().secret.to_owned();
        assert!(!format!("{key:?} {:?}", parse(&key.text)).contains(&secret));
    }

    #[test]
    fn digests_are_strict() {
        let digest = digest("x");
        assert_eq!(parse_digest(&digest_text(&digest)), Some(digest));
        for text in ["", "blake3:", "blake3:00", "sha256:00", &format!("blake3:{}", "g".repeat(64))] {
            assert_eq!(parse_digest(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_key_made_can_be_read(random in any::<[u8; 32]>(), id in any::<[u8; 8]>()) {
            let bytes: [u8; RANDOM_BYTES] = std::array::from_fn(|at| if at < 8 { id[at] } else { random[at - 8] });
            let key = new(&bytes);
            let parts = parse(&key.text).unwrap();
            prop_assert_eq!(parts.id, &key.id);
            prop_assert_eq!(parse_digest(&key.digest), Some(digest(&key.text)));
            prop_assert!(verify(&ring(&key.text), &key.text, || SystemTime::UNIX_EPOCH).is_ok());
        }

        #[test]
        fn any_text_is_parsed_or_refused(text: String) {
            let _ = parse(&text);
            let _ = parse_digest(&text);
        }
    }
}
