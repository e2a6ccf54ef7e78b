//! A connection to one server of the store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, RedisConnectionInfo, RedisError, RedisResult};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::ConfigVerifierExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::config::settings::cluster::{ServerAddress, StoreCredentials, ValkeySettings};

/// Time for one answer. A store that takes longer counts as away.
pub(in crate::cluster) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// An open connection. It closes when it is dropped.
pub(in crate::cluster) struct ServerConnection {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl fmt::Debug for ServerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConnection").finish_non_exhaustive()
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A byte stream, with TLS or without.
trait StoreStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> StoreStream for T {}

impl ServerConnection {
    /// Connects to a server that has data, and signs in. The caller bounds the time.
    ///
    /// # Errors
    /// What went wrong, as a text without secrets.
    pub(super) async fn open(address: &ServerAddress, settings: &ValkeySettings) -> Result<Self, String> {
        Self::open_as(address, settings, &settings.credentials, settings.database).await
    }

    /// As [`Self::open`], to a sentinel.
    ///
    /// # Errors
    /// What went wrong, as a text without secrets.
    pub(super) async fn open_sentinel(
        address: &ServerAddress,
        settings: &ValkeySettings,
    ) -> Result<Self, String> {
        Self::open_as(address, settings, &settings.sentinel_credentials, 0).await
    }

    async fn open_as(
        address: &ServerAddress,
        settings: &ValkeySettings,
        credentials: &StoreCredentials,
        database: i64,
    ) -> Result<Self, String> {
        let stream = open_stream(address, settings).await?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_TIMEOUT));
        let info = sign_in(credentials, database);
        let made = MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (connection, driver) = made.map_err(|error| shown(&error))?;
        Ok(Self { connection, driver: tokio::spawn(driver) })
    }

    /// Sends one command and returns its answer.
    ///
    /// # Errors
    /// What the server refuses, or that the connection is lost.
    pub(super) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        command.query_async(&mut self.connection.clone()).await
    }
}

fn sign_in(credentials: &StoreCredentials, database: i64) -> RedisConnectionInfo {
    let mut info = RedisConnectionInfo::default().set_db(database).set_skip_set_lib_name();
    if let Some(name) = &credentials.username {
        info = info.set_username(name);
    }
    if let Some(password) = &credentials.password {
        info = info.set_password(password.expose());
    }
    info
}

/// What the store or the client library says; neither names the password.
pub(super) fn shown(error: &RedisError) -> String {
    error.to_string()
}

async fn open_stream(
    address: &ServerAddress,
    settings: &ValkeySettings,
) -> Result<Box<dyn StoreStream>, String> {
    let tcp = TcpStream::connect((&*address.host, address.port)).await.map_err(|error| error.to_string())?;
    let _ = tcp.set_nodelay(true);
    if !settings.is_tls {
        return Ok(Box::new(tcp));
    }
    let own = settings.tls.as_ref();
    let config = match own {
        Some(tls) => Arc::clone(&tls.config),
        None => Arc::new(ClientConfig::with_platform_verifier().map_err(|error| error.to_string())?),
    };
    let name = own.and_then(|tls| tls.server_name.as_deref()).unwrap_or(&address.host).to_owned();
    let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(config).connect(name, tcp).await.map_err(|error| error.to_string())?;
    Ok(Box::new(stream))
}
