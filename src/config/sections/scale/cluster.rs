//! Section `cluster`: what several gateways share through Valkey or Redis, and its check.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::secret::SecretReader;
use crate::config::sections::identity::client_tls::{self, ClientTlsSection};
use crate::config::sections::secret_ref::{self, SecretRef};
use crate::config::settings::cluster::{ClusterSettings, ValkeySettings};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::units::Span;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;

/// Port of Valkey and Redis.
const PORT: u16 = 6379;
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
    /// signal: a Valkey or Redis server.
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

/// Where the store is, and who this gateway is there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::reached)]
pub struct ValkeySection {
    /// URL of the store, such as `redis://valkey:6379/0`, or `rediss://` for TLS; `valkey://` and
    /// `valkeys://` mean the same. The path is the number of the database. Another host, port or
    /// database takes effect at the next start.
    pub url: String,
    /// User of the store's ACL; `password` is then required. Absent = the default user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Password of `username`, or of the store's default user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<SecretRef>,
    /// Certificates for connections to the store, if the URL is `rediss`. Absent = the store must
    /// have a certificate that the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTlsSection>,
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
    let address = address(&written.url);
    if let Err((message, hint)) = &address {
        findings.error(&field.key("url"), *message, *hint);
    }
    let is_tls = address.as_ref().is_ok_and(|address| address.is_tls);
    if written.tls.is_some() && address.is_ok() && !is_tls {
        let hint = "write a `rediss` URL, or take it away";
        findings.error(&field.key("tls"), "is not used without TLS", hint);
    }
    let tls = client_tls::validate(written.tls.as_ref(), &field.key("tls"), secrets, findings);
    let key = written.password.as_ref();
    let password = key.and_then(|key| secret_ref::read(key, &field.key("password"), secrets, findings));
    if written.username.is_some() && key.is_none() {
        findings.error(&field.key("password"), "is missing", "name the password of the user");
    }
    let address = address.ok()?;
    Some(ValkeySettings { tls, username: written.username.clone(), password, ..address })
}

/// Reads a URL. The error does not show it, as it may hold a password.
fn address(text: &str) -> Result<ValkeySettings, (&'static str, &'static str)> {
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
        number => number.parse::<u16>().map_err(|_| ("has a path that is no number of a database", FORM))?,
    };
    Ok(ValkeySettings {
        host: host.trim_matches(['[', ']']).to_owned(),
        port: url.port().unwrap_or(PORT),
        database: i64::from(database),
        is_tls,
        tls: None,
        username: None,
        password: None,
    })
}
