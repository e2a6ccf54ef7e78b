//! Check of `pools.*.discover`.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::discover::{self, DnsRecords, EndpointForm, NodeNotices, ReplicaSource};
use crate::config::secret::SecretReader;
use crate::config::sections::pools::ReplicaSection;
use crate::config::sections::pools::discover::{
    DiscoverSection, DnsSection, EndpointPort, KubernetesSection, NodesSection,
};
use crate::config::syntax::decode::{Decoded, decode};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::units::Span;
use crate::config::syntax::yaml;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;
use crate::config::validate::url;

/// Where Kubernetes puts what a pod needs to talk to its API server.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Letters of the longest name in DNS.
const MAX_NAME: usize = 253;

/// Whom to ask, where that is not the file system; and the replicas of the
/// named file.
pub(in crate::config) fn validate(
    discover: &DiscoverSection,
    field: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> (Option<ReplicaSource>, Vec<ReplicaSection>) {
    match discover {
        DiscoverSection { dns: Some(written), file: None, kubernetes: None } => {
            (dns(written, &field.key("dns"), findings).map(ReplicaSource::Dns), Vec::new())
        }
        DiscoverSection { dns: None, file: Some(path), kubernetes: None } => {
            (None, listed(path, &field.key("file"), secrets, findings))
        }
        DiscoverSection { dns: None, file: None, kubernetes: Some(written) } => {
            let field = field.key("kubernetes");
            if cfg!(not(feature = "kubernetes")) {
                let hint = "build with --features kubernetes, or use `dns` with a headless Service";
                findings.error(&field, "this program was built without Kubernetes", hint);
            }
            (Some(ReplicaSource::Kubernetes(kubernetes(written, &field, secrets, findings))), Vec::new())
        }
        _ => {
            findings.error(
                field,
                "names no source, or several",
                "write one of `dns`, `file` and `kubernetes`",
            );
            (None, Vec::new())
        }
    }
}

fn dns(written: &DnsSection, field: &FieldPath, findings: &mut Findings<'_>) -> Option<discover::DnsSource> {
    if !is_name(&written.name) {
        findings.error(
            &field.key("name"),
            format!("{:?} is no name", written.name),
            "write it like vllm.models.svc.cluster.local",
        );
    }
    match (written.records, written.port) {
        (DnsRecords::A, None | Some(0)) => {
            findings.error(&field.key("port"), "is missing", "write the engines' port, such as 8000");
        }
        (DnsRecords::Srv, Some(_)) => {
            findings.error(&field.key("port"), "is in the SRV records already", "take the key away");
        }
        _ => {}
    }
    if written.min_refresh > written.max_refresh {
        let message =
            format!("{} is shorter than min_refresh ({})", written.max_refresh, written.min_refresh);
        findings.error(&field.key("max_refresh"), message, "write min_refresh or more");
    }
    let servers = servers(&written.servers, field, findings);
    metrics_port(written.metrics_port, field, findings);
    Some(discover::DnsSource {
        name: written.name.clone(),
        records: written.records,
        port: written.port.unwrap_or(0),
        form: EndpointForm { scheme: written.scheme, metrics_port: written.metrics_port },
        min_refresh: pause(written.min_refresh, &field.key("min_refresh"), findings),
        max_refresh: pause(written.max_refresh, &field.key("max_refresh"), findings),
        empty_grace: written.empty_grace.0,
        servers,
    })
}

/// Whether it may be a name in DNS.
pub(in crate::config) fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(fits) && !name.contains("..")
}

/// The DNS servers of a section.
pub(in crate::config) fn servers(
    written: &[String],
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Vec<SocketAddr> {
    let servers = written.iter().enumerate().filter_map(|(at, text)| {
        let parsed: Option<SocketAddr> = text.parse().ok();
        if parsed.is_none() {
            let message = format!("{text:?} is no address");
            findings.error(&field.key("servers").index(at), message, "write it like 10.96.0.10:53");
        }
        parsed
    });
    servers.collect()
}

/// The replicas in a file of their own.
fn listed(
    path: &str,
    field: &FieldPath,
    files: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Vec<ReplicaSection> {
    let mut wrong = |message: String| {
        findings.error(field, message, "the file holds a list like that of `replicas`");
        Vec::new()
    };
    let text = match files.list(path) {
        Ok(text) => text,
        Err(message) => return wrong(message),
    };
    let mut tree = match yaml::parse(&text) {
        Ok(tree) => tree,
        Err(problem) => return wrong(format!("the file {path:?} cannot be read: {problem}")),
    };
    let Decoded { value, problems, .. } = decode::<Vec<ReplicaSection>>(&mut tree);
    for problem in &problems {
        wrong(format!("in the file {path:?}: {problem}"));
    }
    value.unwrap_or_default()
}

fn kubernetes(
    written: &KubernetesSection,
    field: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> discover::KubernetesSource {
    let selector = match (&written.service, &written.selector) {
        (Some(service), None) if !service.is_empty() => format!("kubernetes.io/service-name={service}"),
        (None, Some(selector)) if !selector.is_empty() => selector.clone(),
        _ => {
            findings.error(field, "names no Service, or two", "write `service` or `selector`");
            String::new()
        }
    };
    let namespace = written.namespace.clone();
    let slug = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if namespace.as_deref().is_some_and(|name| name.is_empty() || !slug(name)) {
        findings.error(&field.key("namespace"), "is no name of a namespace", "write it like `models`");
    }
    if written.port == Some(EndpointPort::Name(String::new())) {
        findings.error(&field.key("port"), "is empty", "write a number or a name, or take the key away");
    }
    metrics_port(written.metrics_port, field, findings);
    let inside = written.server.is_none();
    if !inside && namespace.is_none() {
        let hint = "write it; only inside a cluster there is one of its own";
        findings.error(&field.key("namespace"), "is missing", hint);
    }
    let server = match &written.server {
        Some(text) => {
            let wrong = |(message, hint)| findings.error(&field.key("server"), message, hint);
            url::base(text).map_err(wrong).ok()
        }
        None => in_cluster(secrets),
    };
    let file = |own: &Option<String>, name: &str| match own {
        Some(path) => Some(secrets.path(path)),
        None => inside.then(|| PathBuf::from(ACCOUNT).join(name)),
    };
    discover::KubernetesSource {
        selector,
        namespace,
        port: written.port.clone(),
        form: EndpointForm { scheme: written.scheme, metrics_port: written.metrics_port },
        resync: pause(written.resync, &field.key("resync"), findings),
        nodes: written.nodes.as_ref().map(|nodes| notices(nodes, &field.key("nodes"), findings)),
        server,
        token_file: file(&written.token_file, "token"),
        ca_file: file(&written.ca_file, "ca.crt"),
    }
}

fn notices(written: &NodesSection, field: &FieldPath, findings: &mut Findings<'_>) -> NodeNotices {
    if written.taints.is_empty() && written.conditions.is_empty() {
        let hint = "name a taint or a condition, or take the key away";
        findings.error(field, "names nothing that gives notice", hint);
    }
    for (key, list) in [("taints", &written.taints), ("conditions", &written.conditions)] {
        for (at, _) in list.iter().enumerate().filter(|(_, text)| text.is_empty()) {
            findings.error(&field.key(key).index(at), "is empty", "write it like karpenter.sh/disrupted");
        }
    }
    NodeNotices { taints: written.taints.clone(), conditions: written.conditions.clone() }
}

/// The API server of the cluster that the program runs in.
fn in_cluster(secrets: &SecretReader<'_>) -> Option<http::Uri> {
    let host = secrets.env("KUBERNETES_SERVICE_HOST").ok()?;
    let port = secrets.env("KUBERNETES_SERVICE_PORT").ok()?;
    let host = host.expose();
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    url::base(&format!("https://{host}:{}", port.expose())).ok()
}

fn metrics_port(port: Option<u16>, field: &FieldPath, findings: &mut Findings<'_>) {
    numbers::at_least_one(u64::from(port.unwrap_or(1)), &field.key("metrics_port"), findings);
}

/// A pause between questions: one at least.
fn pause(span: Span, field: &FieldPath, findings: &mut Findings<'_>) -> std::time::Duration {
    if span.0.as_millis() < 100 {
        findings.error(field, "is too short", "write 100ms or more");
    }
    span.0
}
