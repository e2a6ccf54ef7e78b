//! Token cache: bearer tokens that were found valid, so that each token is verified once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

/// Capacity of each of the two halves, in tokens.
const HALF: usize = 8_192;

/// A token that was found valid under certain rules and keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerifiedToken<G> {
    /// Rights that the token grants.
    pub(super) grant: G,
    /// Name of the token's holder for logs.
    pub(super) id: String,
    /// Expiry of the token, the leeway included.
    pub(super) ends: SystemTime,
    /// Generation of the credentials file under which the token was verified.
    pub(super) epoch: u64,
    /// Keys with which the token was verified.
    pub(super) keys: KeySetVersion,
}

/// The keys of a provider, as they were at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeySetVersion {
    /// Number of the provider.
    pub(super) issuer: usize,
    /// Number of changes of its keys.
    pub(super) version: u64,
}

/// Valid tokens by their hash. When the young half is full, it becomes the old half, and tokens
/// of the former old half that were not used since are dropped.
#[derive(Debug)]
pub(super) struct TokenCache<G> {
    young: HashMap<[u8; 32], Arc<VerifiedToken<G>>>,
    old: HashMap<[u8; 32], Arc<VerifiedToken<G>>>,
}

impl<G> Default for TokenCache<G> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<G> TokenCache<G> {
    pub(super) fn get(&mut self, hash: &[u8; 32]) -> Option<Arc<VerifiedToken<G>>> {
        if let Some(found) = self.young.get(hash) {
            return Some(Arc::clone(found));
        }
        let found = self.old.remove(hash)?;
        self.put(*hash, Arc::clone(&found));
        Some(found)
    }

    pub(super) fn put(&mut self, hash: [u8; 32], token: Arc<VerifiedToken<G>>) {
        if self.young.len() >= HALF {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, token);
    }

    pub(super) fn forget(&mut self, hash: &[u8; 32]) {
        self.young.remove(hash);
        self.old.remove(hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::identity::Grant;
    use crate::core::model::ids::TenantId;

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let token = Arc::new(VerifiedToken {
            grant: Grant::whole(TenantId::new(0)),
            id: String::new(),
            ends: SystemTime::UNIX_EPOCH,
            epoch: 0,
            keys: KeySetVersion { issuer: 0, version: 0 },
        });
        let hash = |number: usize| *blake3::hash(&number.to_le_bytes()).as_bytes();
        let mut cache = TokenCache::default();
        for number in 0..5 * HALF {
            cache.put(hash(number), Arc::clone(&token));
            assert!(cache.get(&hash(0)).is_some(), "it is asked for all the time");
        }
        assert!(cache.young.len() + cache.old.len() <= 2 * HALF);
        assert!(cache.get(&hash(1)).is_none());
        cache.forget(&hash(0));
        assert!(cache.get(&hash(0)).is_none());
    }
}
