//! `penstock pools drain` and `penstock replicas drain`, which may wait for the end.

use std::time::Duration;

use anyhow::bail;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::client::AdminClient;
use super::text::{plain, span};
use super::{outcome, set_override, shown};
use crate::cli::operate::DrainArgs;

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Drains a pool or a replica; the text to print.
pub(super) async fn run(kind: &str, args: &DrainArgs) -> anyhow::Result<String> {
    let client = AdminClient::new(&args.what.admin)?;
    let answer = set_override(&client, &format!("{kind}s/drain"), &args.what, None).await?;
    let text = shown(&args.what.admin, &answer, outcome)?;
    if !args.wait {
        return Ok(text);
    }
    let begun = Instant::now();
    loop {
        let running = running_at(&client, kind, &args.what.name).await?;
        if running == 0 {
            let took = span(begun.elapsed().as_secs_f64());
            eprintln!("{}: nothing runs there any more, after {took}", args.what.name);
            return Ok(text);
        }
        if begun.elapsed() >= args.timeout.0 {
            bail!(
                "{running} sequences still run at {} after {}; the drain goes on",
                args.what.name,
                args.timeout
            );
        }
        sleep(LOOK_EVERY).await;
        if running_at(&client, kind, &args.what.name).await? > 0
            && !is_closed(&client, &args.what.name).await?
        {
            bail!("the drain of {} has ended, and sequences still run there", args.what.name);
        }
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
