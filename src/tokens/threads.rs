//! Counting threads: the few threads that count tokens, so that the threads that serve requests do
//! not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::tokens::counter::{CountError, CountedTokens, MediaCosts, PromptForm, TokenCounter};

/// The number of threads.
const THREADS: usize = 2;
/// The niceness of the threads. Without it, threads that serve requests would wait for the end of
/// the counters' time slices where cores are few.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;
/// The most requests that may wait to be counted. The gateway estimates further requests.
const WAITING: usize = 64;

/// The queue of requests to count. The threads start with the first request and end with the queue.
#[derive(Debug, Default)]
pub struct CountingThreads {
    queue: Mutex<Option<SyncSender<CountJob>>>,
    requested: AtomicU64,
}

#[derive(Debug)]
struct CountJob {
    request: CountRequest,
    stop: Arc<AtomicBool>,
    reply: oneshot::Sender<Result<CountedTokens, CountError>>,
}

/// A request to count.
#[derive(Debug)]
pub struct CountRequest {
    /// The tokenizer and template of the request's model.
    pub counter: Arc<TokenCounter>,
    /// The form of the request's prompt.
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
    #[must_use]
    pub fn requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }

    /// Counts a request's prompt. Dropping the future stops the count.
    ///
    /// # Errors
    /// See [`CountError`]; also when too many requests wait already.
    pub async fn count(&self, order: CountRequest) -> Result<CountedTokens, CountError> {
        let unsure = |why: &str| CountError::Unsure(why.to_owned());
        let stop = StopOnDrop(Arc::default());
        let (reply, answer) = oneshot::channel();
        let job = CountJob { request: order, stop: Arc::clone(&stop.0), reply };
        self.requested.fetch_add(1, Ordering::Relaxed);
        let queue = self.queue().ok_or_else(|| unsure("there is no thread to count it"))?;
        queue.try_send(job).map_err(|_| unsure("too many wait to be counted"))?;
        answer.await.unwrap_or_else(|_| Err(unsure("the count broke off")))
    }

    fn queue(&self) -> Option<SyncSender<CountJob>> {
        let mut queue = self.queue.lock();
        if queue.is_none() {
            let (sender, receiver) = sync_channel(WAITING);
            let receiver = Arc::new(Mutex::new(receiver));
            let mut started = 0;
            for number in 0..THREADS {
                let receiver = Arc::clone(&receiver);
                let thread = thread::Builder::new().name(format!("count-{number}"));
                started += usize::from(thread.spawn(move || work(&receiver)).is_ok());
            }
            *queue = (started > 0).then_some(sender);
        }
        queue.clone()
    }
}

fn work(receiver: &Mutex<Receiver<CountJob>>) {
    // On Linux the priority is that of this thread alone. Where the change is not allowed, the
    // thread counts at normal priority.
    #[cfg(target_os = "linux")]
    let _as_urgent = rustix::process::setpriority_process(None, NICENESS);
    loop {
        let next = receiver.lock().recv();
        let Ok(CountJob { request: order, stop, reply }) = next else { return };
        if stop.load(Ordering::Relaxed) {
            continue;
        }
        let CountRequest { counter, form, body, media, now } = order;
        // A panic of a tokenizer must not end the thread: the next request is counted.
        let counting = || counter.count(form, &body, &media, now, &stop);
        let counted = catch_unwind(AssertUnwindSafe(counting));
        let broke = || Err(CountError::Unsure("the count broke off".to_owned()));
        // The caller may have left.
        let _left = reply.send(counted.unwrap_or_else(|_| broke()));
    }
}
