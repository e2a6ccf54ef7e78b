//! Tests of the journal on a real disk, with faults.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::config::settings::usage::UsageSettings;
use crate::telemetry::Telemetry;
use crate::telemetry::fixtures;
use crate::usage::journal::Journal;
use crate::usage::row::tests::row;
use crate::usage::segment::{Batch, Cursor, JournalFolder, each_row};
use crate::usage::writer::{JournalEnds, RecentRows};

pub(super) const SOON: Duration = Duration::from_secs(10);
const MINUTE_MS: i64 = 60_000;

pub(super) fn settings(folder: &Path) -> UsageSettings {
    UsageSettings {
        folder: folder.to_owned(),
        database: None,
        segment_bytes: 64 << 10,
        segment_age: Duration::from_secs(60),
        keep_bytes: 1 << 20,
        retention: None,
        queue: 4096,
    }
}

fn start(settings: &UsageSettings) -> (Journal, Arc<JournalEnds>, Telemetry) {
    let (ends, telemetry) = (Arc::new(JournalEnds::default()), Telemetry::for_tests());
    let (journal, _) = Journal::start(settings, Arc::clone(&ends), &telemetry).unwrap();
    (journal, ends, telemetry)
}

fn times(folder: &Path) -> Vec<i64> {
    let mut times = Vec::new();
    assert_eq!(each_row(folder, |row| times.push(row.time_ms)).unwrap(), 0);
    times
}

fn count(telemetry: &Telemetry, name: &str) -> f64 {
    let text = fixtures::render(telemetry);
    fixtures::samples(&text).iter().filter(|(key, _)| key.starts_with(name)).map(|(_, value)| value).sum()
}

#[test]
fn rows_are_on_the_disk_in_order_and_a_restart_goes_on() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("usage");
    for run in 0..3 {
        let (journal, ends, telemetry) = start(&settings(&folder));
        for number in 0..100 {
            journal.record(row(run * 100 + number, "red"));
        }
        assert!(journal.flush(SOON));
        assert_eq!(count(&telemetry, "penstock_usage_rows_total"), 100.0);
        assert_eq!(ends.written.lock().segment, run as u64 + 1);
        // The file that a process leaves when it is killed in the middle of a line.
        drop(journal);
        wait_for_end(&folder);
        let last = JournalFolder::new(&folder).segments().unwrap().last().unwrap().number;
        let mut text = fs::read_to_string(JournalFolder::new(&folder).file(last)).unwrap();
        text.push_str("{\"time_ms\":");
        fs::write(JournalFolder::new(&folder).file(last), text).unwrap();
    }
    let (_journal, ..) = start(&settings(&folder));
    assert_eq!(times(&folder), (0..300).collect::<Vec<_>>());
}

/// Waits until the writer's thread has released the folder.
pub(super) fn wait_for_end(folder: &Path) {
    for _ in 0..1000 {
        if JournalFolder::new(folder).lock().is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the writer does not end");
}

#[test]
fn a_second_process_is_kept_out() {
    let temp = tempfile::tempdir().unwrap();
    let (_journal, ends, telemetry) = start(&settings(temp.path()));
    let second = Journal::start(&settings(temp.path()), ends, &telemetry).unwrap_err().to_string();
    assert!(second.contains("usage.folder") && second.contains("another process"), "{second}");
}

#[test]
fn segments_end_by_size_and_by_age_and_the_oldest_goes() {
    let temp = tempfile::tempdir().unwrap();
    let settings = UsageSettings { segment_bytes: 4096, keep_bytes: 20_000, ..settings(temp.path()) };
    let (journal, ends, telemetry) = start(&settings);
    *ends.read.lock() = Some(Cursor { segment: 3, offset: 0 });
    for number in 0..200 {
        journal.record(row(number, "red"));
        assert!(journal.flush(SOON));
    }
    let folder = JournalFolder::new(temp.path());
    let segments = folder.segments().unwrap();
    assert!(segments.iter().all(|segment| segment.len <= 4096), "{segments:?}");
    assert!(segments.iter().map(|segment| segment.len).sum::<u64>() <= 20_000);
    let left = times(temp.path());
    assert_eq!(left, (200 - left.len() as i64..200).collect::<Vec<_>>());
    let per_segment = 4096 / (serde_json::to_string(&row(100, "red")).unwrap().len() as u64 + 1);
    let gone = 200.0 - left.len() as f64;
    let lost = count(&telemetry, "penstock_usage_rows_dropped_total{reason=\"unread\"}");
    assert!((gone - lost - 2.0 * per_segment as f64).abs() < 3.0, "{gone} gone, {lost} of them unread");

    let before = segments.last().unwrap().number;
    journal.record(row(200 + MINUTE_MS, "red"));
    assert!(journal.flush(SOON));
    assert_eq!(ends.written.lock().segment, before + 1);
    // The clock was set back by an hour.
    journal.record(row(200 - 59 * MINUTE_MS, "red"));
    assert!(journal.flush(SOON));
    assert_eq!(ends.written.lock().segment, before + 2);
}

#[test]
fn a_disk_that_takes_nothing_holds_up_nobody_and_is_told_once() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("disk").join("usage");
    fs::create_dir(temp.path().join("disk")).unwrap();
    let (journal, _, telemetry) = start(&UsageSettings { queue: 8, ..settings(&folder) });
    journal.record(row(0, "red"));
    assert!(journal.flush(SOON));
    fs::remove_dir_all(temp.path().join("disk")).unwrap();
    for number in 1..=2_000 {
        journal.record(row(number, "red"));
    }
    assert!(!journal.flush(Duration::from_millis(300)));
    let dropped = count(&telemetry, "penstock_usage_rows_dropped_total{reason=\"queue\"}");
    assert!(dropped > 0.0, "{dropped}");
    fs::create_dir(temp.path().join("disk")).unwrap();
    assert!(journal.flush(SOON));
    journal.record(row(3_000, "red"));
    assert!(journal.flush(SOON));
    let found = times(&folder);
    assert_eq!((found.len() as f64, found.last()), (2_001.0 - dropped, Some(&3_000)));
    let log = telemetry.captured_log();
    for text in
        ["journal cannot be written", "rows are dropped", "journal is written again", "usage rows lost"]
    {
        assert_eq!(log.matches(text).count(), 1, "{text}: {log}");
    }
}

#[test]
fn rows_that_were_just_written_are_handed_over_in_order() {
    let at = |offset| Cursor { segment: 1, offset };
    let batch = |until, times: &[i64]| Batch {
        rows: times.iter().map(|time| row(*time, "red")).collect(),
        until: at(until),
        broken: 0,
    };
    let mut recent = RecentRows::default();
    recent.push(at(0), batch(10, &[1, 2]));
    recent.push(at(10), batch(20, &[3]));
    recent.push(at(30), batch(40, &[4]));
    let times = |batch: Option<Batch>| {
        batch.map(|batch| (batch.rows.iter().map(|row| row.time_ms).collect::<Vec<_>>(), batch.until))
    };
    assert_eq!(times(recent.take_after(at(5))), None, "the first ones were read in part");
    assert_eq!(times(recent.take_after(at(10))), Some((vec![3], at(20))));
    let mut recent = RecentRows::default();
    recent.push(at(0), batch(10, &[1, 2]));
    recent.push(at(10), batch(20, &[3]));
    recent.push(at(30), batch(40, &[4]));
    assert_eq!(times(recent.take_after(at(0))), Some((vec![1, 2, 3], at(20))));
    assert_eq!(times(recent.take_after(at(20))), None, "the journal has what is between");
    assert_eq!(times(recent.take_after(at(30))), Some((vec![4], at(40))));
    for batch_number in 0..20 {
        recent.push(at(batch_number * 1000), batch((batch_number + 1) * 1000, &[7; 512]));
    }
    assert_eq!(times(recent.take_after(at(0))), None, "only the last ones are kept");
    assert!(times(recent.take_after(at(12_000))).is_some_and(|(times, _)| times.len() == 4096));
}
