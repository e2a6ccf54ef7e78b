//! Tokens that were found valid, so that each is checked once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use crate::config::settings::identity::Grant;

/// Tokens of one half; there are two.
const HALF: usize = 8_192;

/// A token that was found valid, by certain rules and keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerifiedToken {
    /// What it stands for.
    pub(super) grant: Grant,
    /// A name for its holder that tells nothing of them.
    pub(super) id: String,
    /// When it ends, the leeway included.
    pub(super) ends: SystemTime,
    /// The rules by which it was checked.
    pub(super) epoch: u64,
    /// The keys by which it was checked: which provider's, and which of those.
    pub(super) keys: (usize, u64),
}

/// Valid tokens by their hash. When the young half is full it becomes the old
/// one, and what nobody asked for since is gone.
#[derive(Debug, Default)]
pub(super) struct TokenCache {
    young: HashMap<[u8; 32], Arc<VerifiedToken>>,
    old: HashMap<[u8; 32], Arc<VerifiedToken>>,
}

impl TokenCache {
    pub(super) fn get(&mut self, hash: &[u8; 32]) -> Option<Arc<VerifiedToken>> {
        if let Some(found) = self.young.get(hash) {
            return Some(Arc::clone(found));
        }
        let found = self.old.remove(hash)?;
        self.put(*hash, Arc::clone(&found));
        Some(found)
    }

    pub(super) fn put(&mut self, hash: [u8; 32], token: Arc<VerifiedToken>) {
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
    use crate::core::model::ids::TenantId;

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let token = Arc::new(VerifiedToken {
            grant: Grant::whole(TenantId::new(0)),
            id: String::new(),
            ends: SystemTime::UNIX_EPOCH,
            epoch: 0,
            keys: (0, 0),
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
