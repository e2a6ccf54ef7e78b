//! `penstock keda`: the manifests by which KEDA scales a pool.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{bail, ensure};

use crate::cli::KedaArgs;
use crate::config::file::ConfigFile;
use crate::config::load;

/// Seconds between two polls. Each poll costs KEDA three calls, and urgent changes are pushed.
const POLL_SECONDS: u32 = 10;
/// Failed polls in a row after which KEDA uses the fallback.
const MAX_FAILED_POLLS: u32 = 3;
/// Period of the HPA's control loop, in seconds.
const HPA_SYNC: u32 = 15;
/// Seconds for the removal of one replica, and window in which the highest number stays in force.
const SCALE_DOWN_SECONDS: u32 = 60;
/// The scaler's port, when the file names none.
const DEFAULT_PORT: u16 = 8082;
/// Most characters of an object's name.
const MAX_NAME: usize = 63;

/// Facts of the manifests that are not arguments.
struct ManifestFacts {
    /// The scaler's port; absent when the file has none.
    port: Option<u16>,
    tls: bool,
    client_cert: bool,
    /// Absent = nothing is known of it.
    start: Option<ColdStart>,
}

/// Cold start of a pool.
#[derive(Clone, Copy)]
struct ColdStart {
    takes: Duration,
    /// Whether it was measured. Otherwise the configuration names it.
    measured: bool,
}

/// Manifests of a pool, one YAML document each. `measured` is the measured cold start of the pool.
///
/// # Errors
/// The configuration is broken or has no such pool, or the arguments contradict each other.
pub(in crate::app) fn manifests(args: &KedaArgs, measured: Option<Duration>) -> anyhow::Result<String> {
    let loaded = match load::load_file(&args.config, None).into_result() {
        Ok(loaded) => loaded,
        Err(report) => bail!("{report}"),
    };
    let file = &loaded.file;
    let Some(pool) = file.pools.get(&args.pool) else {
        let names: Vec<&str> = file.pools.names().collect();
        bail!("{} has no pool {:?}; it has: {}", args.config.display(), args.pool, names.join(", "));
    };
    ensure!(args.max >= 1 && args.max >= args.min, "--max must be at least 1 and at least --min");
    let measured = measured.map(|takes| ColdStart { takes, measured: true });
    let configured = pool.cold_start.map(|span| ColdStart { takes: span.0, measured: false });
    let facts = facts(file, measured.or(configured));
    let mut text = scaled_object(args, &facts);
    if facts.tls {
        text += &trigger_authentication(args, &facts);
    }
    Ok(text)
}

fn facts(file: &ConfigFile, start: Option<ColdStart>) -> ManifestFacts {
    let tls = file.scale.tls.as_ref();
    let client_cert = tls.is_some_and(|tls| tls.client_ca.is_some());
    let port = file.scale.listen.map(|address| address.0.port());
    ManifestFacts { port, tls: tls.is_some(), client_cert, start }
}

fn scaled_object(args: &KedaArgs, facts: &ManifestFacts) -> String {
    let KedaArgs { min, max, kind, .. } = args;
    let keep = args.keep_last.0.as_secs();
    let warm = (*min).max(1);
    let name = object_name(&args.pool);
    let target = args.target.as_ref().map_or_else(|| name.clone(), |target| quoted(target));
    let mut text = String::from("# Made by `penstock keda`.\n");
    if facts.port.is_none() {
        let _infallible = writeln!(
            text,
            "# The configuration has no scaler yet: it needs `scale: {{listen: \"0.0.0.0:{DEFAULT_PORT}\"}}`."
        );
    }
    text += "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\n";
    let _infallible = write!(
        text,
        "metadata:
  name: {name}
{}spec:
  scaleTargetRef:
    kind: {}
    name: {target}
  # What is urgent is pushed; a poll is three calls.
  pollingInterval: {POLL_SECONDS}
  # The last replicas go so long after the last work. KEDA takes all of them at
  # once, and only while nothing waits or runs.
  cooldownPeriod: {keep}
  # The same for a target that KEDA has never scaled: else it would go to zero at
  # the first quiet poll.
  initialCooldownPeriod: {keep}
  minReplicaCount: {min}
  maxReplicaCount: {max}
",
        namespace(args),
        quoted(kind),
    );
    let _infallible = write!(
        text,
        "  # When the gateway does not answer: never fewer than there are, and {warm} at
  # least. 0 would let KEDA scale to zero on an error.
  fallback:
    failureThreshold: {MAX_FAILED_POLLS}
    replicas: {warm}
    behavior: currentReplicasIfHigher
{}",
        behavior(*max, facts)
    );
    text + &trigger(args, facts)
}

fn behavior(max: u32, facts: &ManifestFacts) -> String {
    let start = match facts.start {
        Some(ColdStart { takes, measured: true }) => {
            format!("    # A start took {} s here as of late.\n", takes.as_secs())
        }
        Some(ColdStart { takes, measured: false }) => {
            format!("    # A start is expected to take {} s (pools.*.cold_start).\n", takes.as_secs())
        }
        None => String::new(),
    };
    format!(
        "  advanced:
    # The gateway says how many replicas there should be in all, and knows bursts
    # and start times; the HPA only carries it out.
{start}    horizontalPodAutoscalerConfig:
      behavior:
        scaleUp:
          stabilizationWindowSeconds: 0
          # Without it the HPA ignores a change of up to 10 %: from 10 replicas up
          # it would move in steps of 2 and more. Needs Kubernetes 1.35 and KEDA
          # 2.18; take both lines away for older ones.
          tolerance: 0
          policies:
            # All that are missing, at once: the usual limit doubles each {HPA_SYNC} s.
            - type: Pods
              value: {max}
              periodSeconds: {HPA_SYNC}
        scaleDown:
          # Short: the gateway holds its number itself, by the measured start.
          stabilizationWindowSeconds: {SCALE_DOWN_SECONDS}
          tolerance: 0
          policies:
            - type: Pods
              value: 1
              periodSeconds: {SCALE_DOWN_SECONDS}
"
    )
}

fn trigger(args: &KedaArgs, facts: &ManifestFacts) -> String {
    let KedaArgs { min, max, .. } = args;
    let address = quoted(&format!("{}:{}", args.service, facts.port.unwrap_or(DEFAULT_PORT)));
    let mut text = format!(
        "  triggers:
    # One trigger for each pool: the HPA takes the largest of several and never
    # adds them up, so tenants and classes are added up in the gateway. Do not set
    # useCachedMetrics: the HPA would read numbers that are a poll old.
    - type: external-push
      metadata:
        scalerAddress: {address}
        pool: {}
        # The bounds above, so that the gateway's number is one that can be had.
        minReplicas: \"{min}\"
        maxReplicas: \"{max}\"
",
        quoted(&args.pool)
    );
    if facts.tls {
        let name = object_name(&args.pool);
        let _infallible = write!(
            text,
            "        enableTLS: \"true\"
      authenticationRef:
        name: {name}
"
        );
    }
    text
}

fn trigger_authentication(args: &KedaArgs, facts: &ManifestFacts) -> String {
    let secret = quoted(&args.secret);
    let mut text = format!(
        "---
# The authority of the gateway's certificate{}, from a Secret of type kubernetes.io/tls.
apiVersion: keda.sh/v1alpha1
kind: TriggerAuthentication
metadata:
  name: {}
{}spec:
  secretTargetRef:
",
        if facts.client_cert { ", and the certificate that KEDA shows" } else { "" },
        object_name(&args.pool),
        namespace(args),
    );
    let mut parameters = vec![("caCert", "ca.crt")];
    if facts.client_cert {
        parameters.extend([("tlsClientCert", "tls.crt"), ("tlsClientKey", "tls.key")]);
    }
    for (parameter, key) in parameters {
        let _infallible =
            write!(text, "    - parameter: {parameter}\n      name: {secret}\n      key: {key}\n");
    }
    text
}

fn namespace(args: &KedaArgs) -> String {
    args.namespace.as_ref().map_or_else(String::new, |name| format!("  namespace: {}\n", quoted(name)))
}

/// The pool's name as the name of a Kubernetes object.
fn object_name(pool: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = pool.chars().map(plain).take(MAX_NAME).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "pool".to_owned() } else { name.to_owned() }
}

/// A text as a YAML string. JSON strings are valid YAML.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let word = matches!(&*text.to_ascii_lowercase(), "true" | "false" | "null" | "yes" | "no" | "on" | "off");
    if starts && !word && text.chars().all(plain) {
        return text.to_owned();
    }
    serde_json::Value::from(text).to_string()
}
