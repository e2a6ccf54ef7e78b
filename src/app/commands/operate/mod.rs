//! Operator commands: inspect a running gateway and change what it does.

mod client;
mod explain;
mod status;
mod text;

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::operate::{
    AccessArgs, AdminArgs, BoostArgs, ExplainArgs, NameArgs, OverrideArgs, PoolsCommand, ReadyArgs,
    ReplicasCommand, StatusArgs, TenantsCommand,
};

use crate::core::replica::speed::pool_best::PoolBest;

use self::client::{AdminClient, as_path_part};
use self::text::{plain, time};

/// Time between two refreshes of `status --watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// Escape codes that put the cursor in the upper left corner and clear the screen below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// `penstock pools`; the text to print.
pub(in crate::app) async fn pools(command: PoolsCommand) -> anyhow::Result<String> {
    match command {
        PoolsCommand::List(args) => list(&args, "pools", status::pools).await,
        PoolsCommand::Cordon(args) => set("pools/cordon", &args, None).await,
        PoolsCommand::Uncordon(args) => end("pools/uncordon", &args).await,
        PoolsCommand::Drain(args) => set("pools/drain", &args, None).await,
        PoolsCommand::SpotNotice(args) => set("pools/spot-notice", &args, None).await,
    }
}

/// Demand that a gateway has measured.
pub(in crate::app) async fn demand(admin: &AdminArgs) -> anyhow::Result<Value> {
    AdminClient::new(admin)?.get("demand").await
}

/// `penstock replicas`; the text to print.
pub(in crate::app) async fn replicas(command: ReplicasCommand) -> anyhow::Result<String> {
    match command {
        ReplicasCommand::List(args) => list(&args, "replicas", status::replicas).await,
        ReplicasCommand::Cordon(args) => set("replicas/cordon", &args, None).await,
        ReplicasCommand::Uncordon(args) => end("replicas/uncordon", &args).await,
        ReplicasCommand::Drain(args) => set("replicas/drain", &args, None).await,
        ReplicasCommand::SpotNotice(args) => set("replicas/spot-notice", &args, None).await,
    }
}

/// `penstock tenants`; the text to print.
pub(in crate::app) async fn tenants(command: TenantsCommand) -> anyhow::Result<String> {
    match command {
        TenantsCommand::List(args) => list(&args, "tenants", status::tenants_in_full).await,
        TenantsCommand::Pause(args) => set("tenants/pause", &args, None).await,
        TenantsCommand::Resume(args) => end("tenants/resume", &args).await,
        TenantsCommand::Boost(BoostArgs { by, what }) => set("tenants/boost", &what, Some(by)).await,
    }
}

/// Best latencies of each pool of a running gateway, by name.
pub(in crate::app) async fn best_latencies(
    admin: &str,
    access: &AccessArgs,
) -> anyhow::Result<HashMap<String, PoolBest>> {
    let args = AdminArgs { admin: Some(admin.to_owned()), access: access.clone(), json: false };
    let answer = AdminClient::new(&args)?.get("pools").await?;
    let time = |value: &Value| Duration::try_from_secs_f64(value.as_f64()?).ok();
    let row = |row: &Value| {
        let best = &row["best"];
        let count = |name: &str| best[name].as_u64().unwrap_or_default();
        let best = PoolBest {
            first_token: time(&best["ttft_seconds"]),
            first_tokens: count("first_tokens"),
            gap: time(&best["itl_seconds"]),
            gaps: count("gaps"),
            read_per_second: count("read_tokens_per_second"),
        };
        Some((row["pool"].as_str()?.to_owned(), best))
    };
    Ok(answer["pools"].as_array().into_iter().flatten().filter_map(row).collect())
}

/// Cold start of a running gateway's pool; `None` before the first start.
pub(in crate::app) async fn cold_start(admin: &str, pool: &str) -> anyhow::Result<Option<Duration>> {
    let args = AdminArgs { admin: Some(admin.to_owned()), ..AdminArgs::default() };
    let answer = AdminClient::new(&args)?.get("pools").await?;
    let row = answer["pools"].as_array().into_iter().flatten().find(|row| row["pool"] == pool);
    let seconds = row.and_then(|row| row["cold_start_seconds"].as_f64());
    Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
}

/// `penstock ready`; the text to print.
pub(in crate::app) async fn ready(args: ReadyArgs) -> anyhow::Result<String> {
    let ReadyArgs { url, admin, access } = args;
    let client = AdminClient::new(&AdminArgs { admin, access, json: false })?;
    client.ready(url.as_deref()).await?;
    Ok("ready\n".to_owned())
}

/// `penstock explain`; the text to print.
pub(in crate::app) async fn explain(args: ExplainArgs) -> anyhow::Result<String> {
    let path = format!("requests/{}", as_path_part(&args.request_id));
    let answer = AdminClient::new(&args.admin)?.get(&path).await?;
    Ok(shown(&args.admin, &answer, explain::render))
}

/// `penstock status`: prints with `print` once, or until it fails.
pub(in crate::app) async fn status(
    args: StatusArgs,
    mut print: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let client = AdminClient::new(&args.admin)?;
    loop {
        let text = shown(&args.admin, &client.get("status").await?, status::screen);
        if !args.watch {
            return print(&text);
        }
        print(&format!("{CLEAR}{text}"))?;
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

async fn list(args: &AdminArgs, what: &str, table: fn(&Value) -> String) -> anyhow::Result<String> {
    let answer = AdminClient::new(args)?.get(what).await?;
    Ok(shown(args, &answer, |answer| table(&answer[what])))
}

async fn set(path: &str, args: &OverrideArgs, by: Option<f64>) -> anyhow::Result<String> {
    let mut body = json!({ "name": args.name, "for": args.lasts, "reason": args.reason });
    if let Some(by) = by {
        body["by"] = json!(by);
    }
    let answer = AdminClient::new(&args.admin)?.post(path, &body).await?;
    Ok(shown(&args.admin, &answer, outcome))
}

async fn end(path: &str, args: &NameArgs) -> anyhow::Result<String> {
    let answer = AdminClient::new(&args.admin)?.post(path, &json!({ "name": args.name })).await?;
    Ok(shown(&args.admin, &answer, outcome))
}

fn shown(args: &AdminArgs, answer: &Value, words: impl Fn(&Value) -> String) -> String {
    if args.json { format!("{answer:#}\n") } else { words(answer) }
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
