//! Rows of the benchmark: the load of each, and the figures that come of it.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

/// One measurement, which gives one figure or several. The order is that of a round: memory
/// comes first, while the proxies are fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// No requests: memory, CPU and wake-ups.
    Idle,
    /// 1,000 open streams that are dropped at once: memory of each, time to the last abort.
    Held,
    /// 200 requests/s, 2 KiB prompts: latency.
    Latency,
    /// 1,000 requests/s, 2 KiB prompts: CPU.
    Steady,
    /// 64 connections without pause, 2 KiB prompts: CPU and requests/s.
    Full,
    /// 16 connections without pause, 64 KiB prompts: CPU.
    Prompt64k,
    /// 60 connections without pause, 220 KiB prompts: CPU and requests/s.
    Prompt220k,
    /// 256 streams of 200 tokens, an event every 10 ms: CPU.
    Streams256,
    /// The same with 64 streams.
    Streams64,
    /// 64 streams of 1,000 tokens, events without pause: CPU and chunks/s.
    Flood,
}

/// What is sent in a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Load {
    /// Nothing.
    Idle,
    /// So many streams are opened and dropped.
    Held(usize),
    /// Requests.
    Requests(Requests),
}

/// Requests of a row, in a closed loop or at a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Requests {
    pub(super) arrivals: Arrivals,
    pub(super) prompt_kib: usize,
    /// Tokens of a stream; absent = plain answers.
    pub(super) stream: Option<u32>,
}

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Arrivals {
    /// So many connections send without pause.
    Closed(u32),
    /// So many requests a second.
    Open(f64),
}

/// How long a row lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) warmup: Duration,
    pub(super) window: Duration,
}

/// Tokens of a plain answer.
pub(super) const PLAIN_TOKENS: u32 = 20;
/// Streams of [`Row::Held`].
const HELD: usize = 1000;

impl Row {
    /// All of them, in their order.
    pub const ALL: [Row; 10] = [
        Row::Idle,
        Row::Held,
        Row::Latency,
        Row::Steady,
        Row::Full,
        Row::Prompt64k,
        Row::Prompt220k,
        Row::Streams256,
        Row::Streams64,
        Row::Flood,
    ];

    /// Its name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub(super) fn load(self) -> Load {
        let plain = |arrivals, prompt_kib| Load::Requests(Requests { arrivals, prompt_kib, stream: None });
        let stream = |streams, tokens| {
            Load::Requests(Requests {
                arrivals: Arrivals::Closed(streams),
                prompt_kib: 2,
                stream: Some(tokens),
            })
        };
        match self {
            Row::Idle => Load::Idle,
            Row::Held => Load::Held(HELD),
            Row::Latency => plain(Arrivals::Open(200.0), 2),
            Row::Steady => plain(Arrivals::Open(1000.0), 2),
            Row::Full => plain(Arrivals::Closed(64), 2),
            Row::Prompt64k => plain(Arrivals::Closed(16), 64),
            Row::Prompt220k => plain(Arrivals::Closed(60), 220),
            Row::Streams256 => stream(256, 200),
            Row::Streams64 => stream(64, 200),
            Row::Flood => stream(64, 1000),
        }
    }

    /// Time between two events of a stream.
    pub(super) fn interval(self) -> Duration {
        Duration::from_millis(match self {
            Row::Streams256 | Row::Streams64 => 10,
            Row::Held => 1000,
            _ => 0,
        })
    }

    pub(super) fn times(self, quick: bool) -> Times {
        let [warmup, window] = match (self, quick) {
            (Row::Idle, false) => [2000, 10_000],
            (Row::Idle, true) => [1000, 4000],
            (Row::Held, false) => [0, 3000],
            (Row::Held, true) => [0, 2000],
            (Row::Latency, false) => [1000, 6000],
            (Row::Steady, false) => [1000, 5000],
            (Row::Streams256 | Row::Streams64, false) => [2000, 5000],
            (Row::Streams256 | Row::Streams64, true) => [2000, 2500],
            (Row::Latency | Row::Steady, true) => [500, 3000],
            (_, false) => [1000, 4000],
            (_, true) => [500, 2000],
        };
        Times { warmup: Duration::from_millis(warmup), window: Duration::from_millis(window) }
    }

    /// Whether the engines themselves have a figure in it.
    pub(super) fn has_direct(self) -> bool {
        Figure::ALL.iter().any(|figure| figure.facts().row == self && figure.facts().of == Of::All)
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// CPU of a request at 1,000/s.
    SteadyCpu,
    /// CPU of a request at saturation.
    FullCpu,
    /// Requests/s at saturation.
    FullRate,
    /// CPU of a request with 64 KiB.
    Prompt64kCpu,
    /// CPU of a request with 220 KiB.
    Prompt220kCpu,
    /// Requests/s with 220 KiB.
    Prompt220kRate,
    /// CPU of a chunk with 256 streams.
    Streams256Cpu,
    /// CPU of a chunk with 64 streams.
    Streams64Cpu,
    /// CPU of a chunk in the flood.
    FloodCpu,
    /// Chunks/s in the flood.
    FloodRate,
    /// Median latency.
    LatencyP50,
    /// Latency at 99 %.
    LatencyP99,
    /// What the proxy adds to the median.
    AddedP50,
    /// What the proxy adds at 99 %.
    AddedP99,
    /// Memory of an open stream.
    StreamMemory,
    /// From the drop of all streams to the last abort at an engine.
    LastAbort,
    /// Memory of the idle process.
    IdleMemory,
    /// CPU of the idle process.
    IdleCpu,
    /// Wake-ups of the idle process.
    IdleWakeups,
}

/// Whose figure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// Proxies and engines.
    All,
    /// Proxies only: it is of a process.
    Proxies,
}

/// What is to be known of a figure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) row: Row,
    pub(super) label: &'static str,
    /// After the point.
    pub(super) digits: usize,
    pub(super) of: Of,
    /// Whether more of it is better.
    pub(super) more: bool,
}

impl Figure {
    /// All of them, as the table has them.
    pub const ALL: [Figure; 19] = [
        Figure::SteadyCpu,
        Figure::FullCpu,
        Figure::FullRate,
        Figure::Prompt64kCpu,
        Figure::Prompt220kCpu,
        Figure::Prompt220kRate,
        Figure::Streams256Cpu,
        Figure::Streams64Cpu,
        Figure::FloodCpu,
        Figure::FloodRate,
        Figure::LatencyP50,
        Figure::LatencyP99,
        Figure::AddedP50,
        Figure::AddedP99,
        Figure::StreamMemory,
        Figure::LastAbort,
        Figure::IdleMemory,
        Figure::IdleCpu,
        Figure::IdleWakeups,
    ];

    pub(super) fn facts(self) -> Facts {
        let cost = |row, label, digits| Facts { row, label, digits, of: Of::Proxies, more: false };
        let rate = |row, label| Facts { row, label, digits: 0, of: Of::All, more: true };
        let time = |row, label, of| Facts { row, label, digits: 2, of, more: false };
        match self {
            Figure::SteadyCpu => cost(Row::Steady, "CPU µs/request, 1,000/s, 2 KiB", 1),
            Figure::FullCpu => cost(Row::Full, "CPU µs/request, saturated, 2 KiB", 1),
            Figure::FullRate => rate(Row::Full, "requests/s, saturated, 2 KiB"),
            Figure::Prompt64kCpu => cost(Row::Prompt64k, "CPU µs/request, saturated, 64 KiB", 1),
            Figure::Prompt220kCpu => cost(Row::Prompt220k, "CPU µs/request, saturated, 220 KiB", 1),
            Figure::Prompt220kRate => rate(Row::Prompt220k, "requests/s, saturated, 220 KiB"),
            Figure::Streams256Cpu => cost(Row::Streams256, "CPU µs/chunk, 256 streams", 2),
            Figure::Streams64Cpu => cost(Row::Streams64, "CPU µs/chunk, 64 streams", 2),
            Figure::FloodCpu => cost(Row::Flood, "CPU µs/chunk, flood", 2),
            Figure::FloodRate => rate(Row::Flood, "chunks/s, flood"),
            Figure::LatencyP50 => time(Row::Latency, "p50 ms at 200/s", Of::All),
            Figure::LatencyP99 => time(Row::Latency, "p99 ms at 200/s", Of::All),
            Figure::AddedP50 => time(Row::Latency, "added p50 ms at 200/s", Of::Proxies),
            Figure::AddedP99 => time(Row::Latency, "added p99 ms at 200/s", Of::Proxies),
            Figure::StreamMemory => cost(Row::Held, "memory, KiB/open stream", 1),
            Figure::LastAbort => {
                Facts { digits: 0, ..time(Row::Held, "last abort, ms after 1,000 drops", Of::All) }
            }
            Figure::IdleMemory => cost(Row::Idle, "idle: memory, MiB", 1),
            Figure::IdleCpu => cost(Row::Idle, "idle: CPU ms/s", 2),
            Figure::IdleWakeups => cost(Row::Idle, "idle: wake-ups/s", 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_figure_and_every_label_is_its_own() {
        for row in Row::ALL {
            assert!(Figure::ALL.iter().any(|figure| figure.facts().row == row), "{row:?}");
            assert!(row.times(true).window < row.times(false).window, "{row:?}");
        }
        let mut labels: Vec<_> = Figure::ALL.iter().map(|figure| figure.facts().label).collect();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), Figure::ALL.len());
    }

    #[test]
    fn engines_are_measured_where_no_process_is() {
        let direct: Vec<Row> = Row::ALL.into_iter().filter(|row| row.has_direct()).collect();
        assert_eq!(direct, [Row::Held, Row::Latency, Row::Full, Row::Prompt220k, Row::Flood]);
    }
}
