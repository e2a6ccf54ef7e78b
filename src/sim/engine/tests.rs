//! Tests of the engine model, without a clock or a socket.

use std::time::Duration;

use super::{
    BLOCK_TOKENS, EngineEvent, EngineEventKind, EngineOptions, EngineRequest, RequestId, SimEngine,
    SimGauges, SubmitError,
};
use crate::engine::profile::StepProfile;
use penstock_core::model::time::Tick;

fn run(engine: &mut SimEngine, mut now: Tick) -> (Tick, Vec<EngineEvent>) {
    let mut events = Vec::new();
    for _ in 0..100_000 {
        let Some(end) = engine.next_step(now) else { return (now, events) };
        now = end;
        engine.finish_step(now, &mut events);
    }
    panic!("the engine never became idle");
}

fn request(id: RequestId, prompt_tokens: u32, output_tokens: u32) -> EngineRequest {
    EngineRequest { id, prompt_tokens, output_tokens, n: 1, ..EngineRequest::default() }
}

fn token_times(events: &[EngineEvent], id: RequestId) -> Vec<f64> {
    let tokens = events.iter().filter(|e| e.request == id && matches!(e.kind, EngineEventKind::Token { .. }));
    tokens.map(|e| e.at.as_nanos() as f64 / 1e6).collect()
}

fn small(kv_tokens: u64) -> EngineOptions {
    EngineOptions { kv_tokens: Some(kv_tokens), ..EngineOptions::default() }
}

/// Table of the study from which the profiles come: TTFT of 1024 prompt tokens
/// on an idle replica, and the time between the tokens that follow.
#[test]
fn idle_latencies_match_the_published_table() {
    let table = [
        ("a100-8b", 74.0, 11.9),
        ("h100-8b", 26.0, 8.1),
        ("a100-70b-tp4", 198.0, 31.6),
        ("h100-70b-tp4", 76.0, 20.6),
        ("a10-8b", 180.0, 32.4),
        ("l4-8b", 221.0, 62.7),
    ];
    for (name, ttft, itl) in table {
        let mut engine = SimEngine::new(StepProfile::named(name).unwrap(), EngineOptions::default());
        engine.submit(request(1, 1024, 3)).unwrap();
        let times = token_times(&run(&mut engine, Tick::ZERO).1, 1);
        assert!((times[0] - ttft).abs() <= 0.6, "{name}: first token after {} ms", times[0]);
        let gap = times[2] - times[1];
        assert!((gap - itl).abs() <= 0.11, "{name}: {gap} ms between tokens");
    }
}

#[test]
fn a_long_prompt_is_cut_into_chunks_beside_the_decodes() {
    let profile = StepProfile::named("a100-8b").unwrap();
    let mut engine = SimEngine::new(profile, EngineOptions::default());
    engine.submit(request(1, 16, 40)).unwrap();
    let mut events = Vec::new();
    let mut now = engine.next_step(Tick::ZERO).unwrap();
    engine.finish_step(now, &mut events);
    engine.submit(request(2, 5000, 1)).unwrap();
    let mut stalls = Vec::new();
    while engine.gauges().running > 0 || engine.gauges().waiting > 0 {
        let end = engine.next_step(now).unwrap();
        stalls.push(end.since(now).as_secs_f64() * 1e3);
        now = end;
        engine.finish_step(now, &mut events);
    }
    // The steps hold 2047 + 2047 + 906 prompt tokens, each beside one decode.
    assert!(stalls[0] > 140.0 && stalls[1] > stalls[0] && stalls[2] < stalls[0], "{:?}", &stalls[..4]);
    assert!(stalls[3] < 13.0);
    assert_eq!(token_times(&events, 1).len(), 40);
    assert_eq!(token_times(&events, 2).len(), 1);
}

#[test]
fn sequences_beyond_the_limit_wait_in_order_of_arrival() {
    let options = EngineOptions { max_seqs: Some(2), ..EngineOptions::default() };
    let mut engine = SimEngine::new(StepProfile::tiny(), options);
    for id in 1..=4 {
        engine.submit(request(id, 10, 5)).unwrap();
    }
    engine.next_step(Tick::ZERO).unwrap();
    assert_eq!((engine.gauges().running, engine.gauges().waiting), (2, 2));
    let (_, events) = run(&mut engine, Tick::ZERO);
    let first: Vec<_> = (1..=4).map(|id| token_times(&events, id)[0]).collect();
    assert!(first[0] <= first[1] && first[1] < first[2] && first[2] <= first[3], "{first:?}");
    assert_eq!(engine.counters().finished, 4);
}

#[test]
fn priority_lets_a_late_request_start_first() {
    let options = EngineOptions { max_seqs: Some(1), priority_scheduling: true, ..EngineOptions::default() };
    let mut engine = SimEngine::new(StepProfile::tiny(), options);
    engine.submit(request(1, 10, 5)).unwrap();
    engine.next_step(Tick::ZERO).unwrap();
    engine.submit(EngineRequest { priority: 10, ..request(2, 10, 1) }).unwrap();
    engine.submit(EngineRequest { priority: -5, ..request(3, 10, 1) }).unwrap();
    let (_, events) = run(&mut engine, Tick::ZERO);
    assert!(token_times(&events, 3)[0] < token_times(&events, 2)[0]);
    assert!(token_times(&events, 1)[4] < token_times(&events, 3)[0], "a running one keeps its slot");
}

#[test]
fn the_last_arrival_is_recomputed_when_blocks_run_out() {
    let mut engine = SimEngine::new(StepProfile::tiny(), small(128));
    engine.submit(request(1, 48, 64)).unwrap();
    engine.submit(request(2, 48, 64)).unwrap();
    let (_, events) = run(&mut engine, Tick::ZERO);
    assert!(engine.counters().preemptions >= 1);
    let lost: Vec<_> =
        events.iter().filter(|e| e.kind == EngineEventKind::Preempted).map(|e| e.request).collect();
    assert!(lost.iter().all(|id| *id == 2), "{lost:?}");
    assert_eq!((token_times(&events, 1).len(), token_times(&events, 2).len()), (64, 64));
    assert_eq!(engine.gauges(), SimGauges { blocks_total: 8, ..SimGauges::default() });
    assert_eq!(engine.counters().prompt_tokens, 96, "recomputed tokens are not counted twice");
}

#[test]
fn a_known_prefix_is_not_computed_again() {
    let profile = StepProfile::named("a100-8b").unwrap();
    let mut engine = SimEngine::new(profile, EngineOptions::default());
    let prefix: Vec<u64> = (0..64).collect();
    engine.submit(EngineRequest { prefix: prefix.clone(), ..request(1, 1024, 1) }).unwrap();
    let (now, _) = run(&mut engine, Tick::ZERO);
    let mut other = prefix.clone();
    other[32] = 999;
    engine.submit(EngineRequest { prefix, ..request(2, 1024, 1) }).unwrap();
    let (later, events) = run(&mut engine, now);
    assert!(
        events.iter().any(|e| e.kind == EngineEventKind::Scheduled { cached_tokens: 1008 }),
        "{events:?}"
    );
    assert!(later.since(now) < Duration::from_millis(13));
    engine.submit(EngineRequest { prefix: other, ..request(3, 1024, 1) }).unwrap();
    let (_, events) = run(&mut engine, later);
    assert!(events.iter().any(|e| e.kind == EngineEventKind::Scheduled { cached_tokens: 512 }), "{events:?}");
    assert_eq!(engine.counters().cached_tokens, 1008 + 512);
    engine.reset_prefix_cache();
    assert_eq!(engine.gauges().blocks_used, 0);
}

#[test]
fn cancel_frees_everything_in_any_phase() {
    let options = EngineOptions { max_seqs: Some(3), ..EngineOptions::default() };
    let mut engine = SimEngine::new(StepProfile::tiny(), options);
    engine.submit(EngineRequest { n: 2, prefix: vec![1, 2, 3], ..request(1, 50, 100) }).unwrap();
    engine.submit(request(2, 50, 100)).unwrap();
    engine.submit(request(3, 50, 100)).unwrap();
    let end = engine.next_step(Tick::ZERO).unwrap();
    assert_eq!((engine.gauges().running, engine.gauges().waiting), (3, 1));
    assert!(engine.cancel(1) && engine.cancel(3) && !engine.cancel(1));
    assert_eq!((engine.gauges().running, engine.gauges().waiting), (1, 0));
    let mut events = Vec::new();
    engine.finish_step(end, &mut events);
    let tokens: Vec<_> = events.iter().filter(|e| matches!(e.kind, EngineEventKind::Token { .. })).collect();
    assert!(tokens.len() == 1 && tokens[0].request == 2, "{tokens:?}");
    assert!(engine.cancel(2));
    assert_eq!(engine.next_step(end), None);
    assert_eq!(engine.gauges().blocks_used, 0);
    assert_eq!(engine.counters().cancelled, 4);
}

#[test]
fn work_without_output_ends_with_its_prompt() {
    let mut engine = SimEngine::new(StepProfile::tiny(), EngineOptions::default());
    engine.submit(request(1, 100, 0)).unwrap();
    let (_, events) = run(&mut engine, Tick::ZERO);
    assert_eq!(events.last().unwrap().kind, EngineEventKind::Computed);
    assert_eq!(engine.counters().generated_tokens, 0);
}

#[test]
fn impossible_and_repeated_requests_are_refused() {
    let mut engine = SimEngine::new(StepProfile::tiny(), small(64));
    let error = engine.submit(request(1, 60, 5)).unwrap_err();
    assert_eq!(error, SubmitError::TooLarge { needed: 65, capacity: 64 });
    engine.submit(request(1, 60, 4)).unwrap();
    assert_eq!(engine.submit(request(1, 1, 1)), Err(SubmitError::Duplicate(1)));
    assert_eq!(run(&mut engine, Tick::ZERO).1.len(), 5);
}

#[test]
fn pace_stretches_the_steps() {
    let time = |pace| {
        let mut engine = SimEngine::new(StepProfile::tiny(), EngineOptions::default());
        engine.set_slowness(pace);
        engine.set_slowness(f64::NAN);
        engine.submit(request(1, 10, 10)).unwrap();
        run(&mut engine, Tick::ZERO).0.as_nanos()
    };
    assert_eq!(time(3.0), 3 * time(1.0));
}

proptest::proptest! {
    /// Invariant under random submits and cancels: every request that is not
    /// cancelled gets all its tokens, and all blocks come back.
    #[test]
    fn nothing_is_lost_or_leaked(
        jobs in proptest::collection::vec((1u32..200, 0u32..40, 1u32..3, 0u64..4, proptest::bool::ANY), 1..30),
        priority in proptest::bool::ANY,
    ) {
        let options = EngineOptions {
            max_seqs: Some(5), max_tokens: Some(64), kv_tokens: Some(256), prefix_cache: true,
            priority_scheduling: priority, ..EngineOptions::default()
        };
        let mut engine = SimEngine::new(StepProfile::tiny(), options);
        let (mut now, mut events) = (Tick::ZERO, Vec::new());
        for (id, (prompt, output, n, family, _)) in (0u64..).zip(&jobs) {
            let prefix = (0..u64::from(prompt / BLOCK_TOKENS)).map(|block| family * 1000 + block).collect();
            let priority = (id % 3) as i64;
            engine.submit(EngineRequest {
                id, prompt_tokens: *prompt, prefix, output_tokens: *output, n: *n, priority,
                adapter: (family < &2).then_some(*family as u32),
            }).unwrap();
            if let Some(end) = engine.next_step(now) {
                now = end;
                engine.finish_step(now, &mut events);
            }
            if let Some(cancelled) = id.checked_sub(2).filter(|id| jobs[*id as usize].4) {
                engine.cancel(cancelled);
            }
        }
        let (_, rest) = run(&mut engine, now);
        events.extend(rest);
        let gauges = engine.gauges();
        proptest::prop_assert_eq!((gauges.running, gauges.waiting, gauges.blocks_used), (0, 0, 0));
        for (id, (_, output, n, _, cancel)) in (0u64..).zip(&jobs) {
            let tokens = token_times(&events, id).len() as u32;
            if !cancel {
                proptest::prop_assert_eq!(tokens, output * n);
            }
        }
    }
}
