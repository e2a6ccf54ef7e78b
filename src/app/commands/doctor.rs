//! `penstock doctor`: what would keep a gateway from working on this machine.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use futures_util::{StreamExt as _, stream};
use jiff::fmt::rfc2822;
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::app::commands::operate::text::{span, table};
use crate::app::gateway::descriptors::{OTHER_FILES, most_files};
use crate::cli::operate::OutputArg;
use crate::config::secret::Secret;
use crate::config::settings::{PoolSettings, ReplicaSettings, Settings};
use crate::engines::{Ability, ModelInfo};
use crate::fleet::fetch::{FetchError, ReplicaClient};
use crate::telemetry::wall;
use crate::tls;

/// Limit for one answer of an engine.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Engines that are asked at once.
const AT_ONCE: usize = 16;
/// Difference of two clocks that is a warning.
const MAX_SKEW: Duration = Duration::from_secs(5);

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckResult {
    Good,
    Warning,
    Failed,
}

impl CheckResult {
    const fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// What one check found.
#[derive(Debug)]
pub(super) struct Finding {
    check: &'static str,
    of: String,
    result: CheckResult,
    detail: String,
}

impl Finding {
    fn new(check: &'static str, of: &str, result: CheckResult, detail: String) -> Self {
        Self { check, of: of.to_owned(), result, detail }
    }
}

/// Makes all checks.
///
/// # Errors
/// TLS cannot be set up.
pub(super) async fn run_checks(settings: &Settings) -> anyhow::Result<Vec<Finding>> {
    tls::install_provider();
    let mut findings = vec![descriptors(settings)];
    let ports = [
        ("server.listen", Some(settings.startup.listen)),
        ("server.admin", Some(settings.startup.admin)),
        ("scale.listen", settings.scale.listen),
    ];
    let gateway = has_gateway(settings).await?;
    findings.extend(ports.iter().filter_map(|(key, address)| Some(port(key, (*address)?, gateway))));
    for (_, name, pool) in settings.edge.pools.iter() {
        if let Some(source) = &pool.discover {
            let detail = format!(
                "more replicas come from {}: `penstock replicas list` shows them",
                source.source.name()
            );
            findings.push(Finding::new("engines", name, CheckResult::Good, detail));
        }
    }
    let shared = Arc::new(ReplicaClient::new(false)?);
    let replicas = settings.edge.replicas.iter();
    let engines = replicas.filter_map(|(_, name, row)| {
        let pool = settings.edge.pools.get(row.pool)?;
        let own = pool.tls.as_ref().and_then(|tls| ReplicaClient::with_tls(tls, &row.url.to_string()));
        let client = own.map_or_else(|| Arc::clone(&shared), Arc::new);
        Some(async move { engine(&client, name, row, pool).await })
    });
    let found: Vec<_> = stream::iter(engines).buffered(AT_ONCE).collect().await;
    findings.extend(found.into_iter().flatten());
    Ok(findings)
}

pub(super) fn has_failed(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.result == CheckResult::Failed)
}

pub(super) fn text(findings: &[Finding], output: OutputArg) -> String {
    let row = |finding: &Finding| {
        [
            finding.check.to_owned(),
            finding.of.clone(),
            finding.result.name().to_owned(),
            finding.detail.clone(),
        ]
        .to_vec()
    };
    match output {
        OutputArg::Table => {
            table(&["CHECK", "OF", "RESULT", "DETAIL"], &findings.iter().map(row).collect::<Vec<_>>())
        }
        OutputArg::Json => {
            let rows = findings.iter().map(|finding| json!({
                "check": finding.check, "of": finding.of, "result": finding.result.name(), "detail": finding.detail,
            }));
            format!("{:#}\n", Value::Array(rows.collect()))
        }
        OutputArg::Csv => {
            let cells = |finding: &Finding| {
                row(finding)
                    .iter()
                    .map(|cell| crate::usage::bill::text::quoted(cell))
                    .collect::<Vec<_>>()
                    .join(",")
                    + "\r\n"
            };
            "check,of,result,detail\r\n".to_owned() + &findings.iter().map(cells).collect::<String>()
        }
    }
}

/// Whether this user may open as many files as the configuration's connections need.
fn descriptors(settings: &Settings) -> Finding {
    let limit = most_files();
    let wanted = 2 * settings.startup.listener.max_connections as u64 + OTHER_FILES;
    let (result, advice) = if limit >= wanted {
        (CheckResult::Good, "")
    } else {
        (
            CheckResult::Warning,
            "; the gateway accepts fewer connections: raise `ulimit -Hn` (LimitNOFILE of systemd)",
        )
    };
    let detail = format!("{limit} may be open, {wanted} are wanted at server.max_connections{advice}");
    Finding::new("descriptors", "this process", result, detail)
}

/// Whether a gateway answers at the admin address of the configuration. Its certificate is not checked:
/// it names no address of this machine, and the request holds no secret.
async fn has_gateway(settings: &Settings) -> anyhow::Result<bool> {
    let secured = settings.listeners.admin.is_some();
    let http = Client::builder().timeout(TIMEOUT).no_proxy().tls_danger_accept_invalid_certs(secured);
    let http = http.build().context("cannot set up TLS")?;
    let scheme = if secured { "https" } else { "http" };
    let answer = http.get(format!("{scheme}://{}/livez", settings.startup.admin)).send().await;
    Ok(answer.is_ok_and(|answer| answer.status().is_success()))
}

fn port(key: &str, address: SocketAddr, gateway: bool) -> Finding {
    let (result, detail) = match TcpListener::bind(address) {
        Ok(_) => (CheckResult::Good, format!("{address} is free")),
        Err(_) if gateway => (CheckResult::Good, format!("{address}: a gateway runs here")),
        Err(error) => (CheckResult::Failed, format!("{address}: {error}; another program may listen there")),
    };
    Finding::new("ports", key, result, detail)
}

/// Whether an engine answers, serves the models of its pool and has the time of this machine.
async fn engine(
    http: &ReplicaClient,
    name: &str,
    row: &ReplicaSettings,
    pool: &PoolSettings,
) -> Vec<Finding> {
    let spec = pool.engine.spec();
    let base = row.url.to_string();
    let base = base.trim_end_matches('/');
    let begun = Instant::now();
    let mut answered = None;
    for path in spec.ready_paths {
        match ask(http, &format!("{base}{path}"), pool.api_key.as_ref()).await {
            Err(problem) => {
                let detail = format!("no answer: {problem}");
                return vec![Finding::new("engines", name, CheckResult::Failed, detail)];
            }
            Ok(answer) if answer.status().as_u16() == 404 => answered = answered.or(Some(answer)),
            Ok(answer) => {
                answered = Some(answer);
                break;
            }
        }
    }
    let Some(answer) = answered else { return Vec::new() };
    let status = answer.status().as_u16();
    let (result, word) =
        if spec.is_ready(status) { (CheckResult::Good, "ready") } else { (CheckResult::Failed, "not ready") };
    let detail = format!("{word}, status {status}, in {}", span(begun.elapsed().as_secs_f64()));
    let mut findings = vec![Finding::new("engines", name, result, detail)];
    findings.extend(clock(name, &answer, wall::now()));
    findings.push(models(http, name, base, pool).await);
    findings
}

async fn ask(http: &ReplicaClient, url: &str, key: Option<&Secret>) -> Result<Response, String> {
    let answer = timeout(TIMEOUT, http.get_fresh(url, key)).await;
    let answer = answer.map_err(|_| format!("none within {}", span(TIMEOUT.as_secs_f64())))?;
    answer.map_err(|error| format!("{:#}", anyhow::Error::from(error.without_url())))
}

/// Compares the engine's `date` with the time here, to the second.
fn clock(name: &str, answer: &Response, now: SystemTime) -> Option<Finding> {
    let date = answer.headers().get("date")?.to_str().ok()?;
    let there = rfc2822::parse(date).ok()?.timestamp().as_second() as f64;
    let skew = there - wall::unix_seconds(now);
    let (result, advice) = if skew.abs() <= MAX_SKEW.as_secs_f64() {
        (CheckResult::Good, "")
    } else {
        (CheckResult::Warning, "; tokens and certificates expire by this clock: is NTP on?")
    };
    Some(Finding::new("clock", name, result, format!("{skew:+.0} s against this machine{advice}")))
}

/// Whether the engine lists the models of its pool.
async fn models(http: &ReplicaClient, name: &str, base: &str, pool: &PoolSettings) -> Finding {
    let spec = pool.engine.spec();
    let mut info = ModelInfo::default();
    for document in spec.info {
        let url = format!("{base}{}", document.path);
        match http.get(&url, pool.api_key.as_ref(), TIMEOUT).await {
            Ok(body) => {
                let _unreadable = (document.read)(&body, &mut info);
            }
            Err(FetchError::Status(status @ (401 | 403))) => {
                let detail = format!("status {status}: the engine wants a key; pools.*.api_key");
                return Finding::new("models", name, CheckResult::Failed, detail);
            }
            Err(_) => {}
        }
    }
    let served: Vec<&str> = info.names.iter().map(|served| &*served.name).collect();
    let missing: Vec<&str> =
        pool.model_names.values().map(|name| &**name).filter(|name| !served.contains(name)).collect();
    if served.is_empty() {
        return Finding::new("models", name, CheckResult::Good, "the engine lists none".to_owned());
    }
    let serves = format!("serves {}", served.join(", "));
    if missing.is_empty() {
        return Finding::new("models", name, CheckResult::Good, serves);
    }
    if !spec.can(Ability::ListAllNames) {
        let detail = format!("{serves}; an engine of kind `{}` takes other names, too", spec.name);
        return Finding::new("models", name, CheckResult::Good, detail);
    }
    let detail = format!("lacks {}; it {serves}", missing.join(", "));
    Finding::new("models", name, CheckResult::Failed, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::load_str;
    use std::path::Path;

    fn settings(listen: &str, replica: &str) -> Settings {
        let text = format!(
            "version: 1\nauth: {{mode: off}}\nserver: {{listen: '{listen}', admin: '127.0.0.1:9'}}\n\
             pools: {{p: {{engine: vllm, models: [m], replicas: ['{replica}']}}}}\n"
        );
        let loaded = load_str(&text, "p", Path::new("/"), None).into_result();
        loaded.unwrap_or_else(|report| panic!("{report}")).settings
    }

    #[tokio::test]
    async fn a_taken_port_and_a_missing_engine_fail() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = settings(&taken.local_addr().unwrap().to_string(), "http://127.0.0.1:9");
        let findings = run_checks(&settings).await.unwrap();
        let failed: Vec<_> = findings.iter().filter(|one| one.result == CheckResult::Failed).collect();
        let of = |at: usize| (failed[at].check, &*failed[at].of);
        assert_eq!((of(0), of(1).0), (("ports", "server.listen"), "engines"), "{findings:?}");
        assert!(has_failed(&findings) && failed[1].detail.starts_with("no answer: "), "{findings:?}");
        assert!(
            text(&findings, OutputArg::Csv)
                .starts_with("check,of,result,detail\r\ndescriptors,this process,")
        );
    }
}
