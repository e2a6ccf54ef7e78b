//! Check of `server` and `telemetry`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use crate::config::file::ConfigFile;
use crate::config::secret::SecretReader;
use crate::config::sections::identity::{AdminSection, audit};
use crate::config::sections::server::{ProxiesSection, ServerSection, telemetry};
use crate::config::sections::usage;
use crate::config::settings::{ListenerLimits, Startup, TrustedProxies};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::units::Span;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;

/// hyper reads no head into less than this.
const MIN_HEAD_BYTES: u64 = 8 << 10;
const MAX_HEAD_BYTES: u64 = 1 << 20;

pub(in crate::config) fn validate(
    file: &ConfigFile,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Startup {
    let server = &file.server;
    let section = FieldPath::top("server");
    let address_connections = server.max_address_connections.unwrap_or(server.max_connections.div_ceil(2));
    let proxies = server.proxies.as_ref();
    let proxies = proxies.map(|section| trusted_proxies(section, findings)).unwrap_or_default();
    let mut timeout =
        |key: &str, span: Span| -> Duration { numbers::positive(span, &section.key(key), findings) };
    let listener = ListenerLimits {
        proxies,
        max_connections: usize::try_from(server.max_connections).unwrap_or(usize::MAX),
        max_address_connections: usize::try_from(address_connections).unwrap_or(usize::MAX),
        head_timeout: timeout("head_timeout", server.head_timeout),
        body_timeout: timeout("body_timeout", server.body_timeout),
        send_timeout: timeout("send_timeout", server.send_timeout),
        min_send_rate: server.min_send_rate.0,
        idle_timeout: timeout("idle_timeout", server.idle_timeout),
        max_head_bytes: usize::try_from(server.max_head_bytes.0).unwrap_or(usize::MAX),
        handshake_timeout: timeout("handshake_timeout", server.handshake_timeout),
        max_address_handshakes: usize::try_from(server.max_address_handshakes).unwrap_or(usize::MAX),
    };
    numbers::at_least_one(
        server.max_address_handshakes.into(),
        &section.key("max_address_handshakes"),
        findings,
    );
    numbers::at_least_one(server.max_connections.into(), &section.key("max_connections"), findings);
    if let Some(number) = server.max_address_connections {
        numbers::at_least_one(number.into(), &section.key("max_address_connections"), findings);
    }
    if !(MIN_HEAD_BYTES..=MAX_HEAD_BYTES).contains(&server.max_head_bytes.0) {
        let message = format!("{} is out of range", server.max_head_bytes);
        findings.error(&section.key("max_head_bytes"), message, "write 8KiB to 1MiB");
    }
    listeners(server, &file.admin, &section, findings);
    Startup {
        listen: server.listen.0,
        admin: server.admin.0,
        listener,
        drain_grace: server.drain_grace.0,
        audit: audit::validate(&file.audit, secrets, findings),
        usage: usage::check::validate(&file.usage, secrets, findings),
        telemetry: telemetry::validate(&file.telemetry, secrets, findings),
    }
}

fn trusted_proxies(proxies: &ProxiesSection, findings: &mut Findings<'_>) -> TrustedProxies {
    let field = FieldPath::top("server").key("proxies").key("trusted");
    let mut networks = Vec::new();
    for (at, text) in proxies.trusted.iter().enumerate() {
        match text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)) {
            Ok(network) => networks.push(network),
            Err(_) => {
                let message = format!("{text:?} is neither an address nor a network");
                findings.error(&field.index(at), message, "write one such as 10.0.0.0/8");
            }
        }
    }
    if proxies.trusted.is_empty() {
        findings.error(&field, "names no load balancer", "write its network, or leave `proxies` out");
    }
    TrustedProxies { networks, header: proxies.header }
}

fn listeners(
    server: &ServerSection,
    operators: &AdminSection,
    section: &FieldPath,
    findings: &mut Findings<'_>,
) {
    let (listen, admin) = (server.listen.0, server.admin.0);
    let AdminSection { tls, auth } = operators;
    if collide(listen, admin) {
        let message = format!("{admin} is where clients connect already");
        findings.error(&section.key("admin"), message, "give it a port of its own");
    }
    let has_bearers = !auth.tokens.is_empty() || auth.oidc.is_some();
    if !admin.ip().is_loopback() && !has_bearers && auth.client_certs.is_empty() {
        let message =
            format!("the admin port can be reached from outside ({admin}) and asks for no password");
        let hint = "put a token of `penstock keys new` into `admin.auth.tokens`, name an identity provider in \
                    `admin.auth.oidc`, or see that only operators and Prometheus can connect";
        findings.warn(&section.key("admin"), message, hint);
    }
    if !admin.ip().is_loopback() && has_bearers && tls.is_none() {
        let message = format!("operators reach {admin} from outside, and their tokens come in the clear");
        let hint = "set `admin.tls`, or keep the port on loopback or behind something that ends TLS";
        findings.warn(&section.key("admin"), message, hint);
    }
    if !listen.ip().is_loopback() && server.tls.is_none() && server.proxies.is_none() {
        let message = format!("clients reach {listen} from outside, and their keys come in the clear");
        let hint = "set `server.tls`, or name the load balancers that end TLS in front in `server.proxies`";
        findings.warn(&section.key("listen"), message, hint);
    }
}

/// Whether both cannot be bound; port 0 is any free port.
pub(in crate::config) fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let same_host = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && same_host
}
