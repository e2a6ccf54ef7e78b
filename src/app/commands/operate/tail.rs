//! `penstock tail`: decisions as they are made, one line each.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::client::{AdminClient, query};
use super::filter_pairs;
use super::text::{clock_time, plain, time};
use crate::cli::operate::OutputArg;
use crate::cli::watch::TailArgs;

/// Pause before the next connection after a stream has ended.
const RECONNECT: Duration = Duration::from_secs(1);
/// Most bytes of one message.
const MAX_MESSAGE: usize = 1 << 20;

/// Prints events until the reader of standard output is gone, or enough of them came.
pub(in crate::app) async fn run(args: TailArgs) -> anyhow::Result<()> {
    let format = args.admin.format();
    if format == OutputArg::Csv {
        bail!("events have no CSV; `-o json` prints one JSON object a line");
    }
    let client = AdminClient::new(&args.admin)?;
    let mut pairs = filter_pairs(&args.filter);
    pairs.extend(args.event.iter().map(|event| ("event", event.clone())));
    let path = format!("events{}", query(&pairs));
    let end = Instant::now() + args.lasts.map_or(Duration::from_secs(86_400 * 365), |lasts| lasts.0);
    let mut left = args.count.unwrap_or(u64::MAX);
    loop {
        let mut stream = client.stream(&path).await?;
        let mut unread = Vec::new();
        loop {
            let piece = tokio::select! {
                piece = stream.chunk() => piece,
                () = sleep_until(end) => return Ok(()),
            };
            // A stream that broke off is read again, as one that ended.
            let Ok(Some(piece)) = piece else { break };
            unread.extend_from_slice(&piece);
            if unread.len() > MAX_MESSAGE {
                bail!("the answer is no stream of events");
            }
            for event in messages(&mut unread) {
                if event["event"] == "end" {
                    if !event["missed"].is_null() {
                        eprintln!(
                            "penstock: {} events are missing here: {}",
                            event["missed"],
                            plain(&event["why"])
                        );
                    }
                    continue;
                }
                let line = if format == OutputArg::Json { event.to_string() } else { line(&event) };
                if !print_line(&line)? {
                    return Ok(());
                }
                left = left.saturating_sub(1);
                if left == 0 {
                    return Ok(());
                }
            }
        }
        tokio::select! {
            () = sleep(RECONNECT) => {}
            () = sleep_until(end) => return Ok(()),
        }
    }
}

/// Prints a line. False when nobody reads any more.
fn print_line(line: &str) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        done => done.map(|()| true).context("write to standard output"),
    }
}

/// Takes the whole messages out of the bytes of a stream.
fn messages(unread: &mut Vec<u8>) -> Vec<Value> {
    let Some(end) = unread.windows(2).rposition(|two| two == b"\n\n") else { return Vec::new() };
    let rest = unread.split_off(end + 2);
    let whole = String::from_utf8_lossy(unread).into_owned();
    *unread = rest;
    let data = whole.split("\n\n").filter_map(|message| message.strip_prefix("data: "));
    data.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

/// One event for people.
fn line(event: &Value) -> String {
    let at = clock_time(event["at_unix"].as_f64().unwrap_or_default());
    let name = plain(&event["event"]);
    if name == "change" {
        return format!(
            "{at} change       {} {}: {}",
            plain(&event["change"]),
            plain(&event["subject"]),
            plain(&event["detail"])
        );
    }
    let who = format!("{}/{}/{}", plain(&event["tenant"]), plain(&event["class"]), plain(&event["model"]));
    let why = &event["why"];
    let more = match &*name {
        "dispatched" => format!(
            "  to {} ({}, {}) after {}, first token in {}, {}/{} there, {} wait on",
            plain(&event["replica"]),
            plain(&why["turn"]),
            plain(&why["choice"]),
            time(&why["queued"]),
            time(&why["expected_ttft"]),
            why["running"],
            why["limit"],
            why["left_waiting"],
        ),
        "first_token" => format!("  after {}", time(&event["after_seconds"])),
        "returned" => format!("  after {}: {}", time(&event["after_seconds"]), plain(&event["reason"])),
        "fell_back" => format!("  {}", plain(&event["reason"])),
        "ended" => {
            let reason = event["reason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
            format!(
                "  {}{reason}, status {}, after {}, {} tokens from {}",
                plain(&event["outcome"]),
                event["status"],
                time(&event["total_seconds"]),
                plain(&event["output_tokens"]),
                plain(&event["replica"]),
            )
        }
        _ => String::new(),
    };
    format!("{at} {name:<11}  {}  {who}{more}", plain(&event["request_id"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_read_whole_whatever_the_pieces() {
        let text = "retry: 2000\n\n: alive\n\ndata: {\"event\":\"a\"}\n\ndata: {\"event\":\"b\"}\n\n";
        for size in 1..text.len() {
            let mut unread = Vec::new();
            let mut events = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                unread.extend_from_slice(piece);
                events.extend(messages(&mut unread));
            }
            assert_eq!(events, [json!({ "event": "a" }), json!({ "event": "b" })], "pieces of {size}");
            assert!(unread.is_empty());
        }
    }

    #[test]
    fn an_event_is_one_line() {
        let base = json!({ "event": "first_token", "at_unix": 1_800_000_000.25, "request_id": "r", "tenant": "t", "class": "c", "model": "m", "after_seconds": 0.14 });
        assert_eq!(line(&base), "08:00:00.250 first_token  r  t/c/m  after 140 ms");
        let change = json!({ "event": "change", "at_unix": 1_800_000_000.0, "change": "ejected", "subject": "p/http://a:1", "detail": "reset" });
        assert_eq!(line(&change), "08:00:00.000 change       ejected p/http://a:1: reset");
    }
}
