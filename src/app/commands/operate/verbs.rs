//! Verbs: commands that change what a gateway does, and a drain that waits for its end.

use std::time::Duration;

use anyhow::bail;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::client::AdminClient;
use super::text::{plain, span, time};
use crate::cli::operate::{AdminArgs, DrainArgs, NameArgs, OutputArg, OverrideArgs};

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Drains a pool or a replica; the text to print.
pub(super) async fn drain(kind: &str, args: &DrainArgs) -> anyhow::Result<String> {
    let client = AdminClient::new(&args.what.admin)?;
    let answer = set_override(&client, &format!("{kind}s/drain"), &args.what, None).await?;
    let text = shown(&args.what.admin, &answer, outcome)?;
    if !args.wait {
        return Ok(text);
    }
    let (begun, name) = (Instant::now(), &args.what.name);
    let mut told = false;
    loop {
        let running = running_at(&client, kind, name).await?;
        if running == 0 {
            let took = span(begun.elapsed().as_secs_f64());
            let done = format!("{name}: nothing runs there any more, after {took}\n");
            return Ok(if args.what.admin.format() == OutputArg::Table { text + &done } else { text });
        }
        if begun.elapsed() >= args.timeout.0 {
            let limit = span(args.timeout.0.as_secs_f64());
            bail!("{running} sequences still run at {name} after {limit}; the drain goes on");
        }
        if !is_closed(&client, name).await? {
            bail!("the drain of {name} has ended, and {running} sequences still run there");
        }
        if !std::mem::replace(&mut told, true) {
            eprintln!("{name}: {running} sequences still run there; waiting for their end");
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Sequences at the pool or replica.
async fn running_at(client: &AdminClient, kind: &str, name: &str) -> anyhow::Result<u64> {
    let answer = client.get("replicas").await?;
    let ours = answer["replicas"].as_array().into_iter().flatten().filter(|row| plain(&row[kind]) == name);
    Ok(ours.filter_map(|row| row["running"].as_u64()).sum())
}

/// Whether an override of the name is in force.
async fn is_closed(client: &AdminClient, name: &str) -> anyhow::Result<bool> {
    let answer = client.get("overrides").await?;
    let rows: Vec<&Value> = answer["overrides"].as_array().into_iter().flatten().collect();
    Ok(rows.iter().any(|row| plain(&row["name"]) == name))
}

pub(super) async fn set(path: &str, args: &OverrideArgs, by: Option<f64>) -> anyhow::Result<String> {
    let answer = set_override(&AdminClient::new(&args.admin)?, path, args, by).await?;
    shown(&args.admin, &answer, outcome)
}

async fn set_override(
    client: &AdminClient,
    path: &str,
    args: &OverrideArgs,
    by: Option<f64>,
) -> anyhow::Result<Value> {
    let mut body = json!({ "name": args.name, "for": args.lasts, "reason": args.reason });
    if let Some(by) = by {
        body["by"] = json!(by);
    }
    client.post(path, &body).await
}

pub(super) async fn end(path: &str, args: &NameArgs) -> anyhow::Result<String> {
    let answer = AdminClient::new(&args.admin)?.post(path, &json!({ "name": args.name })).await?;
    shown(&args.admin, &answer, outcome)
}

pub(super) fn shown(
    args: &AdminArgs,
    answer: &Value,
    words: impl Fn(&Value) -> String,
) -> anyhow::Result<String> {
    match args.format() {
        OutputArg::Table => Ok(words(answer)),
        OutputArg::Json => Ok(format!("{answer:#}\n")),
        OutputArg::Csv => bail!("only lists have a CSV; `-o json` prints this one for programs"),
    }
}

/// Text for the outcome of an operator command.
fn outcome(answer: &Value) -> String {
    let words = |state: &Value| match state.as_str() {
        Some("none") => "as the file says".to_owned(),
        _ => plain(state),
    };
    let lasts = match &answer["ends_in_seconds"] {
        _ if answer["after"] == "none" => String::new(),
        Value::Null => ", until somebody ends it".to_owned(),
        seconds => format!(", for {}", time(seconds)),
    };
    let (name, before, after) = (plain(&answer["name"]), words(&answer["before"]), words(&answer["after"]));
    let mut text = format!("{name}: {after}{lasts}; before: {before}\n");
    if answer["requeued"] != 0 {
        text += &format!("{} requests that were not begun went back to the queue\n", answer["requeued"]);
    }
    if answer["still_running"] != 0 && answer["after"] != "none" {
        text += &format!("{} sequences still run there\n", answer["still_running"]);
    }
    for note in answer["notes"].as_array().into_iter().flatten() {
        text += &format!("note: {}\n", plain(note));
    }
    text
}
