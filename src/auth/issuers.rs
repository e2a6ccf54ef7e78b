//! The identity providers: their keys, fetched beside the request path, and
//! the tokens that were checked with them.
//!
//! Keys are fetched when a provider comes into the settings, every few minutes,
//! and when a token names one that is not known; the last happens seldom,
//! whatever clients send. A provider that is away leaves its last keys in
//! force.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::auth::cache::{TokenCache, VerifiedToken};
use crate::auth::jwks::{JwksFetcher, KeySet, PublicKey};
use crate::auth::jwt::{self, TokenError};
use crate::auth::throttle::{FailureRate, TokenBucket};
use crate::config::settings::identity::{Credentials, Issuer, KeySource};
use crate::dispatcher::clock::GatewayClock;
use crate::telemetry::event::{IssuerKeysFetched, IssuerKeysLost};
use crate::telemetry::{Telemetry, wall};

/// How often keys are fetched when nothing asks for it.
const REFRESH: Duration = Duration::from_secs(300);
/// How soon again after a failure; it doubles up to [`REFRESH`].
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// How often tokens with unknown keys may have keys fetched.
const ASKS: FailureRate = FailureRate { burst: 4, per_minute: 6 };
/// The longest wait of a request for keys.
const PATIENCE: Duration = Duration::from_secs(2);
/// What a client is told while keys cannot be had.
pub(super) const USUAL_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The providers in the settings.
#[derive(Debug, Default)]
pub(super) struct Issuers {
    rows: Mutex<HashMap<KeySource, IssuerTask>>,
    next: AtomicUsize,
    cache: Mutex<TokenCache>,
}

/// A provider with the task that fetches its keys.
#[derive(Debug)]
struct IssuerTask {
    ring: Arc<Keyring>,
    keeper: AbortHandle,
}

impl Drop for IssuerTask {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// The keys of one provider.
#[derive(Debug)]
struct Keyring {
    number: usize,
    keys: ArcSwap<KeySet>,
    /// Counts the different sets of keys.
    version: watch::Sender<u64>,
    /// Counts the fetches that ended.
    fetches: watch::Sender<u64>,
    failing: AtomicBool,
    /// Somebody waits for a fetch that has not ended.
    asked: AtomicBool,
    ask: Notify,
    asks: Mutex<(GatewayClock, TokenBucket)>,
}

impl Keyring {
    fn new(number: usize) -> Self {
        Self {
            number,
            keys: ArcSwap::default(),
            version: watch::Sender::new(0),
            fetches: watch::Sender::new(0),
            failing: AtomicBool::new(false),
            asked: AtomicBool::new(true),
            ask: Notify::new(),
            asks: Mutex::new((GatewayClock::start(), TokenBucket::default())),
        }
    }

    /// Has keys fetched, unless that was done too often. Says whether a fetch
    /// is to be waited for.
    fn ask(&self) -> bool {
        if self.asked.load(Ordering::Acquire) {
            return true;
        }
        let mut asks = self.asks.lock();
        let now = asks.0.now();
        if asks.1.take(now, ASKS).is_err() {
            return false;
        }
        self.asked.store(true, Ordering::Release);
        self.ask.notify_one();
        true
    }

    /// The key of a token; if it is not known, after one more fetch.
    async fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<PublicKey, TokenError> {
        let mut fetches = self.fetches.subscribe();
        let find = || self.keys.load().find(id, algorithm).cloned();
        if let Some(key) = find() {
            return Ok(key);
        }
        if self.ask() {
            // In time or not: what there is now decides.
            let _ = timeout(PATIENCE, fetches.changed()).await;
            if let Some(key) = find() {
                return Ok(key);
            }
        }
        let away = self.failing.load(Ordering::Acquire) || self.keys.load().len() == 0;
        Err(if away { TokenError::Unavailable } else { TokenError::UnknownKey })
    }

    /// Fetches keys for ever.
    async fn keep(self: Arc<Self>, source: KeySource, telemetry: Telemetry) {
        let issuer = source.issuer.clone();
        let fetcher = JwksFetcher::new(source);
        let mut retry = FIRST_RETRY;
        loop {
            let fetched = fetcher.fetch().await;
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
            self.asked.store(false, Ordering::Release);
            self.fetches.send_modify(|fetches| *fetches += 1);
            tokio::select! {
                () = sleep(wait) => {}
                () = self.ask.notified() => {}
            }
        }
    }
}

impl Issuers {
    /// Fetches the keys of these providers from now on, and no others'.
    pub(super) fn follow(&self, issuers: &[Arc<Issuer>], telemetry: &Telemetry) {
        let mut rows = self.rows.lock();
        rows.retain(|source, _| issuers.iter().any(|issuer| issuer.source == *source));
        for issuer in issuers {
            rows.entry(issuer.source.clone()).or_insert_with(|| {
                let ring = Arc::new(Keyring::new(self.next.fetch_add(1, Ordering::Relaxed)));
                let keep = Arc::clone(&ring).keep(issuer.source.clone(), telemetry.clone());
                IssuerTask { ring, keeper: tokio::spawn(keep).abort_handle() }
            });
        }
    }

    fn ring(&self, source: &KeySource) -> Option<Arc<Keyring>> {
        self.rows.lock().get(source).map(|row| Arc::clone(&row.ring))
    }

    /// Checks a token.
    pub(super) async fn verify(
        &self,
        known: &Credentials,
        text: &str,
    ) -> Result<Arc<VerifiedToken>, TokenError> {
        let longest = known.issuers.iter().map(|issuer| issuer.max_token).max().unwrap_or_default();
        if text.len() > longest {
            return Err(TokenError::TooLong);
        }
        let hash = *blake3::hash(text.as_bytes()).as_bytes();
        if let Some(token) = self.remembered(known, &hash) {
            return Ok(token);
        }
        let unproved = jwt::read(text)?;
        let issuer = known.issuers.iter().find(|issuer| issuer.source.issuer == unproved.issuer);
        let issuer = issuer.ok_or(TokenError::Issuer)?;
        if text.len() > issuer.max_token {
            return Err(TokenError::TooLong);
        }
        let algorithm = jwt::algorithm(&unproved.header, issuer)?;
        // It may just have come into the settings.
        let ring = self.ring(&issuer.source).ok_or(TokenError::Unavailable)?;
        let version = *ring.version.borrow();
        let key = ring.find(unproved.header.kid.as_deref(), algorithm).await?;
        let proved = jwt::prove(text, &key, algorithm, issuer)?;
        let token = Arc::new(VerifiedToken {
            grant: proved.grant(issuer)?,
            id: proved.id(issuer),
            ends: proved.ends,
            epoch: known.epoch,
            keys: (ring.number, version),
        });
        self.cache.lock().put(hash, Arc::clone(&token));
        Ok(token)
    }

    /// A token that was checked before, by the rules and keys of today, and
    /// whose time is not over.
    fn remembered(&self, known: &Credentials, hash: &[u8; 32]) -> Option<Arc<VerifiedToken>> {
        let token = self.cache.lock().get(hash)?;
        let (number, version) = token.keys;
        let current = || {
            let rows = self.rows.lock();
            rows.values().any(|row| row.ring.number == number && *row.ring.version.borrow() == version)
        };
        if token.epoch == known.epoch && token.ends > wall::now() && current() {
            return Some(token);
        }
        self.cache.lock().forget(hash);
        None
    }
}
