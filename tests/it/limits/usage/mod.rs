//! Usage journal and its databases while processes are killed: no row lost, and none written twice.

pub(crate) mod postgres;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use penstock::config::secret::Secret;
use penstock::config::settings::usage::{PostgresSettings, UsageDatabase, UsageSettings};
use penstock::core::model::snapshot::Snapshot;
use penstock::telemetry::metrics::Scrape;
use penstock::telemetry::{Telemetry, wall};
use penstock::usage::bill::{Bill, BillQuery, BillSums, Dimension, RowSource, TimeShare, make, text};
use penstock::usage::row::{RowKind, UsageRow};
use penstock::usage::{PriorUsage, UsageJournal};

use crate::support::client::Call;
use crate::support::gateway::{PATIENCE, Rig, RigOptions, TENANT, chat, until};
use crate::support::postgres::Cluster;

/// Its presence in the current folder makes [`child_writes_until_it_is_killed`]
/// do so.
const CHILD: &str = "child-of-the-usage-test";

fn settings(folder: PathBuf, database: Option<UsageDatabase>) -> UsageSettings {
    UsageSettings {
        folder,
        database,
        segment_bytes: 64 << 10,
        segment_age: Duration::from_secs(60),
        keep_bytes: 64 << 20,
        retention: None,
        queue: 4096,
    }
}

fn row(number: u64) -> UsageRow {
    UsageRow {
        time_ms: 1_800_000_000_000 + number as i64 * 10,
        kind: if number % 7 == 3 { RowKind::Try } else { RowKind::Request },
        requests: u64::from(number % 7 != 3),
        gateway_id: format!("req_{number}"),
        request_id: format!("req-{number}"),
        tenant: format!("team-{}", number % 3).into(),
        key: "k7m2qa4x".into(),
        class: "standard".into(),
        model: "tab\there \\ and é".into(),
        pool: "h100".into(),
        replica: "h100/http://a:1".into(),
        api: "chat",
        status: 200,
        outcome: "success",
        usage: "exact",
        input_tokens: number,
        cached_tokens: number / 2,
        output_tokens: 3,
        wasted_tokens: 0,
        wasted_by: "",
        queue_us: 7,
        gpu_ns: 1_000_003,
        price_per_hour: 3.6,
        money_nano: 11,
        attempts: 1,
    }
}

fn postgres(url: &str) -> UsageDatabase {
    UsageDatabase::Postgres(PostgresSettings { url: Secret::new(url), url_file: None, ca: None })
}

fn sum(count: u64) -> BillSums {
    let mut sums = BillSums::default();
    for row in (0..count).map(row) {
        sums.add(&BillSums {
            requests: u64::from(row.kind == RowKind::Request),
            tries: u64::from(row.kind == RowKind::Try),
            input_tokens: row.input_tokens,
            cached_tokens: row.cached_tokens,
            output_tokens: row.output_tokens,
            wasted_tokens: 0,
            queue_us: row.queue_us,
            gpu_ns: row.gpu_ns.into(),
            money_nano: row.money_nano.into(),
        });
    }
    sums
}

/// Waits until the database has so many rows.
fn wait_for(what: &str, mut rows: impl FnMut() -> Option<i64>, expected: u64) {
    let pause = Duration::from_millis(50);
    let mut patience = 2 * PATIENCE;
    while rows() != Some(expected as i64) {
        assert!(!patience.is_zero(), "{what}: {:?} rows, not {expected}", rows());
        std::thread::sleep(pause);
        patience = patience.saturating_sub(pause);
    }
}

fn bill(source: &RowSource, by: &[Dimension], share: TimeShare) -> Bill {
    make(&BillQuery { by: by.to_vec(), share, ..BillQuery::default() }, source).unwrap()
}

/// The lines' sum is the total, and the total is that of the rows.
fn adds_up(source: &RowSource, count: u64) {
    for by in [&[][..], &[Dimension::Tenant], &[Dimension::Day, Dimension::Model, Dimension::Pool]] {
        for share in [TimeShare::Steps, TimeShare::Tokens] {
            let bill = bill(source, by, share);
            let mut lines = BillSums::default();
            bill.lines.iter().for_each(|line| lines.add(&line.sums));
            assert_eq!((lines, bill.total), (sum(count), sum(count)), "{source:?} {by:?}");
        }
    }
}

#[test]
fn postgres_that_is_killed_under_load_has_every_row_once() {
    const ROWS: u64 = 6_000;
    let temp = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start();
    let telemetry = Telemetry::for_tests();
    let database = postgres(&cluster.url());
    let mut usage =
        UsageJournal::start(&settings(temp.path().join("usage"), Some(database.clone())), &telemetry)
            .unwrap();
    usage.follow(Vec::new(), |_| {}).unwrap();
    let journal = usage.journal().clone();
    let (killed, wait_for_kill) = std::sync::mpsc::channel();
    let load = std::thread::spawn(move || {
        for number in 0..ROWS {
            if number == ROWS / 2 {
                wait_for_kill.recv().unwrap();
            }
            journal.record(row(number));
            if number % 20 == 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(600));
        cluster.kill();
        // The load waits for the first one only.
        let _over = killed.send(());
        std::thread::sleep(Duration::from_millis(200));
        cluster.restart();
    }
    load.join().unwrap();
    let count = |sql: &str| cluster.ask(sql);
    wait_for("PostgreSQL", || count("SELECT COUNT(*) FROM penstock_usage"), ROWS);
    assert_eq!(count("SELECT COUNT(DISTINCT request_id) FROM penstock_usage"), Some(ROWS as i64));
    let log = telemetry.captured_log();
    assert!(log.contains("usage database is away") && !log.contains("rows lost"), "{log}");
    adds_up(&RowSource::Database(database), ROWS);
    adds_up(&RowSource::Journal(temp.path().join("usage")), ROWS);
    usage.stop(PATIENCE);
}

#[test]
fn two_gateways_may_share_postgres_and_find_its_tables() {
    let temp = tempfile::tempdir().unwrap();
    let cluster = Cluster::start();
    let telemetry = Telemetry::for_tests();
    let start = |name: &str| {
        let settings = settings(temp.path().join(name), Some(postgres(&cluster.url())));
        let mut usage = UsageJournal::start(&settings, &telemetry).unwrap();
        usage.follow(Vec::new(), |_| {}).unwrap();
        (0..100).for_each(|number| usage.journal().record(row(number)));
        usage
    };
    let both = [start("a"), start("b")];
    wait_for("PostgreSQL", || cluster.ask("SELECT COUNT(*) FROM penstock_usage"), 200);
    both.into_iter().for_each(|usage| usage.stop(PATIENCE));
    assert_eq!(cluster.ask("SELECT COUNT(DISTINCT journal) FROM penstock_usage"), Some(2));
    assert_eq!(cluster.ask("SELECT COUNT(*) FROM penstock_usage_schema"), Some(2), "each step once");
}

/// Rows of a time long ago go from the database, in batches; those of today stay.
fn old_rows_go(settings: UsageSettings, mut count: impl FnMut() -> Option<i64>) {
    let telemetry = Telemetry::for_tests();
    let keep = UsageSettings { retention: None, ..settings };
    let mut usage = UsageJournal::start(&keep, &telemetry).unwrap();
    usage.follow(Vec::new(), |_| {}).unwrap();
    let today = (wall::unix_seconds(wall::now()) * 1000.0) as i64;
    for number in 0..2600 {
        let time_ms = if number < 2500 { 1_000_000_000_000 + number as i64 } else { today };
        usage.journal().record(UsageRow { time_ms, ..row(number) });
    }
    wait_for("all rows", &mut count, 2600);
    usage.stop(PATIENCE);
    let month = UsageSettings { retention: Some(Duration::from_secs(32 * 86_400)), ..keep };
    let mut usage = UsageJournal::start(&month, &telemetry).unwrap();
    usage.follow(Vec::new(), |_| {}).unwrap();
    wait_for("today's rows", &mut count, 100);
    usage.stop(PATIENCE);
    let text = telemetry.render(&Scrape { snapshot: &Snapshot::default(), engines: &[], needs: &[] });
    assert!(text.contains("penstock_usage_database_rows_deleted_total 2500"), "{text}");
}

#[test]
fn old_rows_go_from_sqlite() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("usage");
    let file = folder.join("usage.db");
    let count = || {
        let file = rusqlite::Connection::open(&file).ok()?;
        file.query_row("SELECT COUNT(*) FROM penstock_usage", (), |row| row.get(0)).ok()
    };
    let database = UsageDatabase::Sqlite(file.clone());
    old_rows_go(settings(folder, Some(database)), count);
}

#[test]
fn old_rows_go_from_postgres() {
    let temp = tempfile::tempdir().unwrap();
    let cluster = Cluster::start();
    let count = || cluster.ask("SELECT COUNT(*) FROM penstock_usage");
    old_rows_go(settings(temp.path().join("usage"), Some(postgres(&cluster.url()))), count);
}

#[test]
fn sqlite_has_every_row_once_when_the_process_is_killed() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join(CHILD), "").unwrap();
    let mut next = 0;
    for round in 0..4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["limits::usage::child_writes_until_it_is_killed", "--exact", "--nocapture"])
            .current_dir(temp.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let flushed = lines.filter_map(|line| line.strip_prefix("flushed ")?.parse::<u64>().ok());
        next = flushed.take(20 + 7 * round).last().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let folder = temp.path().join("usage");
    let database = UsageDatabase::Sqlite(folder.join("usage.db"));
    let mut usage =
        UsageJournal::start(&settings(folder.clone(), Some(database.clone())), &Telemetry::for_tests())
            .unwrap();
    usage.follow(Vec::new(), |_| {}).unwrap();
    usage.stop(PATIENCE);
    let ask = |sql: &str| -> u64 {
        let file = rusqlite::Connection::open(folder.join("usage.db")).unwrap();
        file.query_row(sql, (), |row| row.get::<_, i64>(0)).unwrap() as u64
    };
    let rows = ask("SELECT COUNT(*) FROM penstock_usage");
    // What was written after the last word of a child is there, too.
    assert!(rows >= next, "{rows} rows, {next} were flushed");
    assert_eq!(ask("SELECT COUNT(DISTINCT request_id) FROM penstock_usage"), rows);
    assert_eq!(ask("SELECT MAX(input_tokens) FROM penstock_usage"), rows - 1);
    adds_up(&RowSource::Database(database), rows);
    adds_up(&RowSource::Journal(folder), rows);
}

/// Not a test of its own: [`sqlite_has_every_row_once_when_the_process_is_killed`]
/// runs it as a process and kills that.
#[test]
fn child_writes_until_it_is_killed() {
    if !Path::new(CHILD).exists() {
        return;
    }
    let folder = PathBuf::from("usage");
    let mut first = 0;
    if folder.exists() {
        let unbroken = penstock::usage::each_row(&folder, |row| first = first.max(row.input_tokens + 1));
        unbroken.unwrap();
    }
    let database = UsageDatabase::Sqlite(folder.join("usage.db"));
    let mut usage = UsageJournal::start(&settings(folder, Some(database)), &Telemetry::for_tests()).unwrap();
    usage.follow(Vec::new(), |_| {}).unwrap();
    for number in first..first + 1_000_000 {
        usage.journal().record(row(number));
        if number % 50 == 49 {
            assert!(usage.journal().flush(PATIENCE));
            println!("flushed {}", number + 1);
        }
    }
}

/// What was used before a start, from wherever it can be known.
fn before(settings: &UsageSettings) -> (u64, bool) {
    let (told, heard) = std::sync::mpsc::channel();
    let mut usage = UsageJournal::start(settings, &Telemetry::for_tests()).unwrap();
    usage.journal().record(row(1_000));
    usage
        .follow(vec![1_800_000_000_000 + 500], move |before: Vec<PriorUsage>| told.send(before).unwrap())
        .unwrap();
    let [found] = &heard.recv_timeout(PATIENCE).unwrap()[..] else { panic!("one moment was asked") };
    let requests = found.used.iter().map(|used| used.sums.requests + used.sums.tries).sum();
    let partial = found.partial;
    usage.stop(PATIENCE);
    (requests, partial)
}

#[test]
fn a_restart_knows_what_was_used_before_it() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("usage");
    let database = UsageDatabase::Sqlite(folder.join("usage.db"));
    let stored = settings(folder.clone(), Some(database));
    let alone = settings(folder.clone(), None);
    let away = settings(folder.clone(), Some(postgres("postgres://nobody@127.0.0.1:1/none")));
    {
        let mut usage = UsageJournal::start(&stored, &Telemetry::for_tests()).unwrap();
        usage.follow(Vec::new(), |_| {}).unwrap();
        (0..100).for_each(|number| usage.journal().record(row(number)));
        usage.stop(PATIENCE);
    }
    // 50 of them are younger; each start adds one that is.
    assert_eq!(before(&alone), (50, true));
    assert_eq!(before(&stored), (51, false));
    assert_eq!(before(&away), (52, true));
    for segment in std::fs::read_dir(&folder).unwrap().flatten() {
        if segment.path().extension().is_some_and(|extension| extension == "jsonl") {
            std::fs::remove_file(segment.path()).unwrap();
        }
    }
    assert_eq!(before(&stored).0, 52, "the database has what was deleted");
}

#[test]
fn penstock_usage_prints_the_bill() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("usage");
    let database = UsageDatabase::Sqlite(folder.join("usage.db"));
    let mut usage =
        UsageJournal::start(&settings(folder, Some(database.clone())), &Telemetry::for_tests()).unwrap();
    usage.follow(Vec::new(), |_| {}).unwrap();
    (0..300).for_each(|number| usage.journal().record(row(number)));
    usage.stop(PATIENCE);
    std::fs::write(
        temp.path().join("penstock.yaml"),
        "version: 1\nauth: {mode: off}\nusage: {folder: usage}\npools: {p: {engine: vllm, models: [m], replicas: [http://a:1]}}\n",
    )
    .unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
        let done = command.arg("usage").args(args).current_dir(temp.path()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (done.status.code(), text(done.stdout), text(done.stderr))
    };
    let expected = bill(&RowSource::Database(database), &[Dimension::Tenant], TimeShare::Steps);
    assert_eq!(expected.total, sum(300));
    for source in [&[][..], &["--journal", "usage"], &["--sqlite", "usage/usage.db"]] {
        assert_eq!(run(source), (Some(0), text::table(&expected), String::new()), "{source:?}");
        let csv = run(&[source, &["--format", "csv", "--by", "day,tenant"]].concat()).1;
        let tokens: u64 =
            csv.lines().skip(1).map(|line| line.split(',').nth(5).unwrap().parse::<u64>().unwrap()).sum();
        assert_eq!(tokens, sum(300).input_tokens, "{csv}");
    }
    let (code, _, said) = run(&["--by", "colour"]);
    assert!(code == Some(2) && said.contains("there are: tenant"), "{said}");
    let (code, _, said) = run(&["--sqlite", "none.db"]);
    assert!(code == Some(1) && said.contains("none.db"), "{said}");
    let (code, _, said) = run(&["--config", "none.yaml"]);
    assert!(code == Some(1) && said.contains("--journal need no configuration"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_goes_on_where_it_was_before_the_restart() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("usage");
    let now_ms = (wall::unix_seconds(wall::now()) * 1e3) as i64;
    tokio::task::block_in_place(|| {
        let usage = UsageJournal::start(&settings(folder.clone(), None), &Telemetry::for_tests()).unwrap();
        for number in 0..3 {
            usage.journal().record(UsageRow {
                time_ms: now_ms,
                kind: RowKind::Request,
                tenant: TENANT.into(),
                ..row(number)
            });
        }
        usage.stop(PATIENCE);
    });
    let rig = Rig::start(RigOptions {
        tenants: vec![(TENANT, "limits: {per_month: {requests: 4}}")],
        more: format!("usage: {{folder: {}}}\n", folder.display()),
        ..RigOptions::default()
    })
    .await;
    until("what was used is counted", || {
        rig.telemetry.captured_log().matches("usage before the start counted").count() == 2
    })
    .await;
    let ask = || Call::post("/v1/chat/completions", &chat(1, false)).key(rig.key(TENANT)).send(rig.address());
    assert_eq!(ask().await.status, 200);
    let refused = ask().await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "insufficient_quota"));
    rig.gateway.drain().await;
}
