//! Section `cluster`: what several gateways share through Valkey or Redis, and its check.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::secret::SecretReader;
use crate::config::sections::identity::client_tls::{self, ClientTlsSection};
use crate::config::sections::secret_ref::{self, SecretRef};
use crate::config::settings::cluster::{
    ClusterSettings, ServerAddress, StoreCredentials, StoreServers, ValkeySettings,
};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::units::Span;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;

/// Port of Valkey and Redis.
const PORT: u16 = 6379;
/// Most nodes or sentinels.
const MAX_SERVERS: usize = 64;
/// Longest `prefix`.
const MAX_PREFIX: usize = 64;

/// Other gateways on the same replicas and for the same tenants. They share limits,
/// overrides and the scale signal through a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::cluster)]
#[schemars(transform = crate::config::schema::transforms::restart)]
pub struct ClusterSection {
    /// The store through which the gateways share limits, fair shares, overrides and the scale
    /// signal: a Valkey or Redis server, a primary behind sentinels, or a cluster.
    pub valkey: ValkeySection,
    /// Beginning of all keys in the store: 1 to 64 letters, digits, `-`, `_` and `.`. Gateways with
    /// different prefixes share nothing.
    pub prefix: String,
    /// How long a gateway goes on with its last leases of limits while the store is away.
    /// Afterwards the gateway refuses requests that have a limit.
    pub outage: Span,
}

impl Default for ClusterSection {
    fn default() -> Self {
        Self { valkey: ValkeySection::default(), prefix: "penstock".to_owned(), outage: Span::secs(3600) }
    }
}

/// Where the store is, and who this gateway is there. Exactly one of `url`, `nodes` and `sentinel` says
/// where.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::valkey)]
pub struct ValkeySection {
    /// URL of the one server, such as `redis://valkey:6379/0`, or `rediss://` for TLS; `valkey://`
    /// and `valkeys://` mean the same. The path is the number of the database. Another host, port or
    /// database takes effect at the next start.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// URLs of nodes of a Valkey cluster (cluster mode), such as `[redis://valkey-0:6379,
    /// redis://valkey-1:6379]`: all of them, or a name that leads to several. One that is there is
    /// enough, as it knows the others. At most 64. Other nodes take effect at the next start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Sentinels that say which server is the primary. Other sentinels, another primary or database
    /// takes effect at the next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sentinel: Option<SentinelSection>,
    /// User of the store's ACL; `password` is then required. Absent = the default user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Password of `username`, or of the store's default user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<SecretRef>,
    /// Certificates for connections to the store, if the URLs are `rediss`. Absent = the store must
    /// have a certificate that the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTlsSection>,
}

/// Sentinels of Valkey or Redis. They choose another primary when it fails, and the gateway follows.
/// Other `urls`, another `primary` or `database` takes effect at the next start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::sentinel)]
pub struct SentinelSection {
    /// URLs of all sentinels, such as `[redis://sentinel-0:26379, redis://sentinel-1:26379]`; at most
    /// 64. With `rediss`, connections to the primary use TLS, too.
    pub urls: Vec<String>,
    /// Name under which the sentinels watch the primary, such as `mymaster`.
    pub primary: String,
    /// Number of the database at the primary.
    pub database: u16,
    /// User of the sentinels' ACL; `password` is then required. Absent = the default user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Password of `username`, or of the sentinels' default user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<SecretRef>,
}

/// What the section asks for; `None` without it.
pub(in crate::config) fn validate(
    written: Option<&ClusterSection>,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<ClusterSettings> {
    let (written, section) = (written?, FieldPath::top("cluster"));
    let is_name =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if written.prefix.is_empty() || written.prefix.len() > MAX_PREFIX || !is_name(&written.prefix) {
        let hint = "write 1 to 64 letters, digits, `-`, `_` and `.`";
        findings.error(&section.key("prefix"), format!("{:?} is no prefix", written.prefix), hint);
    }
    let outage = numbers::positive(written.outage, &section.key("outage"), findings);
    let valkey = store(&written.valkey, &section.key("valkey"), secrets, findings)?;
    Some(ClusterSettings { valkey, prefix: written.prefix.clone(), outage })
}

fn store(
    written: &ValkeySection,
    field: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<ValkeySettings> {
    let place = place(written, field, findings);
    if written.tls.is_some() && place.as_ref().is_some_and(|place| !place.is_tls) {
        let hint = "write `rediss` URLs, or take it away";
        findings.error(&field.key("tls"), "is not used without TLS", hint);
    }
    let tls = client_tls::validate(written.tls.as_ref(), &field.key("tls"), secrets, findings);
    let ValkeySection { username, password, .. } = written;
    let credentials = credentials(username.as_ref(), password.as_ref(), field, secrets, findings);
    let sentinel_credentials =
        written.sentinel.as_ref().map(|SentinelSection { username, password, .. }| {
            let field = field.key("sentinel");
            self::credentials(username.as_ref(), password.as_ref(), &field, secrets, findings)
        });
    let StorePlace { servers, database, is_tls } = place?;
    let sentinel_credentials = sentinel_credentials.unwrap_or_default();
    Some(ValkeySettings { servers, database, is_tls, tls, credentials, sentinel_credentials })
}

fn credentials(
    username: Option<&String>,
    password: Option<&SecretRef>,
    field: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> StoreCredentials {
    if username.is_some() && password.is_none() {
        findings.error(&field.key("password"), "is missing", "name the password of the user");
    }
    let password = password.and_then(|key| secret_ref::read(key, &field.key("password"), secrets, findings));
    StoreCredentials { username: username.cloned(), password }
}

/// Where a store is.
struct StorePlace {
    servers: StoreServers,
    database: i64,
    is_tls: bool,
}

fn place(written: &ValkeySection, field: &FieldPath, findings: &mut Findings<'_>) -> Option<StorePlace> {
    let ways = [!written.url.is_empty(), !written.nodes.is_empty(), written.sentinel.is_some()];
    match ways {
        [true, false, false] => {
            let url = address(&written.url, &field.key("url"), findings)?;
            let servers = StoreServers::Server(url.server);
            Some(StorePlace { servers, database: url.database.into(), is_tls: url.is_tls })
        }
        [false, true, false] => {
            let (nodes, is_tls) = addresses(&written.nodes, &field.key("nodes"), findings)?;
            Some(StorePlace { servers: StoreServers::Nodes(nodes), database: 0, is_tls })
        }
        [false, false, true] => {
            let (sentinel, field) = (written.sentinel.as_ref()?, field.key("sentinel"));
            if sentinel.primary.is_empty() {
                let hint = "name the primary as the sentinels do, such as mymaster";
                findings.error(&field.key("primary"), "is missing", hint);
            }
            let (sentinels, is_tls) = addresses(&sentinel.urls, &field.key("urls"), findings)?;
            let servers = StoreServers::Sentinels { sentinels, primary: sentinel.primary.clone() };
            Some(StorePlace { servers, database: sentinel.database.into(), is_tls })
        }
        [false, false, false] => {
            let hint = "name a server like redis://valkey:6379/0, or write `nodes` or `sentinel`";
            findings.error(&field.key("url"), "is missing", hint);
            None
        }
        _ => {
            let hint = "keep one of `url`, `nodes` and `sentinel`";
            findings.error(field, "says in several ways where the store is", hint);
            None
        }
    }
}

/// Reads the URLs of servers that are alike: all with TLS or none, and without a database.
fn addresses(
    texts: &[String],
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Option<(Vec<ServerAddress>, bool)> {
    if texts.is_empty() || texts.len() > MAX_SERVERS {
        let problem =
            if texts.is_empty() { "is empty".to_owned() } else { format!("has {} URLs", texts.len()) };
        findings.error(field, problem, format!("name 1 to {MAX_SERVERS} servers"));
        return None;
    }
    let mut read = Vec::with_capacity(texts.len());
    for (at, text) in texts.iter().enumerate() {
        let field = field.index(at);
        let Some(url) = address(text, &field, findings) else { continue };
        if url.database != 0 {
            findings.error(&field, "names a database", "end the URL after the port");
        }
        read.push(url);
    }
    let is_tls = read.first()?.is_tls;
    if read.iter().any(|url| url.is_tls != is_tls) {
        findings.error(field, "has URLs with TLS and without", "write all of them as redis or as rediss");
    }
    (read.len() == texts.len()).then(|| (read.into_iter().map(|url| url.server).collect(), is_tls))
}

/// A URL as it was read.
struct StoreUrl {
    server: ServerAddress,
    database: u16,
    is_tls: bool,
}

fn address(text: &str, field: &FieldPath, findings: &mut Findings<'_>) -> Option<StoreUrl> {
    let read = read_url(text);
    if let Err((message, hint)) = &read {
        findings.error(field, *message, *hint);
    }
    read.ok()
}

/// Reads a URL. The error does not show it, as it may hold a password.
fn read_url(text: &str) -> Result<StoreUrl, (&'static str, &'static str)> {
    const FORM: &str = "write it like redis://valkey:6379/0";
    let url = url::Url::parse(text).map_err(|_| ("is not a URL", FORM))?;
    let is_tls = match url.scheme() {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => return Err(("is neither redis nor rediss", FORM)),
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(("holds a user or password", "use `username` and `password`"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(("has a query or fragment", "end the URL before `?` or `#`"));
    }
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or(("has no host", FORM))?;
    let database = match url.path().trim_matches('/') {
        "" => 0,
        number => number.parse().map_err(|_| ("has a path that is no number of a database", FORM))?,
    };
    let host = host.trim_matches(['[', ']']).to_owned();
    Ok(StoreUrl { server: ServerAddress { host, port: url.port().unwrap_or(PORT) }, database, is_tls })
}
