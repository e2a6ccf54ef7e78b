//! Tests of traces: reading, errors, and changes to traces.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{TraceErrorKind, reblock};
use crate::trace::traffic::TrafficTrace;

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn packed(&self, name: &str, text: &str) -> PathBuf {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        let path = self.0.path().join(name);
        fs::write(&path, encoder.finish().unwrap()).unwrap();
        path
    }
}

fn error(name: &str, text: &str) -> String {
    let dir = Dir::new();
    let path = dir.file(name, text);
    let error = TrafficTrace::read(&path).unwrap_err().to_string();
    error.strip_prefix(&*path.to_string_lossy()).expect("names the file").to_owned()
}

#[test]
fn tables_are_read_plain_and_packed_in_any_order_of_columns() {
    let dir = Dir::new();
    let text = "out_tokens,t_s,tenant,in_tokens\r\n5,12.5,b,30\n\n7,10.25,a,40\n6,13,b,1\n";
    for path in [dir.file("a.csv", text), dir.packed("a.csv.gz", text)] {
        let trace = TrafficTrace::read(&path).unwrap();
        let rows: Vec<_> = trace.calls.iter().map(|c| (c.at.as_millis(), c.prompt, c.output)).collect();
        assert_eq!(rows, [(0, 40, 7), (2250, 30, 5), (2750, 1, 6)]);
        let names: Vec<_> = trace.calls.iter().map(|c| &*trace.tenants[c.tenant as usize]).collect();
        assert_eq!(names, ["a", "b", "b"]);
        assert_eq!(trace.prefix_block, 0);
    }
}

#[test]
fn mooncake_ids_become_hashes_that_cover_what_is_before() {
    let dir = Dir::new();
    let line = |at, tokens, ids| {
        format!(
            "{{\"timestamp\": {at}, \"input_length\": {tokens}, \"output_length\": 3, \"hash_ids\": {ids}}}\n"
        )
    };
    let text = [line(0, 1100, "[1, 2, 3]"), line(500, 1024, "[1, 2]"), line(900, 1024, "[9, 2]")].concat();
    let trace = TrafficTrace::read(&dir.packed("m.jsonl.gz", &text)).unwrap();
    let prefix = |index: usize| &trace.calls[index].prefix;
    assert_eq!(prefix(0).len(), 2, "the third block is not whole");
    assert_eq!(prefix(0), prefix(1));
    assert_ne!(prefix(1)[1], prefix(2)[1], "the same block after another one");
    assert_eq!(trace.calls[2].at, Duration::from_millis(900));
}

#[test]
fn errors_name_line_and_column_and_say_what_is_needed() {
    let head = "t_s,in_tokens,out_tokens\n";
    let cases = [
        ("x.csv", "t_s,in_tokens\n", ":1: the header has no column `out_tokens`"),
        ("x.csv", "", ": there are no calls in it"),
        ("x.csv", head, ": there are no calls in it"),
        ("x.csv", &format!("{head}0,5,5\n1,-3,5\n"), ":3: column `in_tokens`: must be a number of tokens"),
        ("x.csv", &format!("{head}0,5\n"), ":2: column `out_tokens`: must be"),
        ("x.csv", &format!("{head}nan,5,5\n"), ":2: column `t_s`: must be a time: seconds"),
        ("x.csv", &format!("{head}0,5,99999999999\n"), ":2: column `out_tokens`"),
        ("x.csv", "t_s,tenant,in_tokens,out_tokens\n0,,1,1\n", ":2: column `tenant`: must have a name"),
        ("x.jsonl", "{\"timestamp\": 0}\n", ":1: not a call: missing field `input_length`"),
        (
            "x.jsonl",
            "{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}",
            ":1: column `timestamp`",
        ),
        ("x.parquet", "", ": its name must end in .csv"),
        ("x.csv.gz", "not gzip", ": cannot read it"),
    ];
    for (name, text, expected) in cases {
        let found = error(name, text);
        assert!(found.contains(expected), "{found}\nlacks\n{expected}");
    }
    let missing = TrafficTrace::read(std::path::Path::new("/nowhere/x.csv")).unwrap_err();
    assert!(matches!(missing.kind, TraceErrorKind::Io(_)));
    let long = format!("{head}{}\n", "9".repeat(5 << 20));
    assert!(error("x.csv", &long).contains("longer than"));
}

/// Traces that come with the load generator.
#[test]
fn the_committed_traces_are_what_their_page_says() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../loadtest/traces");
    let table = [
        ("azure2023_conv.csv.gz", 9_683, 0, 1_155),
        ("azure2023_code.csv.gz", 4_409, 0, 2_048),
        ("mooncake_conversation.jsonl.gz", 6_015, 0, 12_000),
        ("servegen_mmid_1h.csv.gz", 42_792, 50, 0),
    ];
    for (name, calls, tenants, mean) in table {
        let trace = TrafficTrace::read(&root.join(name)).unwrap();
        assert_eq!(trace.calls.len(), calls, "{name}");
        assert!(trace.tenants.len() >= tenants, "{name}: {}", trace.tenants.len());
        assert_eq!(trace.calls[0].at, Duration::ZERO);
        let total: u64 = trace.calls.iter().map(|call| u64::from(call.prompt)).sum();
        let found = total / calls as u64;
        assert!(mean == 0 || found.abs_diff(mean) * 10 < mean, "{name}: {found} tokens a prompt");
    }
}

fn numbered(count: u32) -> TrafficTrace {
    let mut text = String::from("t_s,in_tokens,out_tokens\n");
    for index in 0..count {
        // Calls come in pairs, so that the gaps have a shape.
        text += &format!("{}.{},{},1\n", index / 2, (index % 2) * 2, index + 1);
    }
    TrafficTrace::read(&Dir::new().file("n.csv", &text)).unwrap()
}

#[test]
fn rotation_wraps_and_keeps_gaps_and_calls() {
    let original = numbered(100);
    let mut starts = Vec::new();
    for seed in 0..5 {
        let mut trace = original.clone();
        trace.rotate(seed);
        assert_eq!(trace.calls[0].at, Duration::ZERO);
        assert!(trace.calls.is_sorted_by_key(|call| call.at));
        starts.push(trace.calls[0].prompt);
        let mut prompts: Vec<_> = trace.calls.iter().map(|call| call.prompt).collect();
        prompts.sort_unstable();
        assert_eq!(prompts, (1..=100).collect::<Vec<_>>());
        let moved = |prompt: u32| trace.calls.iter().find(|call| call.prompt == prompt).unwrap().at;
        // Gaps inside the trace are unchanged.
        if trace.calls[0].prompt != 42 {
            assert_eq!(moved(42) - moved(41), Duration::from_millis(200), "seed {seed}");
        }
    }
    assert_eq!(starts[0], 1, "seed 0 changes nothing");
    starts.sort_unstable();
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] > 10), "{starts:?}");
    let mut empty = TrafficTrace::default();
    empty.rotate(3);
    assert_eq!(empty, TrafficTrace::default());
}

#[test]
fn scaling_changes_the_rate_and_not_the_shape() {
    let mut trace = numbered(101);
    trace.scale_to(40.0);
    assert!((trace.rate() - 40.0).abs() < 1e-6, "{}", trace.rate());
    let gap = |index: usize| (trace.calls[index + 1].at - trace.calls[index].at).as_secs_f64();
    assert!((gap(0) / gap(1) - 0.25).abs() < 1e-6, "0.2 s, then 0.8 s");
    let before = trace.clone();
    trace.scale_to(0.0);
    trace.scale_to(f64::NAN);
    assert_eq!(trace, before);
    trace.take_span(Duration::from_secs(1));
    assert!((40..=42).contains(&trace.calls.len()), "{}", trace.calls.len());
    trace.drop_longer(20);
    assert!(trace.calls.len() == 20 && trace.calls.iter().all(|call| call.prompt <= 20));
    trace.take(5);
    assert_eq!(trace.calls.len(), 5);
}

#[test]
fn tenants_are_dealt_by_their_shares() {
    let mut trace = numbered(10_000);
    trace.draw_tenants(&[0.0, -1.0], 1);
    assert!(trace.tenants.is_empty());
    trace.draw_tenants(&[3.0, 0.0, 1.0], 1);
    let count = |tenant| trace.calls.iter().filter(|call| call.tenant == tenant).count();
    assert!(count(0).abs_diff(7_500) < 200 && count(1) == 0, "{} {}", count(0), count(1));
    let again = trace.clone();
    trace.draw_tenants(&[3.0, 0.0, 1.0], 1);
    assert_eq!(trace, again);
}

#[test]
fn hashes_change_their_block_size_and_keep_what_they_have_in_common() {
    let (one, two) = ([1, 2, 3, 4], [1, 2, 3, 5]);
    assert_eq!(reblock(&one, 16, 32), [2, 4]);
    assert_eq!(reblock(&one, 16, 64), [4]);
    let (fine, other) = (reblock(&one, 512, 256), reblock(&two, 512, 256));
    assert_eq!(fine.len(), 8);
    assert_eq!(fine[..6], other[..6]);
    assert!(fine[6] != other[6] && fine[7] != other[7]);
    assert_eq!(reblock(&fine, 256, 512), one, "there and back");
    assert_eq!(reblock(&one, 16, 24), Vec::<u64>::new());
}
