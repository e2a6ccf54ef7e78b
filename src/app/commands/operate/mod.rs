//! Operator commands: inspect a running gateway and change what it does.

mod client;
mod explain;
mod status;
pub(in crate::app) mod tail;
pub(super) mod text;
pub(in crate::app) mod top;
mod verbs;
mod views;
mod why;

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use crate::cli::operate::{
    AccessArgs, AdminArgs, BoostArgs, ExplainArgs, OutputArg, PoolsCommand, ReadyArgs, ReplicasCommand,
    StatusArgs, TenantsCommand,
};
use crate::cli::watch::{FilterArgs, RequestListArgs};

use crate::core::replica::speed::pool_best::PoolBest;

use self::client::{AdminClient, as_path_part, query};
use self::verbs::{end, set, shown};

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
        PoolsCommand::Drain(args) => verbs::drain("pool", &args).await,
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
        ReplicasCommand::List(args) => list(&args, "replicas", |list| views::REPLICAS.table(list)).await,
        ReplicasCommand::Cordon(args) => set("replicas/cordon", &args, None).await,
        ReplicasCommand::Uncordon(args) => end("replicas/uncordon", &args).await,
        ReplicasCommand::Drain(args) => verbs::drain("replica", &args).await,
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

/// A running gateway's answer that has names in it.
pub(in crate::app) async fn names_at(admin: &AdminArgs, path: &str) -> anyhow::Result<Value> {
    AdminClient::new(admin)?.get(path).await
}

/// Best latencies of each pool of a running gateway, by name.
pub(in crate::app) async fn best_latencies(
    admin: &str,
    access: &AccessArgs,
) -> anyhow::Result<HashMap<String, PoolBest>> {
    let args = AdminArgs { admin: Some(admin.to_owned()), access: access.clone(), ..AdminArgs::default() };
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
            prefill_tokens_per_second: count("read_tokens_per_second"),
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
    let client = AdminClient::new(&AdminArgs { admin, access, output: OutputArg::Table, json: false })?;
    client.ready(url.as_deref()).await?;
    Ok("ready\n".to_owned())
}

/// `penstock explain`; the text to print.
pub(in crate::app) async fn explain(args: ExplainArgs) -> anyhow::Result<String> {
    let path = format!("requests/{}", as_path_part(&args.request_id));
    let answer = AdminClient::new(&args.admin)?.get(&path).await?;
    shown(&args.admin, &answer, explain::render)
}

/// `penstock why`; the text to print.
pub(in crate::app) async fn why(args: ExplainArgs) -> anyhow::Result<String> {
    let path = format!("requests/{}", as_path_part(&args.request_id));
    let answer = AdminClient::new(&args.admin)?.get(&path).await?;
    shown(&args.admin, &answer, why::paragraph)
}

/// `penstock requests list`; the text to print.
pub(in crate::app) async fn requests(args: RequestListArgs) -> anyhow::Result<String> {
    let mut pairs = filter_pairs(&args.filter);
    let states = [("waiting", args.waiting), ("running", args.running), ("finished", args.finished)];
    pairs.extend(states.iter().filter(|(_, on)| *on).map(|(state, _)| ("state", (*state).to_owned())));
    pairs.push(("limit", args.limit.to_string()));
    if args.admin.format() == OutputArg::Csv {
        pairs.push(("format", "csv".to_owned()));
        return AdminClient::new(&args.admin)?.text(&format!("requests{}", query(&pairs))).await;
    }
    let answer = AdminClient::new(&args.admin)?.get(&format!("requests{}", query(&pairs))).await?;
    shown(&args.admin, &answer, |answer| {
        let list = &answer["requests"];
        let matched: u64 =
            answer["matched"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
        let more = matched.saturating_sub(list.as_array().map_or(0, Vec::len) as u64);
        let rest =
            if more > 0 { format!("and {more} more: --limit shows up to 1000\n") } else { String::new() };
        views::REQUESTS.table(list) + &rest
    })
}

/// `penstock queues list`; the text to print.
pub(in crate::app) async fn queues(args: AdminArgs) -> anyhow::Result<String> {
    list(&args, "queues", |list| views::QUEUES.table(list)).await
}

/// Bill of a running gateway, as its path asks for it.
pub(in crate::app) async fn usage(path: String, admin: AdminArgs) -> anyhow::Result<String> {
    let text = AdminClient::new(&admin)?.text(&path).await?;
    Ok(serde_json::from_str::<Value>(&text).map_or(text, |bill| format!("{bill:#}\n")))
}

fn filter_pairs(filter: &FilterArgs) -> Vec<(&'static str, String)> {
    let FilterArgs { tenant, class, model, pool } = filter;
    let keys = [("tenant", tenant), ("class", class), ("model", model), ("pool", pool)];
    keys.into_iter().flat_map(|(key, names)| names.iter().map(move |name| (key, name.clone()))).collect()
}

/// `penstock status`: prints with `print` once, or until it fails.
pub(in crate::app) async fn status(
    args: StatusArgs,
    mut print: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let client = AdminClient::new(&args.admin)?;
    loop {
        let text = shown(&args.admin, &client.get("status").await?, status::screen)?;
        if !args.watch {
            return print(&text);
        }
        print(&format!("{CLEAR}{text}"))?;
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

async fn list(args: &AdminArgs, what: &str, table: impl Fn(&Value) -> String) -> anyhow::Result<String> {
    let client = AdminClient::new(args)?;
    if args.format() == OutputArg::Csv {
        return client.text(&format!("{what}?format=csv")).await;
    }
    shown(args, &client.get(what).await?, |answer| table(&answer[what]))
}
