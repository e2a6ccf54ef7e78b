//! The few threads that count tokens, so that those that serve requests do not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::tokens::counter::{CountError, CountedTokens, MediaCosts, PromptForm, TokenCounter};

/// Threads that count.
const THREADS: usize = 2;
/// How far they stand behind the threads that serve requests, which would else
/// wait for the end of their time slices where cores are few.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;
/// Requests that may wait for them; those beyond are estimated.
const WAITING: usize = 64;

/// The desk. Its threads start with the first request and end with it.
#[derive(Debug, Default)]
pub struct CountingThreads {
    queue: Mutex<Option<SyncSender<CountJob>>>,
    taken: AtomicU64,
}

#[derive(Debug)]
struct CountJob {
    order: CountRequest,
    stop: Arc<AtomicBool>,
    reply: oneshot::Sender<Result<CountedTokens, CountError>>,
}

/// One request to count.
#[derive(Debug)]
pub struct CountRequest {
    /// What counts it.
    pub counter: Arc<TokenCounter>,
    /// What its prompt is made of.
    pub form: PromptForm,
    /// Its JSON.
    pub body: Bytes,
    /// What images and sounds are counted as.
    pub media: MediaCosts,
    /// The moment that a template may print, in seconds since 1970.
    pub now: i64,
}

/// Stops the count when the one who waits for it leaves.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl CountingThreads {
    /// Requests that were taken so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Counts a request's prompt. Dropping the future stops it.
    ///
    /// # Errors
    /// See [`CountError`]; also when too many wait already.
    pub async fn count(&self, order: CountRequest) -> Result<CountedTokens, CountError> {
        let unsure = |why: &str| CountError::Unsure(why.to_owned());
        let stop = StopOnDrop(Arc::default());
        let (reply, answer) = oneshot::channel();
        let job = CountJob { order, stop: Arc::clone(&stop.0), reply };
        self.taken.fetch_add(1, Ordering::Relaxed);
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
    // On Linux that is this thread alone. Where it is not allowed, a count is as
    // urgent as all else.
    #[cfg(target_os = "linux")]
    let _as_urgent = rustix::process::setpriority_process(None, NICENESS);
    loop {
        let next = receiver.lock().recv();
        let Ok(CountJob { order, stop, reply }) = next else { return };
        if stop.load(Ordering::Relaxed) {
            continue;
        }
        let CountRequest { counter, form, body, media, now } = order;
        // Whatever a tokenizer does, the next one is counted.
        let counting = || counter.count(form, &body, &media, now, &stop);
        let counted = catch_unwind(AssertUnwindSafe(counting));
        let broke = || Err(CountError::Unsure("the count broke off".to_owned()));
        // Nobody may wait any more.
        let _left = reply.send(counted.unwrap_or_else(|_| broke()));
    }
}
