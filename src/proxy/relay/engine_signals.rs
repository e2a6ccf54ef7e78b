//! Engine signals: inter-token latency, signs of life, and streams that wait for their clients. They
//! count as bytes pass, and report to the scheduler a few times a second.
//!
//! A relayed chunk costs two additions on shared counters and nothing else. An interval between
//! chunks counts only when both ends are moments at which the engine sent. A chunk that lay ready
//! because its client reads slowly says nothing about the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::config::settings::EdgeSettings;
use crate::core::model::event::{Event, ItlSample};
use crate::core::model::ids::ReplicaId;
use crate::core::model::job::JobUsage;
use crate::dispatcher::Dispatcher;

/// Interval between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// A chunk that is ready within this time after the chunk before it arrived together with it.
const BURST: Duration = Duration::from_millis(5);
/// Fewest events of a stream from which tokens per event are learned.
const MIN_EVENTS: u64 = 8;
/// Weight of one more stream in the mean of tokens per event, as a shift: 1/8.
const LEARN_SHIFT: u32 = 3;
/// Fixed-point value of one token per event.
const ONE: u32 = 1 << 10;
/// Upper limit of tokens per event. No engine puts more tokens into one event.
const MAX_TOKENS_PER_EVENT: u32 = 64 * ONE;

/// Signals of one replica. `gaps` is a number of token intervals, `nanos` their total time.
#[derive(Debug)]
pub(in crate::proxy) struct ReplicaSignals {
    gaps: AtomicU64,
    nanos: AtomicU64,
    /// Learned tokens per event, at least [`ONE`].
    per_event: AtomicU32,
    /// Whether a byte has arrived since the last sample.
    heard: AtomicBool,
    /// Streams that wait for their clients.
    paused: AtomicU32,
    /// Value of `paused` that was last reported to the scheduler.
    reported_paused: AtomicU32,
}

impl Default for ReplicaSignals {
    fn default() -> Self {
        Self {
            gaps: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            per_event: AtomicU32::new(ONE),
            heard: AtomicBool::new(false),
            paused: AtomicU32::new(0),
            reported_paused: AtomicU32::new(0),
        }
    }
}

/// Counts since the last sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::proxy) struct SignalCounts {
    /// Token intervals; absent = none.
    sample: Option<ItlSample>,
    /// Whether bytes arrived without a measured interval.
    heard: bool,
    /// Streams that wait for their clients, if their number has changed.
    paused: Option<u32>,
}

impl SignalCounts {
    fn events(self, replica: ReplicaId) -> impl Iterator<Item = Event> {
        let paused = self.paused.map(|streams| Event::StreamsPaused { replica, streams });
        let heard = self.heard.then_some(Event::BytesReceived { replica });
        let sample = self.sample.map(|sample| Event::ItlSampled { replica, sample });
        [paused, heard, sample].into_iter().flatten()
    }
}

impl ReplicaSignals {
    /// Notes that bytes of the engine's answers arrived.
    pub(in crate::proxy) fn record_bytes(&self) {
        if !self.heard.load(Ordering::Relaxed) {
            self.heard.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the counts since the last call. `None` if there is nothing to report.
    fn take_counts(&self) -> Option<SignalCounts> {
        let paused = self.paused.load(Ordering::Relaxed);
        let changed = self.reported_paused.swap(paused, Ordering::Relaxed) != paused;
        let heard = self.heard.swap(false, Ordering::Relaxed);
        let sample = self.take();
        let counts =
            SignalCounts { sample, heard: heard && sample.is_none(), paused: changed.then_some(paused) };
        (counts != SignalCounts::default()).then_some(counts)
    }

    /// Adds `gaps` token intervals of `total` time together. The time is added first: a sample
    /// taken between the two additions leaves the pair to the next sample.
    fn add(&self, gaps: u64, total: Duration) {
        let nanos = u64::try_from(total.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.gaps.fetch_add(gaps, Ordering::Relaxed);
    }

    /// Takes the token intervals since the last call.
    pub(in crate::proxy) fn take(&self) -> Option<ItlSample> {
        if self.gaps.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let gaps = self.gaps.swap(0, Ordering::Relaxed);
        let total = Duration::from_nanos(self.nanos.swap(0, Ordering::Relaxed));
        (gaps > 0).then_some(ItlSample { gaps, total })
    }

    /// Updates tokens per event by a stream of `events` events with `tokens` tokens. Two streams
    /// that end at the same time may overwrite each other, which is harmless in a mean over many
    /// streams.
    fn learn(&self, events: u64, tokens: u64) {
        if events < MIN_EVENTS {
            return;
        }
        let seen = tokens.saturating_mul(u64::from(ONE)) / events;
        let seen = u32::try_from(seen).unwrap_or(u32::MAX).clamp(ONE, MAX_TOKENS_PER_EVENT);
        let old = self.per_event.load(Ordering::Relaxed);
        let new = old - (old >> LEARN_SHIFT) + (seen >> LEARN_SHIFT);
        self.per_event.store(new.clamp(ONE, MAX_TOKENS_PER_EVENT), Ordering::Relaxed);
    }
}

/// Signals of all replicas.
#[derive(Debug, Default)]
pub struct EngineSignals {
    replicas: DashMap<ReplicaId, Arc<ReplicaSignals>>,
    /// Notified when an attempt takes the signals of its replica.
    attached: Notify,
}

impl EngineSignals {
    /// The signals of the replica that an attempt goes to. They are reported for as long as somebody holds
    /// them.
    pub(in crate::proxy) fn attach(&self, replica: ReplicaId) -> Arc<ReplicaSignals> {
        self.attached.notify_one();
        if let Some(known) = self.replicas.get(&replica) {
            return Arc::clone(&known);
        }
        Arc::clone(&self.replicas.entry(replica).or_default())
    }

    /// Removes replicas that are no longer configured.
    pub fn retain(&self, edge: &EdgeSettings) {
        self.replicas.retain(|id, _| edge.replicas.get(*id).is_some());
    }

    /// Reports to the scheduler, while there are attempts. Runs until dropped.
    pub async fn report_forever(self: Arc<Self>, dispatcher: Arc<Dispatcher>) {
        let mut every = interval(SAMPLE_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            // Before the samples are taken, so that the last ones of a stream are among them.
            let is_idle = !self.is_attached();
            for (replica, counts) in self.take() {
                counts.events(replica).for_each(|event| dispatcher.event(event));
            }
            if is_idle {
                self.attached.notified().await;
            }
        }
    }

    /// Whether an attempt holds the signals of its replica.
    fn is_attached(&self) -> bool {
        self.replicas.iter().any(|entry| Arc::strong_count(entry.value()) > 1)
    }

    fn take(&self) -> Vec<(ReplicaId, SignalCounts)> {
        self.replicas.iter().filter_map(|entry| Some((*entry.key(), entry.value().take_counts()?))).collect()
    }
}

/// Observer of one stream. It reports that bytes arrive, and whether the stream waits for its
/// client.
#[derive(Debug)]
pub(in crate::proxy) struct StreamObserver {
    signals: Arc<ReplicaSignals>,
    paused: bool,
}

impl StreamObserver {
    pub(in crate::proxy) fn new(signals: Arc<ReplicaSignals>) -> Self {
        Self { signals, paused: false }
    }

    /// Notes that bytes arrived.
    pub(in crate::proxy) fn record_bytes(&self) {
        self.signals.record_bytes();
    }

    /// Sets whether the stream waits for its client and the engine is not read.
    pub(in crate::proxy) fn set_paused(&mut self, paused: bool) {
        if self.paused != paused {
            self.paused = paused;
            match paused {
                true => self.signals.paused.fetch_add(1, Ordering::Relaxed),
                false => self.signals.paused.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }
}

impl Drop for StreamObserver {
    fn drop(&mut self) {
        self.set_paused(false);
    }
}

/// Inter-token latency of one stream with one choice, from its first token on. Streams with several
/// choices are not measured, because their events come in no fixed order.
#[derive(Debug)]
pub(in crate::proxy) struct ItlSampler {
    signals: Arc<ReplicaSignals>,
    /// Time at which the last token was read. `exact` tells whether the token arrived at that time.
    last: Instant,
    exact: bool,
    /// Whether the stream had no data ready at some time since `last`.
    waited: bool,
    /// Events with output so far.
    events: u64,
    /// Fraction of a token that is not counted yet, in units of 1/[`ONE`].
    rest: u64,
}

impl ItlSampler {
    /// Starts at the stream's first token, after `events` events.
    pub(in crate::proxy) fn new(signals: Arc<ReplicaSignals>, events: u64, now: Instant) -> Self {
        Self { signals, last: now, exact: true, waited: false, events, rest: 0 }
    }

    /// Notes that the stream has no data ready now.
    pub(in crate::proxy) fn record_pending(&mut self) {
        self.waited = true;
    }

    /// Notes that a chunk was read. `events` is the stream's number of events with output so far.
    pub(in crate::proxy) fn read(&mut self, events: u64, now: Instant) {
        let new = events.saturating_sub(self.events);
        if new == 0 {
            return;
        }
        let gap = now.saturating_duration_since(self.last);
        let exact = self.waited || self.exact && gap < BURST;
        if self.exact && exact {
            let per_event = u64::from(self.signals.per_event.load(Ordering::Relaxed));
            let tokens = self.rest + new.saturating_mul(per_event);
            self.rest = tokens % u64::from(ONE);
            self.signals.add(tokens / u64::from(ONE), gap);
        }
        self.events = events;
        self.last = now;
        self.exact = exact;
        self.waited = false;
    }

    /// Learns tokens per event from a complete stream.
    pub(in crate::proxy) fn ended(&self, usage: JobUsage) {
        if let JobUsage::Exact(tokens) = usage {
            self.signals.learn(self.events, tokens.output);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::job::TokenCounts;
    use crate::dispatcher::clock::GatewayClock;

    const MILLIS: Duration = Duration::from_millis(1);

    struct Stream {
        sampler: ItlSampler,
        now: Instant,
        events: u64,
    }

    impl Stream {
        fn begin(signals: &Arc<ReplicaSignals>) -> Self {
            let now = Instant::now();
            Self { sampler: ItlSampler::new(Arc::clone(signals), 1, now), now, events: 1 }
        }

        /// A chunk of `events` events arrives after `gap`, while the reader waits for it.
        fn comes(&mut self, gap: u32, events: u64) {
            self.sampler.record_pending();
            self.lies_ready(gap, events);
        }

        /// A chunk of `events` events is read after `gap`, without a wait: it may have arrived
        /// before.
        fn lies_ready(&mut self, gap: u32, events: u64) {
            self.now += gap * MILLIS;
            self.events += events;
            self.sampler.read(self.events, self.now);
        }

        fn ends(&self, tokens: u64) {
            self.sampler.ended(JobUsage::Exact(TokenCounts { input: 1, cached: None, output: tokens }));
        }
    }

    fn sample(gaps: u64, millis: u64) -> Option<ItlSample> {
        Some(ItlSample { gaps, total: Duration::from_millis(millis) })
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_token_is_no_gap_and_every_later_one_is() {
        let signals = Arc::default();
        let mut stream = Stream::begin(&signals);
        assert_eq!(signals.take(), None);
        stream.comes(20, 1);
        stream.comes(30, 1);
        // Bytes without a token do not end an interval.
        stream.comes(10, 0);
        stream.comes(10, 1);
        assert_eq!(signals.take(), sample(3, 70));
        assert_eq!(signals.take(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_come_together_share_their_gap() {
        let signals = Arc::default();
        let mut stream = Stream::begin(&signals);
        stream.comes(40, 3);
        stream.lies_ready(0, 1);
        assert_eq!(signals.take(), sample(4, 40));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_says_nothing_of_the_engine() {
        let signals = Arc::default();
        let mut stream = Stream::begin(&signals);
        stream.comes(20, 1);
        stream.lies_ready(5_000, 1);
        stream.lies_ready(0, 9);
        // The client has caught up. The next whole interval counts.
        stream.comes(3, 1);
        stream.comes(25, 1);
        assert_eq!(signals.take(), sample(2, 45));
    }

    #[tokio::test(start_paused = true)]
    async fn several_tokens_in_an_event_are_as_many_gaps() {
        let signals = Arc::default();
        let mut stream = Stream::begin(&signals);
        for _ in 0..9 {
            stream.comes(10, 1);
        }
        let before = signals.take();
        assert_eq!(before, sample(9, 90));
        for _ in 0..60 {
            stream.ends(35);
        }
        // 3.5 tokens an event: 10 ms for each is 2.86 ms a token.
        for _ in 0..100 {
            stream.comes(10, 1);
        }
        let after = signals.take().unwrap();
        assert!((340..=350).contains(&after.gaps), "{after:?}");
        assert_eq!(after.total, Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_learned_stays_in_its_bounds() {
        let signals = ReplicaSignals::default();
        for (events, tokens) in [(7, 700), (0, 5), (100, 0), (100, 40)] {
            signals.learn(events, tokens);
            assert_eq!(signals.per_event.load(Ordering::Relaxed), ONE);
        }
        for _ in 0..200 {
            signals.learn(8, u64::MAX);
        }
        let learned = signals.per_event.load(Ordering::Relaxed);
        assert!(learned > MAX_TOKENS_PER_EVENT / 2 && learned <= MAX_TOKENS_PER_EVENT);
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_are_sampled_apart_and_only_when_something_happened() {
        let counters = EngineSignals::default();
        let [a, b] = [ReplicaId::new(1), ReplicaId::new(2)];
        let (mut one, _idle) = (Stream::begin(&counters.attach(a)), Stream::begin(&counters.attach(b)));
        assert!(counters.take().is_empty());
        one.comes(20, 1);
        assert_eq!(counters.take(), [(a, SignalCounts { sample: sample(1, 20), ..SignalCounts::default() })]);
        assert!(counters.take().is_empty());
        assert!(Arc::ptr_eq(&counters.attach(a), &counters.attach(a)));
    }

    #[test]
    fn bytes_and_streams_that_wait_are_told_once() {
        let signals = Arc::<ReplicaSignals>::default();
        let (mut one, other) =
            (StreamObserver::new(Arc::clone(&signals)), StreamObserver::new(Arc::clone(&signals)));
        assert_eq!(signals.take_counts(), None);
        other.record_bytes();
        other.record_bytes();
        one.set_paused(true);
        one.set_paused(true);
        assert_eq!(signals.take_counts(), Some(SignalCounts { sample: None, heard: true, paused: Some(1) }));
        assert_eq!(signals.take_counts(), None);
        signals.add(1, MILLIS);
        one.record_bytes();
        assert_eq!(
            signals.take_counts(),
            Some(SignalCounts { sample: sample(1, 1), ..SignalCounts::default() })
        );
        drop((one, other));
        assert_eq!(signals.take_counts(), Some(SignalCounts { paused: Some(0), ..SignalCounts::default() }));
    }

    #[tokio::test(start_paused = true)]
    async fn the_sampler_empties_the_counters_ten_times_a_second() {
        let (actions, _receiver) = tokio::sync::mpsc::channel(1);
        let dispatcher = Dispatcher::new(Arc::default(), GatewayClock::start(), actions);
        let counters = Arc::new(EngineSignals::default());
        let signals = counters.attach(ReplicaId::new(0));
        tokio::spawn(Arc::clone(&counters).report_forever(dispatcher));
        tokio::time::sleep(MILLIS).await;
        signals.add(1, MILLIS);
        tokio::time::sleep(SAMPLE_EVERY - 2 * MILLIS).await;
        assert_eq!(signals.gaps.load(Ordering::Relaxed), 1);
        tokio::time::sleep(2 * MILLIS).await;
        assert_eq!(signals.take(), None);
    }
}
