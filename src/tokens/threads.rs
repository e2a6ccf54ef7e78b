//! Counting threads: the few threads that count tokens, so that the threads that serve requests do
//! not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::tokens::counter::{CountError, CountedTokens, MediaCosts, PromptForm, TokenCounter};
use crate::tokens::template::STACK_BYTES;
use crate::tokens::turns::TenantTurns;

/// The number of threads.
const THREADS: usize = 2;
/// The niceness of the threads. Without it, threads that serve requests would wait for the end of
/// the counters' time slices where cores are few.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;
/// The longest that a request waits for its count. The gateway estimates it then.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// The queue of requests to count. The threads start with the first request and end with the queue.
#[derive(Debug, Default)]
pub struct CountingThreads {
    queue: OnceLock<Arc<CountQueue>>,
    requested: AtomicU64,
}

#[derive(Debug, Default)]
struct CountQueue {
    state: Mutex<CountQueueState>,
    changed: Condvar,
}

#[derive(Debug)]
struct CountQueueState {
    turns: TenantTurns<CountJob>,
    is_open: bool,
}

impl Default for CountQueueState {
    fn default() -> Self {
        Self { turns: TenantTurns::default(), is_open: true }
    }
}

#[derive(Debug)]
struct CountJob {
    request: CountRequest,
    stop: Arc<AtomicBool>,
    reply: oneshot::Sender<Result<CountedTokens, CountError>>,
}

#[derive(Debug)]
pub struct CountRequest {
    /// The number of the tenant. Tenants take turns.
    pub tenant: u32,
    /// The tokenizer and template of the request's model.
    pub counter: Arc<TokenCounter>,
    pub form: PromptForm,
    /// The request's JSON body.
    pub body: Bytes,
    /// The tokens that images and sounds are counted as.
    pub media: MediaCosts,
    /// The time that a template may print, in seconds since 1970.
    pub now: i64,
}

/// Stops the count when the caller drops the future.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl CountingThreads {
    /// The number of requests so far, also those that found the queue full.
    pub fn requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }

    /// Counts a request's prompt. Dropping the future stops the count.
    ///
    /// # Errors
    /// See [`CountError`]; also when too many requests of the tenant wait already, or the count takes
    /// longer than two seconds.
    pub async fn count(&self, order: CountRequest) -> Result<CountedTokens, CountError> {
        let unsure = |why: &str| CountError::Unsure(why.to_owned());
        let stop = StopOnDrop(Arc::default());
        let (reply, answer) = oneshot::channel();
        let tenant = order.tenant;
        let job = CountJob { request: order, stop: Arc::clone(&stop.0), reply };
        self.requested.fetch_add(1, Ordering::Relaxed);
        if !self.queue().push(tenant, job) {
            return Err(unsure("too many wait to be counted"));
        }
        match timeout(MAX_WAIT, answer).await {
            Ok(Ok(counted)) => counted,
            Ok(Err(_)) => Err(unsure("the count broke off")),
            Err(_) => Err(unsure("the count takes too long")),
        }
    }

    /// The queue. Starts the threads with the first request.
    fn queue(&self) -> &Arc<CountQueue> {
        self.queue.get_or_init(|| {
            let queue = Arc::<CountQueue>::default();
            let start = |number: usize| {
                let queue = Arc::clone(&queue);
                let thread = thread::Builder::new().name(format!("count-{number}")).stack_size(STACK_BYTES);
                thread.spawn(move || work(&queue))
            };
            let started = (0..THREADS).filter(|number| start(*number).is_ok()).count();
            queue.state.lock().is_open = started > 0;
            queue
        })
    }
}

impl Drop for CountingThreads {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.get() {
            queue.state.lock().is_open = false;
            queue.changed.notify_all();
        }
    }
}

impl CountQueue {
    /// Adds a job. Returns false if the queue has no room for it.
    fn push(&self, tenant: u32, job: CountJob) -> bool {
        let mut state = self.state.lock();
        let added = state.is_open && state.turns.push(tenant, job);
        drop(state);
        self.changed.notify_one();
        added
    }

    /// Waits for the next job. Returns `None` when the queue has ended.
    fn pop(&self) -> Option<CountJob> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.turns.pop() {
                return Some(job);
            }
            if !state.is_open {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}

fn work(queue: &CountQueue) {
    // On Linux the priority is that of this thread alone. Where the change is not allowed, the
    // thread counts at normal priority.
    #[cfg(target_os = "linux")]
    let _as_urgent = rustix::process::setpriority_process(None, NICENESS);
    while let Some(CountJob { request: order, stop, reply }) = queue.pop() {
        if stop.load(Ordering::Relaxed) {
            continue;
        }
        let CountRequest { counter, form, body, media, now, .. } = order;
        // A panic of a tokenizer must not end the thread: the next request is counted.
        let counting = || counter.count(form, &body, &media, now, &stop);
        let counted = catch_unwind(AssertUnwindSafe(counting));
        let broke = || Err(CountError::Unsure("the count broke off".to_owned()));
        // The caller may have left.
        let _left = reply.send(counted.unwrap_or_else(|_| broke()));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_two_seconds_for_its_count_and_no_longer() {
        // No thread takes from this queue, as if all were at longer counts.
        let queue = Arc::<CountQueue>::default();
        let threads =
            CountingThreads { queue: OnceLock::from(Arc::clone(&queue)), requested: AtomicU64::default() };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/byte-level");
        let order = CountRequest {
            tenant: 1,
            counter: Arc::new(TokenCounter::open(&folder).unwrap()),
            form: PromptForm::Text,
            body: Bytes::from_static(br#"{"prompt":"hello"}"#),
            media: MediaCosts::default(),
            now: 0,
        };
        let began = Instant::now();
        let counted = threads.count(order).await;
        assert_eq!(counted, Err(CountError::Unsure("the count takes too long".to_owned())));
        let waited = began.elapsed();
        assert!(waited >= MAX_WAIT && waited < MAX_WAIT + Duration::from_millis(10), "{waited:?}");
        let left_behind = queue.pop().unwrap();
        assert!(left_behind.stop.load(Ordering::Relaxed), "a thread that comes to it counts nothing");
    }
}
