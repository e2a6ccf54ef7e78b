//! Identity providers: their public keys, fetched outside the request path, and the cache of
//! tokens that were verified with the keys.
//!
//! The gateway fetches keys when a provider enters the settings, every few minutes, and when a
//! token names an unknown key. Fetches for unknown keys are rare, whatever clients send. When a
//! provider cannot be reached, its last keys stay in force.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::auth::cache::{KeySetVersion, TokenCache, VerifiedToken};
use crate::auth::jwks::{KeySet, PublicKey};
use crate::auth::jwt::{self, TokenClaims, TokenError};
use crate::auth::provider::ProviderClient;
use crate::auth::throttle::{FailureRate, TokenBucket};
use crate::config::settings::identity::{Issuer, KeySource};
use crate::dispatcher::clock::GatewayClock;
use crate::telemetry::event::{IssuerKeysFetched, IssuerKeysLost};
use crate::telemetry::{Telemetry, wall};

/// Interval between fetches that no token asked for.
const REFRESH: Duration = Duration::from_secs(300);
/// Wait after the first failed fetch. The wait doubles with each failure, up to [`REFRESH`].
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Rate limit of the fetches for tokens with unknown keys.
const FETCH_RATE: FailureRate = FailureRate { burst: 4, per_minute: 6 };
/// Longest time that a request waits for a fetch of keys.
const PATIENCE: Duration = Duration::from_secs(2);
/// `Retry-After` for clients while the provider's keys cannot be fetched.
pub(super) const USUAL_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The identity providers in the settings, and the cache of verified tokens.
#[derive(Debug)]
pub(super) struct Issuers<C: TokenClaims> {
    rows: Mutex<HashMap<KeySource, IssuerTask>>,
    next: AtomicUsize,
    cache: Mutex<TokenCache<C::Grant>>,
}

impl<C: TokenClaims> Default for Issuers<C> {
    fn default() -> Self {
        Self { rows: Mutex::default(), next: AtomicUsize::new(0), cache: Mutex::default() }
    }
}

/// A provider's keys with the task that fetches them. Dropping the value ends the task.
#[derive(Debug)]
struct IssuerTask {
    keys: Arc<IssuerKeys>,
    _fetches: AbortOnDropHandle<()>,
}

/// The keys of one provider, and the state of their fetches.
#[derive(Debug)]
struct IssuerKeys {
    number: usize,
    keys: ArcSwap<KeySet>,
    /// Number of changes of the key set.
    version: watch::Sender<u64>,
    /// Number of fetches that ended, with or without keys.
    fetches: watch::Sender<u64>,
    failing: AtomicBool,
    /// Whether a fetch was asked for and has not ended.
    fetch_requested: AtomicBool,
    fetch_wakeup: Notify,
    fetch_limiter: Mutex<FetchLimiter>,
}

/// Rate limiter of the fetches for tokens with unknown keys.
#[derive(Debug)]
struct FetchLimiter {
    clock: GatewayClock,
    bucket: TokenBucket,
}

impl IssuerKeys {
    fn new(number: usize) -> Self {
        Self {
            number,
            keys: ArcSwap::default(),
            version: watch::Sender::new(0),
            fetches: watch::Sender::new(0),
            failing: AtomicBool::new(false),
            fetch_requested: AtomicBool::new(true),
            fetch_wakeup: Notify::new(),
            fetch_limiter: Mutex::new(FetchLimiter {
                clock: GatewayClock::start(),
                bucket: TokenBucket::default(),
            }),
        }
    }

    /// Asks for a fetch of keys, within the rate limit. Returns whether the caller should wait for
    /// a fetch.
    fn request_fetch(&self) -> bool {
        if self.fetch_requested.load(Ordering::Acquire) {
            return true;
        }
        let mut limiter = self.fetch_limiter.lock();
        let now = limiter.clock.now();
        if limiter.bucket.take(now, FETCH_RATE).is_err() {
            return false;
        }
        self.fetch_requested.store(true, Ordering::Release);
        self.fetch_wakeup.notify_one();
        true
    }

    /// Finds the key of a token. If the key is unknown, the search waits for one more fetch.
    async fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<PublicKey, TokenError> {
        let mut fetches = self.fetches.subscribe();
        let find = || self.keys.load().find(id, algorithm).cloned();
        if let Some(key) = find() {
            return Ok(key);
        }
        if self.request_fetch() {
            // The search is repeated even after a timeout.
            let _ = timeout(PATIENCE, fetches.changed()).await;
            if let Some(key) = find() {
                return Ok(key);
            }
        }
        let away = self.failing.load(Ordering::Acquire) || self.keys.load().len() == 0;
        Err(if away { TokenError::Unavailable } else { TokenError::UnknownKey })
    }

    /// Fetches the keys again and again, until the task is aborted.
    async fn run_fetches(self: Arc<Self>, source: KeySource, telemetry: Telemetry) {
        let issuer = source.issuer.clone();
        let client = ProviderClient::new(source);
        let mut retry = FIRST_RETRY;
        loop {
            let fetched = client.keys().await;
            let failed_before = self.failing.load(Ordering::Acquire);
            let wait = match fetched {
                Ok(keys) => {
                    let (count, changed) = (keys.len(), keys.digest != self.keys.load().digest);
                    self.failing.store(false, Ordering::Release);
                    if changed {
                        self.keys.store(Arc::new(keys));
                        self.version.send_modify(|version| *version += 1);
                    }
                    if changed || failed_before {
                        IssuerKeysFetched { issuer: &issuer, keys: count }.emit(&telemetry);
                    }
                    retry = FIRST_RETRY;
                    REFRESH
                }
                Err(trouble) => {
                    self.failing.store(true, Ordering::Release);
                    let (problem, held) = (trouble.to_string(), self.keys.load().len());
                    IssuerKeysLost { issuer: &issuer, problem: &problem, held, first: !failed_before }
                        .emit(&telemetry);
                    let wait = retry;
                    retry = (retry * 2).min(REFRESH);
                    wait
                }
            };
            self.fetch_requested.store(false, Ordering::Release);
            self.fetches.send_modify(|fetches| *fetches += 1);
            tokio::select! {
                () = sleep(wait) => {}
                () = self.fetch_wakeup.notified() => {}
            }
        }
    }
}

impl<C: TokenClaims> Issuers<C> {
    /// Fetches the keys of exactly these providers from now on.
    pub(super) fn set_issuers(&self, issuers: &[Arc<Issuer<C>>], telemetry: &Telemetry) {
        let mut rows = self.rows.lock();
        rows.retain(|source, _| issuers.iter().any(|issuer| issuer.source == *source));
        for issuer in issuers {
            rows.entry(issuer.source.clone()).or_insert_with(|| {
                let keys = Arc::new(IssuerKeys::new(self.next.fetch_add(1, Ordering::Relaxed)));
                let keep = Arc::clone(&keys).run_fetches(issuer.source.clone(), telemetry.clone());
                IssuerTask { keys, _fetches: AbortOnDropHandle::new(tokio::spawn(keep)) }
            });
        }
    }

    fn keys_of(&self, source: &KeySource) -> Option<Arc<IssuerKeys>> {
        self.rows.lock().get(source).map(|row| Arc::clone(&row.keys))
    }

    /// Verifies a token, or finds it in the cache. `epoch` = the generation of the file that the
    /// `issuers` stand in.
    pub(super) async fn verify(
        &self,
        issuers: &[Arc<Issuer<C>>],
        epoch: u64,
        text: &str,
    ) -> Result<Arc<VerifiedToken<C::Grant>>, TokenError> {
        let longest = issuers.iter().map(|issuer| issuer.max_token).max().unwrap_or_default();
        if text.len() > longest {
            return Err(TokenError::TooLong);
        }
        let hash = *blake3::hash(text.as_bytes()).as_bytes();
        if let Some(token) = self.remembered(epoch, &hash) {
            return Ok(token);
        }
        let unproved = jwt::read(text)?;
        let issuer = issuers.iter().find(|issuer| issuer.source.issuer == unproved.issuer);
        let issuer = issuer.ok_or(TokenError::Issuer)?;
        if text.len() > issuer.max_token {
            return Err(TokenError::TooLong);
        }
        let algorithm = jwt::algorithm(&unproved.header, issuer)?;
        // A provider that has just entered the settings may not have its keys yet.
        let keys = self.keys_of(&issuer.source).ok_or(TokenError::Unavailable)?;
        let version = *keys.version.borrow();
        let key = keys.find(unproved.header.kid.as_deref(), algorithm).await?;
        let proved = jwt::verify(text, &key, algorithm, issuer)?;
        let (grant, id) = C::grant(&proved, issuer)?;
        let keys = KeySetVersion { issuer: keys.number, version };
        let token = Arc::new(VerifiedToken { grant, id, ends: proved.ends, epoch, keys });
        self.cache.lock().put(hash, Arc::clone(&token));
        Ok(token)
    }

    /// The cached token of this hash, if the token was verified under the current rules and keys
    /// and has not expired.
    fn remembered(&self, epoch: u64, hash: &[u8; 32]) -> Option<Arc<VerifiedToken<C::Grant>>> {
        let token = self.cache.lock().get(hash)?;
        let KeySetVersion { issuer, version } = token.keys;
        let current = || {
            let rows = self.rows.lock();
            rows.values().any(|row| row.keys.number == issuer && *row.keys.version.borrow() == version)
        };
        if token.epoch == epoch && token.ends > wall::now() && current() {
            return Some(token);
        }
        self.cache.lock().forget(hash);
        None
    }
}
