//! Tests of writing and reading records.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use proptest::prelude::prop;
use proptest::{prop_assert, prop_assert_eq, proptest};
use tokio::sync::mpsc;

use crate::config::load::load_str_with;
use crate::config::secret::MachineSecrets;
use crate::config::settings::Settings;
use crate::core::limits::rule::{LimitId, LimitPeriod, LimitScope, LimitUnit};
use crate::core::model::event::{
    AttemptOutcome, EngineFault, Event, ItlSample, PoolGrowth, PoolStartTime, ReplicaReport,
};
use crate::core::model::ids::{ClassId, JobId, ModelId, PoolId, ReplicaId, TenantId};
use crate::core::model::job::{JobSpec, JobUsage, PromptPrefix, TokenCounts};
use crate::core::model::overrides::{Closed, Override, OverrideChange, OverrideTarget};
use crate::core::model::policy::sleep::SleepResult;
use crate::core::model::time::Tick;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::clock::GatewayClock;
use crate::dispatcher::event_log::{Decision, Decisions, LoggedStep};
use crate::record::RecordOptions;
use crate::record::line::{HashKey, RecordLine};
use crate::record::read::{RecordFindings, RecordPart, runs};
use crate::record::replay::exact::ExactReplay;
use crate::record::writer::Recorder;
use crate::telemetry::Telemetry;

const CONFIG: &str = "
version: 1
auth: {mode: off, tenant: chat}
tenants:
  chat: {weight: 0.1, parent: org}
  org: {weight: 3.3}
pools:
  p: {engine: vllm, models: [m], max_seqs: 1, price: 2.4, replicas: ['http://127.0.0.1:9']}
";

fn settings() -> Settings {
    let outcome = load_str_with(CONFIG, "test", Path::new("."), None, &MachineSecrets);
    outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings
}

/// A dispatcher whose steps are recorded in a folder.
struct Recorded {
    folder: tempfile::TempDir,
    dispatcher: Arc<Dispatcher>,
    settings: Arc<ArcSwap<Settings>>,
    recorder: Recorder,
    _actions: mpsc::Receiver<crate::core::model::event::ReplicaAction>,
}

impl Recorded {
    fn start(bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Arc::new(ArcSwap::from_pointee(settings()));
        let (actions_in, _actions) = mpsc::channel(8);
        let policy = Arc::clone(&settings.load().policy);
        let dispatcher = Dispatcher::new(policy, GatewayClock::start(), actions_in);
        let options = RecordOptions { folder: folder.path().join("record"), bytes };
        let telemetry = Telemetry::for_tests();
        let recorder = Recorder::start(&options, &dispatcher, &settings, &telemetry).unwrap();
        Self { folder, dispatcher, settings, recorder, _actions }
    }

    /// One request from its arrival to the end of its answer.
    fn serve(&self, blocks: usize) {
        let policy = Arc::clone(&self.settings.load().policy);
        let spec = JobSpec {
            id: self.dispatcher.next_job_id(),
            tenant: policy.tenants.id("chat").unwrap(),
            fingerprint: Some(7),
            deadline: self.dispatcher.clock().now() + Duration::from_secs(60),
            ..JobSpec::example(0)
        };
        let prefix = PromptPrefix { blocks: (0..blocks as u64).collect(), block_tokens: 256 };
        drop(self.dispatcher.admit(spec, prefix, &policy));
    }

    fn stop(self) -> (tempfile::TempDir, PathBuf) {
        self.recorder.stop(Duration::from_secs(10));
        let path = self.folder.path().join("record");
        (self.folder, path)
    }
}

fn replayed(folder: &Path) -> (RecordFindings, ExactReplay, Vec<LoggedStep>) {
    let (mut exact, mut steps) = (None, Vec::new());
    let tell = |part: RecordPart<'_>, _| match part {
        RecordPart::Begin(policy) => exact = Some(ExactReplay::new(policy)),
        RecordPart::Step(step) => {
            exact.as_mut().unwrap().step(step);
            steps.push(step.clone());
        }
        RecordPart::Gap => {}
    };
    let findings = runs(folder).unwrap().last().unwrap().each(tell).unwrap();
    (findings, exact.unwrap(), steps)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some()).collect();
    files.sort_unstable();
    files
}

/// One event of each kind.
fn every_event() -> Vec<Event> {
    let (job, replica, pool) = (JobId::new(u64::MAX), ReplicaId::new(3), PoolId::new(1));
    let tokens = TokenCounts { input: 9, cached: Some(1), output: 2 };
    let spec = JobSpec { fingerprint: Some(u64::MAX), session: Some(1), ..JobSpec::example(4) };
    let fault = EngineFault::Busy { retry_after: Some(Duration::from_nanos(1_500_000_001)) };
    let report = ReplicaReport { kv_usage: Some(0.1 + 0.2), slots: Some(4), ..ReplicaReport::default() };
    let rule = LimitId {
        scope: LimitScope::Model(TenantId::new(1), ModelId::new(2)),
        unit: LimitUnit::GpuTime,
        period: LimitPeriod::Month,
        shadow: true,
    };
    let wanted =
        |change| Event::Overridden(Override { change, until: Tick::NEVER, reason: "said in private".into() });
    let policy = Arc::clone(&settings().policy);
    vec![
        Event::Arrived(spec, PromptPrefix { blocks: [1, u64::MAX].into(), block_tokens: 250 }),
        Event::Abandoned { job, usage: JobUsage::Partial(tokens) },
        Event::FirstToken { job },
        Event::Finished { job, outcome: AttemptOutcome::Done(JobUsage::Exact(tokens)) },
        Event::Finished { job, outcome: AttemptOutcome::Failed { fault, usage: JobUsage::Unknown } },
        Event::Finished {
            job,
            outcome: AttemptOutcome::Interrupted { fault, usage: JobUsage::Unknown, output: 5 },
        },
        Event::ItlSampled { replica, sample: ItlSample { gaps: 3, total: Duration::from_nanos(7) } },
        Event::BytesReceived { replica },
        Event::StreamsPaused { replica, streams: 2 },
        Event::ReplicaReported { replica, report },
        Event::AdaptersReported { replica, slots: None, running: vec![ModelId::new(1)] },
        Event::ReplicaLost { replica, answers: true },
        Event::ProbeSucceeded { replica },
        Event::SleepAnswered { replica, result: SleepResult::Unable },
        wanted(OverrideChange::CloseReplica(replica, Closed::SpotNotice)),
        wanted(OverrideChange::Boost(TenantId::new(0), 1.0 / 3.0)),
        Event::OverrideEnded(OverrideTarget::Pause(TenantId::new(0))),
        Event::PeriodBegan { period: LimitPeriod::Day, ends: Tick::from_millis(1) },
        Event::UsageRestored { rule, amount: 3 },
        Event::StartsRestored(vec![PoolStartTime { pool, took: Duration::from_millis(3) }]),
        Event::PolicyChanged(policy),
        Event::GrowthExpected(vec![PoolGrowth { pool, factor: 1.0 + f64::EPSILON }]),
        Event::Draining,
        Event::Timer,
    ]
}

#[test]
fn every_line_is_read_as_it_was_written() {
    let (job, replica) = (JobId::new(1), ReplicaId::new(2));
    let decisions: Decisions = [
        Decision::Dispatched { job, replica, class: ClassId::new(1), order: "fair".into() },
        Decision::Rejected { job, reason: "queue_full".into() },
        Decision::Billed { job, pool: PoolId::new(0), nanos: u64::MAX, money: 4 },
        Decision::Readmitted { replica },
    ]
    .into_iter()
    .collect();
    let step = |event| LoggedStep { at: Tick::from_nanos(7), event, decisions: decisions.clone() };
    let steps = every_event().into_iter().map(|event| RecordLine::Step(step(event)));
    for line in steps.chain([RecordLine::Lost(3), RecordLine::Config("x".to_owned())]) {
        let text = serde_json::to_string(&line).unwrap();
        assert!(!text.contains("private"), "{text}");
        let back: RecordLine = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
        if let (RecordLine::Step(back), RecordLine::Step(step)) = (&back, &line) {
            assert_eq!((back.at, &back.decisions), (step.at, &step.decisions));
            // The debug form of a policy has a hash map in it.
            let same = matches!(step.event, Event::PolicyChanged(_) | Event::Overridden(_))
                || format!("{:?}", back.event) == format!("{:?}", step.event);
            assert!(same, "{:?}", back.event);
        }
    }
}

proptest! {
    #[test]
    fn numbers_come_back_to_the_last_bit(bits in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO) {
        let event = Event::GrowthExpected(vec![PoolGrowth { pool: PoolId::new(0), factor: bits }]);
        let text = serde_json::to_string(&event).unwrap();
        let Event::GrowthExpected(back) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        prop_assert_eq!(back[0].factor.to_bits(), bits.to_bits());
    }

    #[test]
    fn hashes_are_told_apart_and_not_recognised(hashes in prop::collection::vec(0u64..6, 1..20), random in prop::array::uniform32(0u8..)) {
        let prefix = PromptPrefix { blocks: hashes.clone().into(), block_tokens: 256 };
        let spec = JobSpec { fingerprint: Some(hashes[0]), session: Some(hashes[0]), ..JobSpec::example(1) };
        let mut event = Event::Arrived(spec, prefix);
        HashKey::new(random).hide(&mut event);
        let Event::Arrived(spec, prefix) = event else { panic!("no other event") };
        prop_assert_eq!(spec.fingerprint, Some(prefix.blocks[0]));
        prop_assert_eq!(spec.session, Some(prefix.blocks[0]));
        for (place, hash) in hashes.iter().enumerate() {
            prop_assert!(prefix.blocks[place] > 1 << 20, "a keyed hash is not small");
            for (other, known) in hashes.iter().enumerate() {
                prop_assert_eq!(prefix.blocks[place] == prefix.blocks[other], hash == known);
            }
        }
    }
}

#[tokio::test]
async fn what_is_recorded_replays_and_holds_no_hash_of_the_gateway() {
    let recorded = Recorded::start(1 << 30);
    (0..100).for_each(|_| recorded.serve(3));
    let (_folder, path) = recorded.stop();
    let (findings, exact, steps) = replayed(&path);
    assert!(findings.is_whole() && findings.configs.len() == 1, "{findings:?}");
    assert_eq!((exact.differing, exact.steps), (0, steps.len() as u64), "{:?}", exact.first);
    assert!(exact.decisions >= 200, "a dispatch and a bill each: {}", exact.decisions);
    let arrived = steps.iter().filter_map(|step| match &step.event {
        Event::Arrived(spec, prefix) => Some((spec.fingerprint, prefix.blocks.to_vec())),
        _ => None,
    });
    let arrived: Vec<_> = arrived.collect();
    assert_eq!(arrived.len(), 100);
    assert!(arrived.iter().all(|row| *row == arrived[0] && row.0 != Some(7) && row.1[1] != 1));
}

#[tokio::test]
async fn a_record_that_broke_off_anywhere_is_read_up_to_its_last_whole_line() {
    let recorded = Recorded::start(1 << 30);
    (0..3).for_each(|_| recorded.serve(1));
    let (_folder, path) = recorded.stop();
    let file = files(&path).pop().unwrap();
    let (whole, head) = (fs::read(&file).unwrap(), 1);
    let lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for length in (first..whole.len()).step_by(7) {
        fs::write(&file, &whole[..length]).unwrap();
        let (findings, exact, _) = replayed(&path);
        // A line of which only the end of line is cut off is whole.
        let steps = lines(&whole[..length]) - head + usize::from(whole[length] == b'\n');
        assert_eq!((findings.steps as usize, exact.differing), (steps, 0));
        assert!(findings.is_whole());
    }
    // A line that is broken in the middle is a gap.
    let mut broken = whole.clone();
    broken[first + 2] = b'#';
    fs::write(&file, broken).unwrap();
    assert_eq!(replayed(&path).0.broken, 1);
    fs::write(&file, &whole[1..]).unwrap();
    let error = runs(&path).unwrap()[0].each(|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("not the head of a record"), "{error}");
    let newer = String::from_utf8(whole).unwrap().replacen("\"version\":1", "\"version\":2", 1);
    fs::write(&file, newer).unwrap();
    let error = runs(&path).unwrap()[0].each(|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("written as version 2"), "{error}");
}

#[tokio::test]
async fn a_record_keeps_its_size_and_says_that_its_begin_is_gone() {
    const BYTES: u64 = 1 << 20;
    let recorded = Recorded::start(BYTES);
    (0..800).for_each(|_| recorded.serve(200));
    let (_folder, path) = recorded.stop();
    let size: u64 = files(&path).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!((BYTES / 2..=BYTES + 8_192).contains(&size), "{size}");
    let (findings, exact, _) = replayed(&path);
    assert!(!findings.has_start && findings.lost + findings.broken == 0, "{findings:?}");
    // What ran at the begin is not known, so that its bills are missing or differ.
    assert!(exact.same > exact.decisions / 2, "{} of {}: {:?}", exact.same, exact.decisions, exact.first);
    assert!(findings.steps > 100 && findings.steps < 1_600);
}

#[tokio::test]
async fn each_start_is_a_run_and_one_gateway_records_at_a_time() {
    let first = Recorded::start(1 << 30);
    first.serve(0);
    let options = RecordOptions { folder: first.folder.path().join("record"), bytes: 1 << 30 };
    let telemetry = Telemetry::for_tests();
    let again = || Recorder::start(&options, &first.dispatcher, &first.settings, &telemetry);
    assert!(again().unwrap_err().to_string().contains("another gateway records there"));
    let (dispatcher, settings) = (Arc::clone(&first.dispatcher), Arc::clone(&first.settings));
    let (_folder, path) = first.stop();
    Recorder::start(&options, &dispatcher, &settings, &telemetry).unwrap().stop(Duration::from_secs(10));
    let found = runs(&path).unwrap();
    assert_eq!(found.len(), 2);
    assert!(found[0].began_ms < found[1].began_ms);
    let nowhere = runs(&path.join("nowhere")).unwrap_err().to_string();
    assert!(nowhere.contains("nowhere"), "{nowhere}");
}
