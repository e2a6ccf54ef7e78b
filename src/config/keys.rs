//! API keys: `pst_<public id>_<secret>`, or any other secret that nobody can
//! guess, such as the key of another gateway.
//!
//! The file holds the digest (BLAKE3, or SHA-256 where another program made
//! it) of the whole key, so reading the file gives nobody a key. A plain
//! digest is enough because a key is random and not a password: with 80
//! random bits or more, trying keys against the digest is hopeless however
//! fast the hash is. The public id is what logs show. It finds the digest of a
//! `pst_` key; other secrets are found by their digest.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

const PREFIX: &str = "pst_";
const BLAKE3_PREFIX: &str = "blake3:";
const SHA256_PREFIX: &str = "sha256:";
/// Bytes of the longest text that is looked at.
const MAX_KEY_BYTES: usize = 256;
/// Letters of the shortest secret: 160 random bits in base 32.
const MIN_SECRET: usize = 32;
/// Letters of the shortest secret of another form: 80 random bits in hex.
const MIN_FOREIGN: usize = 20;
/// Least different letters in it. 20 random hex digits have fewer in one of 10,000 cases.
const MIN_DIFFERENT: usize = 8;
/// Context of BLAKE3's key derivation: an id tells nothing about its secret's digest.
const ID_CONTEXT: &str = "penstock 2026-11 public id of a foreign key";

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

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyParts<'a> {
    /// The public id.
    pub id: &'a str,
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
pub fn new(random: &[u8; RANDOM_BYTES]) -> NewKey {
    let (id, secret) = random.split_at(ID_BYTES);
    let id = base32(id);
    let text = format!("{PREFIX}{id}_{}", base32(secret));
    let digest = digest_text(&digest(&text));
    NewKey { text, id, digest }
}

/// Takes a key apart; `None` when it has not the form of one.
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
pub fn is_id(id: &str) -> bool {
    (8..=12).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Why a text can be no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnfitSecret {
    /// Cut, or with something around it.
    #[error("begins with `pst_` and is no whole Penstock key")]
    Broken,
    /// Guessable.
    #[error("has fewer than {MIN_FOREIGN} characters, so it could be guessed")]
    Short,
    /// Guessable.
    #[error("has fewer than {MIN_DIFFERENT} different characters, so it could be guessed")]
    Plain,
    /// Never looked at.
    #[error("has more than {MAX_KEY_BYTES} characters")]
    Long,
    /// No client could send it.
    #[error("has white space or characters that cannot stand in a header")]
    Unsendable,
}

/// What the configuration holds of a secret that exists already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedKey {
    /// The public id: a Penstock key's own; of another secret always the same
    /// one, which tells nothing about it.
    pub id: String,
    /// `blake3:<hex>`.
    pub digest: String,
    /// Whether it is not of Penstock's form, so that nobody knows whether it is
    /// random.
    pub is_imported: bool,
}

/// Hashes a secret that exists already.
///
/// # Errors
/// When it can be no key, or is so short or plain that it could be guessed. Whether
/// a longer one is random cannot be seen.
pub fn hash(text: &str) -> Result<HashedKey, UnfitSecret> {
    let digest = digest(text);
    let (id, is_imported) = match parse(text) {
        Some(parts) => (parts.id.to_owned(), false),
        None => {
            fit(text)?;
            (derived_id(&digest), true)
        }
    };
    Ok(HashedKey { id, digest: digest_text(&digest), is_imported })
}

/// The public id of a secret that has none in it, by its digest.
pub fn derived_id(digest: &[u8; 32]) -> String {
    base32(&blake3::derive_key(ID_CONTEXT, digest)[..ID_BYTES])
}

fn fit(text: &str) -> Result<(), UnfitSecret> {
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(UnfitSecret::Unsendable);
    }
    if text.starts_with(PREFIX) {
        return Err(UnfitSecret::Broken);
    }
    let different = text.bytes().collect::<BTreeSet<u8>>().len();
    match text.len() {
        length if length < MIN_FOREIGN => Err(UnfitSecret::Short),
        length if length > MAX_KEY_BYTES => Err(UnfitSecret::Long),
        _ if different < MIN_DIFFERENT => Err(UnfitSecret::Plain),
        _ => Ok(()),
    }
}

/// The BLAKE3 digest of a key's whole text.
pub fn digest(text: &str) -> [u8; 32] {
    *blake3::hash(text.as_bytes()).as_bytes()
}

fn sha256(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// A BLAKE3 digest as it is written in the file: `blake3:<hex>`.
pub fn digest_text(digest: &[u8; 32]) -> String {
    KeyDigest::Blake3(*digest).to_string()
}

/// The digest of a key's whole text, with what it was made by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyDigest {
    /// Penstock's own.
    Blake3([u8; 32]),
    /// Of keys that another program hashed, such as LiteLLM.
    Sha256([u8; 32]),
}

impl KeyDigest {
    /// Reads `blake3:<hex>` or `sha256:<hex>`.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = |hex: &str| blake3::Hash::from_hex(hex).ok().map(|hash| *hash.as_bytes());
        if let Some(hex) = text.strip_prefix(SHA256_PREFIX) {
            return bytes(hex).map(Self::Sha256);
        }
        bytes(text.strip_prefix(BLAKE3_PREFIX)?).map(Self::Blake3)
    }

    /// The public id of a secret that has none in it.
    pub fn derived_id(&self) -> String {
        match self {
            Self::Blake3(digest) | Self::Sha256(digest) => derived_id(digest),
        }
    }

    /// Whether it is that of a text, of which `blake3` is the BLAKE3 digest: in a
    /// time that does not depend on how much of it is right.
    fn is_of(&self, text: &str, blake3: &[u8; 32]) -> bool {
        match self {
            Self::Blake3(digest) => digest.ct_eq(blake3).into(),
            Self::Sha256(digest) => digest.ct_eq(&sha256(text)).into(),
        }
    }
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, digest) = match self {
            Self::Blake3(digest) => (BLAKE3_PREFIX, digest),
            Self::Sha256(digest) => (SHA256_PREFIX, digest),
        };
        write!(f, "{prefix}{}", blake3::Hash::from_bytes(*digest).to_hex())
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a key opens.
pub trait HashedCredential {
    /// Digest of the whole key.
    fn digest(&self) -> &KeyDigest;
    /// From when on it opens nothing; absent = it always does.
    fn expires(&self) -> Option<SystemTime>;
}

/// Credentials by their public id.
#[derive(Debug)]
pub struct KeyRing<L> {
    by_id: HashMap<String, L>,
    /// The ids of all of them. An attacker cannot choose a digest, so how long a
    /// look-up takes says nothing about the secrets.
    by_digest: HashMap<KeyDigest, String>,
    /// Whether some digest is SHA-256.
    has_sha256: bool,
}

impl<L> Default for KeyRing<L> {
    fn default() -> Self {
        Self { by_id: HashMap::new(), by_digest: HashMap::new(), has_sha256: false }
    }
}

impl<L: HashedCredential> KeyRing<L> {
    /// Adds a credential.
    pub fn insert(&mut self, id: &str, entry: L) {
        self.has_sha256 |= matches!(entry.digest(), KeyDigest::Sha256(_));
        self.by_digest.insert(*entry.digest(), id.to_owned());
        self.by_id.insert(id.to_owned(), entry);
    }

    /// The credential with this id.
    pub fn get(&self, id: &str) -> Option<&L> {
        self.by_id.get(id)
    }

    /// The id of the credential with this digest.
    pub fn id_with(&self, digest: &KeyDigest) -> Option<&str> {
        self.by_digest.get(digest).map(String::as_str)
    }

    /// Every credential with its id, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &L)> {
        self.by_id.iter().map(|(id, entry)| (id.as_str(), entry))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The credential that a key opens and its id, found in a time that does not
    /// depend on how much of the secret is right. `now` is asked only for keys that
    /// expire.
    ///
    /// # Errors
    /// When the text is no key, or none that is here, or one whose time is over.
    pub fn verify(&self, text: &str, now: impl FnOnce() -> SystemTime) -> Result<(&str, &L), KeyError> {
        if text.len() > MAX_KEY_BYTES {
            return Err(KeyError::Malformed);
        }
        let blake3 = digest(text);
        let id = match parse(text) {
            Some(parts) if self.by_id.contains_key(parts.id) => parts.id,
            // Its digest may stand under another id.
            Some(_) => self.id_of(text, &blake3).ok_or(KeyError::Unknown)?,
            None => self.id_of(text, &blake3).ok_or(KeyError::Malformed)?,
        };
        let (id, entry) = self.by_id.get_key_value(id).ok_or(KeyError::Unknown)?;
        if !entry.digest().is_of(text, &blake3) {
            return Err(KeyError::Mismatch);
        }
        match entry.expires() {
            Some(end) if end <= now() => Err(KeyError::Expired),
            _ => Ok((id, entry)),
        }
    }

    fn id_of(&self, text: &str, blake3: &[u8; 32]) -> Option<&str> {
        let by_digest = |digest| self.by_digest.get(&digest).map(String::as_str);
        by_digest(KeyDigest::Blake3(*blake3))
            .or_else(|| self.has_sha256.then(|| by_digest(KeyDigest::Sha256(sha256(text))))?)
    }
}

impl<L: HashedCredential> FromIterator<(String, L)> for KeyRing<L> {
    fn from_iter<I: IntoIterator<Item = (String, L)>>(entries: I) -> Self {
        let mut ring = Self::default();
        for (id, entry) in entries {
            ring.insert(&id, entry);
        }
        ring
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
    use crate::config::settings::identity::{Grant, KeyEntry};
    use crate::core::model::ids::TenantId;

    fn entry(digest: KeyDigest, expires: Option<SystemTime>) -> KeyEntry {
        KeyEntry { digest, grant: Grant::whole(TenantId::new(3)), expires, origin: Default::default() }
    }

    fn ring(text: &str, expires: Option<SystemTime>) -> KeyRing<KeyEntry> {
        let id = parse(text).unwrap().id.to_owned();
        KeyRing::from_iter([(id, entry(KeyDigest::Blake3(digest(text)), expires))])
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
        let keys = ring(&key.text, None);
        let verify = |text: &str| keys.verify(text, || SystemTime::UNIX_EPOCH);
        let (id, entry) = verify(&key.text).unwrap();
        assert_eq!((id, entry.grant.tenant), (&*key.id, TenantId::new(3)));
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
    fn a_key_opens_under_another_id_of_its_digest() {
        let key = new(&[5; RANDOM_BYTES]);
        let digest = KeyDigest::Blake3(digest(&key.text));
        let keys = KeyRing::from_iter([(digest.derived_id(), entry(digest, None))]);
        let (id, _) = keys.verify(&key.text, || SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(id, digest.derived_id());
    }

    #[test]
    fn a_key_ends_at_its_moment_and_only_for_its_holder() {
        let key = new(&[1; RANDOM_BYTES]);
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let keys = ring(&key.text, Some(end));
        let at = |text: &str, seconds| {
            keys.verify(text, || SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).map(|_| ())
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
        for read in [KeyDigest::Blake3(digest), KeyDigest::Sha256(digest)] {
            assert_eq!(KeyDigest::parse(&read.to_string()), Some(read));
        }
        for text in ["", "blake3:", "blake3:00", "sha256:00", "md5:00", &format!("blake3:{}", "g".repeat(64))]
        {
            assert_eq!(KeyDigest::parse(text), None, "{text:?}");
        }
    }

    /// A key as LiteLLM makes them, and its SHA-256 by another program.
    const FOREIGN: &str = "sk-Xq3v9TtM0b7eKcYw2LpZ1A";
    const FOREIGN_SHA256: &str = "sha256:4eb6134779f437d65110fa815e4cdc4d31a7def1e0b03a4f16e6f725391e689d";

    #[test]
    fn any_secret_can_be_a_key_under_either_digest() {
        let made = hash(FOREIGN).unwrap();
        assert!(made.is_imported && is_id(&made.id), "{made:?}");
        assert!(!made.digest.contains(&made.id) && !FOREIGN.contains(&made.id));
        assert_eq!(hash(FOREIGN), Ok(made.clone()), "always the same line");
        for digest in [&*made.digest, FOREIGN_SHA256] {
            let entry = entry(KeyDigest::parse(digest).unwrap(), None);
            let keys = KeyRing::from_iter([("litellm1".to_owned(), entry)]);
            let verify = |text: &str| keys.verify(text, || SystemTime::UNIX_EPOCH);
            assert_eq!(verify(FOREIGN).unwrap().0, "litellm1");
            for wrong in [&FOREIGN[1..], "litellm1", digest, &FOREIGN.to_lowercase()] {
                assert_eq!(verify(wrong).unwrap_err(), KeyError::Malformed);
            }
        }
    }

    #[test]
    fn a_penstock_key_is_hashed_under_its_own_id() {
        let key = new(&[3; RANDOM_BYTES]);
        let made = hash(&key.text).unwrap();
        assert_eq!((made.id, made.digest, made.is_imported), (key.id, key.digest, false));
    }

    #[test]
    fn what_could_be_guessed_is_no_key() {
        for (text, why) in [
            ("", UnfitSecret::Short),
            ("sk-1234", UnfitSecret::Short),
            ("hunter2hunter2hunte", UnfitSecret::Short),
            ("passwordpasswordpassword", UnfitSecret::Plain),
            ("correct horse battery staple", UnfitSecret::Unsendable),
            ("pst_abcdefgh_cut0123456789", UnfitSecret::Broken),
            (&"0123456789abcdef".repeat(17), UnfitSecret::Long),
        ] {
            assert_eq!(hash(text), Err(why), "{text:?}");
        }
        assert!(hash("3f2504e0-4f89-11d3-9a0c-0305e82c3301").is_ok());
    }

    proptest! {
        #[test]
        fn every_key_made_can_be_read(random in any::<[u8; 32]>(), id in any::<[u8; 8]>()) {
            let bytes: [u8; RANDOM_BYTES] = std::array::from_fn(|at| if at < 8 { id[at] } else { random[at - 8] });
            let key = new(&bytes);
            let parts = parse(&key.text).unwrap();
            prop_assert_eq!(parts.id, &key.id);
            prop_assert_eq!(KeyDigest::parse(&key.digest), Some(KeyDigest::Blake3(digest(&key.text))));
            prop_assert!(ring(&key.text, None).verify(&key.text, || SystemTime::UNIX_EPOCH).is_ok());
        }

        #[test]
        fn any_text_is_parsed_or_refused(text: String) {
            let _ = parse(&text);
            let _ = KeyDigest::parse(&text);
            let _ = hash(&text);
        }
    }
}
