//! Worker threads, each with a runtime of its own. A connection stays on one worker, with its
//! requests and their connections to engines, so that most wake-ups stay on one thread.

pub(in crate::proxy) mod turn;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;

use metrics::Histogram;
use pin_project_lite::pin_project;
use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Duration, Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Time between two samples of the delay, while requests run and at rest.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
const SAMPLE_INTERVAL_AT_REST: Duration = Duration::from_secs(1);

/// Polls of tasks after which a worker asks the system for events although tasks are ready. What is ready by then is
/// served first, so that more requests take a step together.
const POLLS_A_LOOK: u32 = 256;

/// The runtimes that serve connections. Dropping the value ends its threads, with the tasks that
/// still run there.
#[derive(Debug)]
pub struct Workers {
    workers: Vec<Worker>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
}

pin_project! {
    /// A connection's work, counted at its worker. An `async` block would hold the work twice: as it
    /// was captured, and as it runs.
    struct CountedWork<F> {
        #[pin]
        serving: F,
        count: ConnectionCount,
    }
}

impl<F: Future> Future for CountedWork<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().serving.poll(cx)
    }
}

/// Counts a connection at its worker until it is dropped.
struct ConnectionCount(Arc<AtomicUsize>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    /// Starts a worker for each core that the process may use. In a runtime of one thread, as in
    /// tests that pause time, that runtime is the only worker.
    ///
    /// # Errors
    /// The operating system gives no thread, or no file descriptor for its runtime.
    pub fn start() -> io::Result<Self> {
        let stop = CancellationToken::new();
        let workers = match Handle::current().runtime_flavor() {
            RuntimeFlavor::CurrentThread => vec![Worker::of(Handle::current())],
            _ => {
                let cores = thread::available_parallelism()?.get();
                (0..cores).map(|number| Worker::start(number, stop.clone())).collect::<io::Result<_>>()?
            }
        };
        Ok(Self { workers, stop })
    }

    /// Serves a connection on the worker that has the fewest.
    pub(super) fn spawn(
        &self,
        tasks: &mut JoinSet<()>,
        serving: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        let worker = self.workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed))?;
        worker.connections.fetch_add(1, Ordering::Relaxed);
        let count = ConnectionCount(Arc::clone(&worker.connections));
        Some(tasks.spawn_on(CountedWork { serving, count }, &worker.runtime))
    }

    /// Measures for ever how long a task that is ready waits for its worker: at one worker after the other, and more often
    /// while `is_busy`.
    pub async fn measure_delays(self: Arc<Self>, delays: Histogram, is_busy: impl Fn() -> bool) {
        for worker in self.workers.iter().cycle() {
            sleep(if is_busy() { SAMPLE_INTERVAL } else { SAMPLE_INTERVAL_AT_REST }).await;
            let (delays, ready) = (delays.clone(), Instant::now());
            worker.runtime.spawn(async move { delays.record(ready.elapsed()) });
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Worker {
    fn of(runtime: Handle) -> Self {
        Self { runtime, connections: Arc::default() }
    }

    fn start(number: usize, stop: CancellationToken) -> io::Result<Self> {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_all().event_interval(POLLS_A_LOOK).on_thread_park(turn::end).build()?;
        let worker = Self::of(runtime.handle().clone());
        let serve = move || {
            turn::start_thread();
            runtime.block_on(stop.cancelled());
        };
        thread::Builder::new().name(format!("worker-{number}")).spawn(serve)?;
        Ok(worker)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use metrics::HistogramFn;
    use parking_lot::Mutex;

    use super::turn::Step;
    use super::*;

    /// Counts its samples.
    #[derive(Debug, Default)]
    struct SampleCount(AtomicUsize);

    impl HistogramFn for SampleCount {
        fn record(&self, _: f64) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn delays_are_sampled_more_often_while_requests_run() {
        for (is_busy, samples) in [(true, 95..=105), (false, 1..=2)] {
            let count = Arc::<SampleCount>::default();
            let workers = Arc::new(Workers::start().unwrap());
            let measuring = workers.measure_delays(Histogram::from_arc(Arc::clone(&count)), move || is_busy);
            let measuring = tokio::spawn(measuring);
            sleep(Duration::from_millis(1_050)).await;
            measuring.abort();
            let count = count.0.load(Ordering::Relaxed);
            assert!(samples.contains(&count), "{count}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn connections_are_spread_evenly_and_a_worker_that_is_freed_is_next() {
        let workers = Workers::start().unwrap();
        let each = 4;
        let (seen, end) = (Arc::<Mutex<BTreeMap<_, usize>>>::default(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        for _ in 0..workers.workers.len() * each {
            let (seen, end) = (Arc::clone(&seen), end.clone());
            workers.spawn(&mut tasks, async move {
                *seen.lock().entry(thread::current().name().map(str::to_owned)).or_default() += 1;
                end.cancelled().await;
            });
        }
        let open = || workers.workers.iter().map(|worker| worker.connections.load(Ordering::Relaxed));
        assert!(open().all(|connections| connections == each));
        end.cancel();
        while tasks.join_next().await.is_some() {}
        assert!(open().all(|connections| connections == 0));
        let seen = seen.lock();
        assert_eq!(seen.len(), workers.workers.len());
        assert!(seen.values().all(|connections| *connections == each), "{seen:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_worker_counts_the_requests_of_each_turn_anew() {
        let workers = Workers::start().unwrap();
        let in_turns = async {
            turn::take_together(Step::Admit).await;
            let first = turn::requests(Step::Admit);
            sleep(Duration::from_millis(1)).await;
            (first, turn::requests(Step::Admit))
        };
        assert_eq!(workers.workers[0].runtime.spawn(in_turns).await.unwrap(), (1, 0));
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_serves_connections_itself() {
        let workers = Workers::start().unwrap();
        let mut tasks = JoinSet::new();
        let here = thread::current().id();
        workers.spawn(&mut tasks, async move { assert_eq!(thread::current().id(), here) });
        tasks.join_next().await.unwrap().unwrap();
    }
}
