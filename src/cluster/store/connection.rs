//! Connection to the store, and the calls of scripts.

use std::time::Duration;

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, ToRedisArgs, cmd};
use tokio::time::timeout;

use crate::cluster::store::scripts::StoreScript;
use crate::cluster::store::sentinels::open_primary;
use crate::cluster::store::server::{ServerConnection, shown};
use crate::cluster::store::slots::SlotServers;
use crate::config::settings::cluster::{StoreServers, ValkeySettings};

/// Time for a connection with its handshakes.
pub(in crate::cluster) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Open connections to the store. They close when this is dropped.
#[derive(Debug)]
pub(in crate::cluster) enum StoreConnection {
    /// To the one server, or to the primary that sentinels name.
    One(ServerConnection),
    /// To the servers of a Valkey cluster.
    Many(SlotServers),
}

impl StoreConnection {
    /// Finds the servers, connects and signs in.
    ///
    /// # Errors
    /// What went wrong, as a text without secrets.
    pub(in crate::cluster) async fn open(settings: &ValkeySettings) -> Result<Self, String> {
        let connect = async {
            match &settings.servers {
                StoreServers::Server(address) => {
                    ServerConnection::open(address, settings).await.map(Self::One)
                }
                StoreServers::Nodes(nodes) => SlotServers::find(nodes, settings).await.map(Self::Many),
                StoreServers::Sentinels { sentinels, primary } => {
                    open_primary(sentinels, primary, settings).await.map(Self::One)
                }
            }
        };
        in_time(connect).await
    }

    /// Runs a script and returns its answer. All keys have the same part in braces.
    ///
    /// # Errors
    /// The connection is lost, or the store refuses the call.
    pub(in crate::cluster) async fn run<T: FromRedisValue>(
        &self,
        script: &StoreScript,
        keys: &[&str],
        values: &[impl ToRedisArgs + Sync],
    ) -> Result<T, String> {
        self.try_run(script, keys, values).await?
    }

    /// As [`Self::run`]. When the store refuses the call, there is no answer; `tell` gets the reason, once until the
    /// store takes such a call again.
    ///
    /// # Errors
    /// The connection is lost.
    pub(in crate::cluster) async fn run_or_tell<T: FromRedisValue>(
        &self,
        script: &mut StoreScript,
        keys: &[&str],
        values: &[impl ToRedisArgs + Sync],
        tell: impl FnOnce(&str),
    ) -> Result<Option<T>, String> {
        match self.try_run(script, keys, values).await? {
            Ok(answer) => {
                script.is_refused = false;
                Ok(Some(answer))
            }
            Err(problem) => {
                if !std::mem::replace(&mut script.is_refused, true) {
                    tell(&problem);
                }
                Ok(None)
            }
        }
    }

    /// The outer error: the connection is lost. The inner one: the store refuses the call.
    async fn try_run<T: FromRedisValue>(
        &self,
        script: &StoreScript,
        keys: &[&str],
        values: &[impl ToRedisArgs + Sync],
    ) -> Result<Result<T, String>, String> {
        let server = match self {
            Self::One(server) => server,
            Self::Many(servers) => in_time(servers.server_of(keys.first().unwrap_or(&""))).await?,
        };
        let call = |verb: &str, text: &str| -> Cmd {
            let mut call = cmd(verb);
            call.arg(text).arg(keys.len()).arg(keys).arg(values);
            call
        };
        let answer = match server.query(&call("EVALSHA", &script.sha)).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                server.query(&call("EVAL", &script.text)).await
            }
            answer => answer,
        };
        match answer {
            Err(error) if is_lost(&error) => Err(shown(&error)),
            answer => Ok(answer.map_err(|error| shown(&error))),
        }
    }
}

async fn in_time<T>(connect: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(CONNECT_TIMEOUT, connect).await.unwrap_or_else(|_| Err("no connection in time".to_owned()))
}

/// Whether the servers are to be found anew: the connection is gone, or this server is not the one that has the key
/// and takes writes.
fn is_lost(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};
    let is_elsewhere = matches!(
        error.kind(),
        ErrorKind::Server(Ask | BusyLoading | ClusterDown | MasterDown | Moved | ReadOnly | TryAgain)
    );
    is_elsewhere || error.is_io_error() || error.is_unrecoverable_error()
}
