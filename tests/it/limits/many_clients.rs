//! Many clients against one tight limit, in virtual time: the share of the limit that they get, and
//! the check that they never get more.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use penstock::config::load::load_str_with;
use penstock::config::secret::MachineSecrets;
use penstock::config::settings::Settings;
use penstock::core::model::event::{AttemptOutcome, RejectReason};
use penstock::core::model::job::{JobSpec, JobUsage, PromptPrefix, TokenCounts};
use penstock::core::model::time::Tick;
use penstock::dispatcher::Dispatcher;
use penstock::dispatcher::clock::GatewayClock;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::gateway::{TENANT, head, pool_lines, tenant_lines};

const CLIENTS: u64 = 200;
const LIMIT: u64 = 60_000;
const PROMPT: u64 = 50;
const MINUTE: Duration = Duration::from_secs(60);
/// The time of one token: an answer takes some seconds.
const PACE: Duration = Duration::from_millis(20);
/// What SDKs keep to.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

const LIMITED: &str = "limits: {per_minute: {tokens: 60000}}";
const MORE: &str = "classes: {only: {ttft: 1m, itl: 1m, max_wait: 10m}}\n";
const POOL: &str = "engine: vllm\nmodels: [m]\nmax_seqs: 256";

/// What a client asks for and gets.
#[derive(Debug, Clone, Copy)]
struct Asks {
    /// The most output; without a limit of its own what is left of the window.
    most: u64,
    /// The shortest answer, and how much longer others are.
    least: u64,
    more: u64,
}

/// The tokens of the last minute, by the moment they were let in.
#[derive(Debug, Default)]
struct Book {
    recent: VecDeque<(Instant, u64)>,
    /// The most in any 60 seconds.
    highest: u64,
    /// In the first, the second, ... minute.
    minutes: Vec<u64>,
    refused: u64,
}

impl Book {
    fn add(&mut self, begun: Instant, let_in: Instant, tokens: u64) {
        let minute = usize::try_from((let_in - begun).as_secs() / 60).unwrap();
        self.minutes.resize(self.minutes.len().max(minute + 1), 0);
        self.minutes[minute] += tokens;
        let at = self.recent.partition_point(|(at, _)| *at <= let_in);
        self.recent.insert(at, (let_in, tokens));
        let from = self.recent.partition_point(|(at, _)| *at + MINUTE <= let_in);
        let to = self.recent.partition_point(|(at, _)| *at < let_in + MINUTE);
        for (at, _) in self.recent.range(from..to) {
            let within = |other: &&(Instant, u64)| other.0 >= *at && other.0 < *at + MINUTE;
            let sum = self.recent.iter().filter(within).map(|(_, tokens)| tokens).sum();
            self.highest = self.highest.max(sum);
        }
    }
}

fn settings() -> Settings {
    let urls = ["http://127.0.0.1:9".to_owned()];
    let text = head("")
        + "tenants:\n"
        + &tenant_lines(TENANT, LIMITED)
        + "pools:\n"
        + &pool_lines("p", POOL, &urls)
        + MORE;
    let outcome = load_str_with(&text, "test", Path::new("."), None, &MachineSecrets);
    outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings
}

/// A number that looks random.
fn mixed(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}

/// One client: asks again as soon as it has an answer, and when it is told to.
async fn client(
    dispatcher: Arc<Dispatcher>,
    settings: Arc<Settings>,
    asks: Asks,
    begun: Instant,
    book: Arc<Mutex<Book>>,
) {
    let policy = &settings.policy;
    while begun.elapsed() < 3 * MINUTE {
        let id = dispatcher.next_job_id();
        let spec = JobSpec {
            id,
            tenant: policy.tenants.id(TENANT).unwrap(),
            key: None,
            class: policy.classes.id("only").unwrap(),
            model: policy.models.id("m").unwrap(),
            prompt_tokens: PROMPT,
            max_output_tokens: asks.most,
            sequences: 1,
            bytes: 200,
            streams: true,
            arrived: Tick::NEVER,
            deadline: dispatcher.clock().now() + 10 * MINUTE,
            client_deadline: Tick::NEVER,
            has_fallback: false,
            resumable: false,
            context: 0,
            context_group: 0,
            fingerprint: None,
            session: None,
        };
        let let_in = Instant::now();
        let mut ticket = dispatcher.admit(spec, PromptPrefix::default(), policy);
        match ticket.wait_for_dispatch().await {
            Ok(_) => {
                assert!(ticket.report_first_token());
                let output = (asks.least + mixed(id.index() as u64) % asks.more.max(1)).min(asks.most);
                sleep(PACE * u32::try_from(output).unwrap()).await;
                let used = TokenCounts { input: PROMPT, cached: None, output };
                assert!(ticket.finish(AttemptOutcome::Done(JobUsage::Exact(used))));
                book.lock().add(begun, let_in, PROMPT + output);
            }
            Err(why) => {
                assert!(matches!(why.reason, RejectReason::Limited(_)), "{why:?}");
                book.lock().refused += 1;
                sleep(why.retry_after.unwrap().min(LONGEST_WAIT)).await;
            }
        }
    }
}

/// What 200 of them get in three minutes.
async fn crowd(asks: Asks) -> Book {
    let settings = Arc::new(settings());
    let (actions, _receiver) = mpsc::channel(8);
    let dispatcher = Dispatcher::new(Arc::clone(&settings.policy), GatewayClock::start(), actions);
    let timer = tokio::spawn(Arc::clone(&dispatcher).run_timer());
    let book = Arc::new(Mutex::new(Book::default()));
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(client(Arc::clone(&dispatcher), Arc::clone(&settings), asks, begun, Arc::clone(&book)));
    }
    clients.join_all().await;
    timer.abort();
    assert_eq!((dispatcher.snapshot().jobs, dispatcher.snapshot().broken_invariants), (0, 0));
    std::mem::take(&mut book.lock())
}

/// Never more than the limit and one reservation, and nearly all of it.
async fn assert_used(what: &str, asks: Asks) {
    let book = crowd(asks).await;
    let one = PROMPT + asks.most.min(asks.least + asks.more);
    println!("{what}: {:?}, at most {} in 60 s, {} refused", book.minutes, book.highest, book.refused);
    assert!(book.highest <= LIMIT + one, "{what}: {}", book.highest);
    for used in &book.minutes[..2] {
        assert!(*used * 100 >= LIMIT * 97, "{what}: {used} of {LIMIT}");
    }
}

#[tokio::test(start_paused = true)]
async fn nearly_all_of_a_limit_is_used_and_never_more() {
    assert_used("all that was asked for", Asks { most: 200, least: 200, more: 0 }).await;
    assert_used("less than was asked for", Asks { most: 400, least: 20, more: 180 }).await;
    assert_used("nothing was asked for", Asks { most: 8_000, least: 20, more: 180 }).await;
}
