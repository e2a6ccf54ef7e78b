//! Slots of a Valkey cluster: which server has which keys.

use futures_util::future::select_ok;
use redis::{RedisResult, Value, cmd, from_redis_value};
use tokio::sync::OnceCell;

use crate::cluster::store::server::{ServerConnection, shown};
use crate::config::settings::cluster::{ServerAddress, ValkeySettings};

/// Slots of a cluster, by the specification of Valkey and Redis clusters.
const SLOTS: u16 = 16_384;

/// The servers of a cluster that have slots. A connection is opened when a key first needs it.
#[derive(Debug)]
pub(in crate::cluster) struct SlotServers {
    ranges: Vec<SlotRange>,
    servers: Vec<(ServerAddress, OnceCell<ServerConnection>)>,
    settings: ValkeySettings,
}

/// Slots that one server has, both ends included.
#[derive(Debug, PartialEq, Eq)]
struct SlotRange {
    first: u16,
    last: u16,
    server: ServerAddress,
}

impl SlotServers {
    /// Asks all nodes at once which server has which slots. The first answer of a node that sees the cluster whole
    /// counts.
    ///
    /// # Errors
    /// What the last node says.
    pub(super) async fn find(nodes: &[ServerAddress], settings: &ValkeySettings) -> Result<Self, String> {
        let asked = nodes.iter().map(|node| {
            Box::pin(async move {
                let ranges = read_ranges(node, settings).await;
                ranges.map_err(|problem| format!("node {node}: {problem}"))
            })
        });
        let (ranges, _) = select_ok(asked).await?;
        let mut addresses: Vec<ServerAddress> = ranges.iter().map(|range| range.server.clone()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let servers = addresses.into_iter().map(|address| (address, OnceCell::new())).collect();
        Ok(Self { ranges, servers, settings: settings.clone() })
    }

    /// The connection to the server that has a key. The caller bounds the time.
    ///
    /// # Errors
    /// No server has the key, or the server cannot be reached.
    pub(super) async fn server_of(&self, key: &str) -> Result<&ServerConnection, String> {
        let slot = slot_of(key);
        let range = self.ranges.iter().find(|range| (range.first..=range.last).contains(&slot));
        let range = range.ok_or_else(|| format!("no server of the cluster has slot {slot}"))?;
        let server = self.servers.iter().find(|(address, _)| *address == range.server);
        let (address, connection) = server.ok_or_else(|| format!("{} is not known", range.server))?;
        let opened = connection.get_or_try_init(|| ServerConnection::open(address, &self.settings)).await;
        opened.map_err(|problem| format!("node {address}: {problem}"))
    }
}

async fn read_ranges(node: &ServerAddress, settings: &ValkeySettings) -> Result<Vec<SlotRange>, String> {
    let server = ServerConnection::open(node, settings).await?;
    let query = |what: &str| {
        let mut command = cmd("CLUSTER");
        command.arg(what);
        command
    };
    let info: String = server.query(&query("INFO")).await.map_err(|error| shown(&error))?;
    if !info.lines().any(|line| line.trim_end() == "cluster_state:ok") {
        return Err("says that the cluster is down".to_owned());
    }
    let rows: Vec<Vec<Value>> = server.query(&query("SLOTS")).await.map_err(|error| shown(&error))?;
    let ranges: RedisResult<Vec<Option<SlotRange>>> =
        rows.into_iter().map(|row| range_of(row, node)).collect();
    let ranges: Option<Vec<SlotRange>> = ranges.map_err(|error| shown(&error))?.into_iter().collect();
    ranges.ok_or_else(|| "says nothing of a server that has slots".to_owned())
}

/// One row of `CLUSTER SLOTS`: first and last slot, then the primary as host, port and more, then its replicas.
/// `None` if the primary's host is unknown. Without a host, it is the one that was asked.
fn range_of(row: Vec<Value>, asked: &ServerAddress) -> RedisResult<Option<SlotRange>> {
    let mut row = row.into_iter();
    let mut next = || row.next().unwrap_or(Value::Nil);
    let (first, last): (u16, u16) = (from_redis_value(next())?, from_redis_value(next())?);
    let primary: Vec<Value> = from_redis_value(next())?;
    let mut primary = primary.into_iter();
    let mut next = || primary.next().unwrap_or(Value::Nil);
    let (host, port): (Option<String>, u16) = (from_redis_value(next())?, from_redis_value(next())?);
    let host = match host.as_deref() {
        Some("?") => return Ok(None),
        None | Some("") => asked.host.clone(),
        Some(host) => host.to_owned(),
    };
    Ok(Some(SlotRange { first, last, server: ServerAddress { host, port } }))
}

/// The slot of a key: CRC-16 (XMODEM) of what stands in its first braces, or of all of it.
fn slot_of(key: &str) -> u16 {
    let in_braces = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let tag = in_braces.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `CLUSTER KEYSLOT` of Redis 7.0 says.
    #[test]
    fn keys_have_the_slots_that_the_store_gives_them() {
        for (key, slot) in [("123456789", 12_739), ("foo", 12_182), ("{foo}bar", 12_182), ("a{}b", 13_694)] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }

    #[test]
    fn a_row_names_the_primary_of_its_slots() {
        let asked = ServerAddress { host: "seed".to_owned(), port: 1 };
        let row = |host: Value| {
            let primary = Value::Array(vec![host, Value::Int(6380), Value::BulkString(b"id".to_vec())]);
            range_of(vec![Value::Int(0), Value::Int(5460), primary], &asked)
        };
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let named = |host: &str| {
            let server = ServerAddress { host: host.to_owned(), port: 6380 };
            Some(SlotRange { first: 0, last: 5460, server })
        };
        assert_eq!(row(text("10.0.0.1")), Ok(named("10.0.0.1")));
        assert_eq!(row(text("")), Ok(named("seed")));
        assert_eq!(row(Value::Nil), Ok(named("seed")));
        assert_eq!(row(text("?")), Ok(None));
        assert!(range_of(vec![Value::Int(0)], &asked).is_err());
    }
}
