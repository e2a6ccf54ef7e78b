//! Connection to Valkey or Redis, and the scripts that run there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, RedisConnectionInfo, RedisError, ToRedisArgs, cmd,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::ConfigVerifierExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::config::settings::cluster::ValkeySettings;

/// Time for a connection with its handshakes.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for one answer. A store that takes longer counts as away.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The line of a script that stands for the store's time in milliseconds.
const NOW: &str = "--NOW";
const STORE_TIME: &str = "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)";

/// A script with the hash by which the store knows it.
#[derive(Debug)]
pub(super) struct StoreScript {
    text: String,
    sha: String,
}

impl StoreScript {
    fn new(text: &str) -> Self {
        let text = text.replace(NOW, STORE_TIME);
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }

    /// Leases of limits.
    pub(super) fn leases() -> Self {
        Self::new(LEASES)
    }

    /// The gateways that are there.
    pub(super) fn members() -> Self {
        Self::new(MEMBERS)
    }

    /// Overrides of operators.
    pub(super) fn overrides() -> Self {
        Self::new(OVERRIDES)
    }

    /// Demand reports of gateways.
    pub(super) fn demand() -> Self {
        Self::new(DEMAND)
    }

    /// Work of tenants and classes.
    pub(super) fn service() -> Self {
        Self::new(SERVICE)
    }

    /// Loads of gateways.
    pub(super) fn load() -> Self {
        Self::new(LOAD)
    }
}

/// The script of leases. Its line `--NOW` is to be replaced by one that sets `now`.
pub const LEASES: &str = include_str!("leases/leases.lua");
/// The script of the gateways; likewise.
pub const MEMBERS: &str = include_str!("members.lua");
/// The script of overrides; likewise.
pub const OVERRIDES: &str = include_str!("overrides.lua");
/// The script of demand reports; likewise.
pub const DEMAND: &str = include_str!("demand/demand.lua");
/// The script of the work of tenants and classes; likewise.
pub const SERVICE: &str = include_str!("service/service.lua");

/// The script of the loads of gateways; likewise.
pub const LOAD: &str = include_str!("load/load.lua");

/// An open connection. It closes when it is dropped.
pub(super) struct StoreConnection {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl fmt::Debug for StoreConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConnection").finish_non_exhaustive()
    }
}

impl Drop for StoreConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A byte stream, with TLS or without.
trait StoreStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> StoreStream for T {}

impl StoreConnection {
    /// Connects and signs in.
    ///
    /// # Errors
    /// What went wrong, as a text without secrets.
    pub(super) async fn open(settings: &ValkeySettings) -> Result<Self, String> {
        let connect = async {
            let stream = open_stream(settings).await?;
            let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_TIMEOUT));
            let info = sign_in(settings);
            let made = MultiplexedConnection::new_with_config(&info, stream, config).await;
            let (connection, driver) = made.map_err(|error| shown(&error))?;
            Ok(Self { connection, driver: tokio::spawn(driver) })
        };
        let late = |_| "no connection in time".to_owned();
        timeout(CONNECT_TIMEOUT, connect).await.map_err(late)?
    }

    /// Runs a script and returns its answer.
    ///
    /// # Errors
    /// The connection is lost, or the store refuses the call.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &StoreScript,
        keys: &[&str],
        values: &[impl ToRedisArgs + Sync],
    ) -> Result<T, String> {
        self.try_run(script, keys, values).await?
    }

    /// As [`Self::run`]; when the store refuses the call, the inner result says why.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn try_run<T: FromRedisValue>(
        &self,
        script: &StoreScript,
        keys: &[&str],
        values: &[impl ToRedisArgs + Sync],
    ) -> Result<Result<T, String>, String> {
        let call = |verb: &str, text: &str| -> Cmd {
            let mut call = cmd(verb);
            call.arg(text).arg(keys.len()).arg(keys).arg(values);
            call
        };
        let mut connection = self.connection.clone();
        let answer = match call("EVALSHA", &script.sha).query_async(&mut connection).await {
            Err(error) if error.kind() == ErrorKind::Server(redis::ServerErrorKind::NoScript) => {
                call("EVAL", &script.text).query_async(&mut connection).await
            }
            answer => answer,
        };
        match answer {
            Err(error) if error.is_io_error() || error.is_unrecoverable_error() => Err(shown(&error)),
            answer => Ok(answer.map_err(|error| shown(&error))),
        }
    }
}

fn sign_in(settings: &ValkeySettings) -> RedisConnectionInfo {
    let mut info = RedisConnectionInfo::default().set_db(settings.database).set_skip_set_lib_name();
    if let Some(name) = &settings.username {
        info = info.set_username(name);
    }
    if let Some(password) = &settings.password {
        info = info.set_password(password.expose());
    }
    info
}

/// What the store or the client library says; neither names the password.
fn shown(error: &RedisError) -> String {
    error.to_string()
}

async fn open_stream(settings: &ValkeySettings) -> Result<Box<dyn StoreStream>, String> {
    let address = (&*settings.host, settings.port);
    let tcp = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let _ = tcp.set_nodelay(true);
    if !settings.is_tls {
        return Ok(Box::new(tcp));
    }
    let own = settings.tls.as_ref();
    let config = match own {
        Some(tls) => Arc::clone(&tls.config),
        None => Arc::new(ClientConfig::with_platform_verifier().map_err(|error| error.to_string())?),
    };
    let name = own.and_then(|tls| tls.server_name.as_deref()).unwrap_or(&settings.host).to_owned();
    let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(config).connect(name, tcp).await.map_err(|error| error.to_string())?;
    Ok(Box::new(stream))
}
