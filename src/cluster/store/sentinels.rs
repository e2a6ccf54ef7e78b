//! Sentinels: which server is the primary now.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::{Value, cmd};
use tokio::time::timeout;

use crate::cluster::store::server::{ServerConnection, shown};
use crate::config::settings::cluster::{ServerAddress, ValkeySettings};

/// Time for the answer of one sentinel, with the connection.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(500);

/// Connects to the primary that most sentinels name. All are asked at once: one that is away costs nothing as
/// long as most of the others agree, and one that is cut off and names an old primary is outvoted.
///
/// # Errors
/// No sentinel names a primary, or the server that they name is none.
pub(super) async fn open_primary(
    sentinels: &[ServerAddress],
    primary: &str,
    settings: &ValkeySettings,
) -> Result<ServerConnection, String> {
    let address = find_primary(sentinels, primary, settings).await?;
    let server = ServerConnection::open(&address, settings).await?;
    // A server that has just become a replica refuses all writes, and one that starts is not ready.
    let role: Vec<Value> = server.query(&cmd("ROLE")).await.map_err(|error| shown(&error))?;
    let role = role.into_iter().next().map(redis::from_redis_value::<String>);
    match role {
        Some(Ok(role)) if role == "master" => Ok(server),
        _ => Err(format!("{address} is not the primary yet")),
    }
}

async fn find_primary(
    sentinels: &[ServerAddress],
    primary: &str,
    settings: &ValkeySettings,
) -> Result<ServerAddress, String> {
    let mut asked: FuturesUnordered<_> =
        sentinels.iter().map(|sentinel| ask(sentinel, primary, settings)).collect();
    let (mut votes, mut problem) = (BTreeMap::<ServerAddress, usize>::new(), None);
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(address) => {
                let count = votes.entry(address.clone()).or_default();
                *count += 1;
                if *count * 2 > sentinels.len() {
                    return Ok(address);
                }
            }
            Err(why) => problem = Some(why),
        }
    }
    let named = votes.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address);
    named.ok_or_else(|| problem.unwrap_or_else(|| "there are no sentinels".to_owned()))
}

async fn ask(
    sentinel: &ServerAddress,
    primary: &str,
    settings: &ValkeySettings,
) -> Result<ServerAddress, String> {
    let asked = async {
        let server = ServerConnection::open_sentinel(sentinel, settings).await?;
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(primary);
        let answer: Option<(String, u16)> = server.query(&question).await.map_err(|error| shown(&error))?;
        let (host, port) = answer.ok_or_else(|| format!("knows no primary {primary:?}"))?;
        Ok::<_, String>(ServerAddress { host, port })
    };
    let answer = timeout(SENTINEL_TIMEOUT, asked).await.unwrap_or_else(|_| Err("does not answer".to_owned()));
    answer.map_err(|problem| format!("sentinel {sentinel}: {problem}"))
}
