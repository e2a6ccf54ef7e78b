//! Check of `telemetry`.

use std::collections::BTreeMap;

use http::HeaderName;
use tracing_subscriber::EnvFilter;

use crate::config::secret::SecretReader;
use crate::config::sections::identity::tls;
use crate::config::sections::secret_ref;
use crate::config::sections::server::{OtlpSection, TelemetrySection};
use crate::config::settings::{OTEL_VARIABLES, OtlpSettings, TelemetrySettings};
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::{numbers, url};

/// Most headers of a call to the collector.
const MAX_HEADERS: usize = 32;

pub(super) fn validate(
    telemetry: &TelemetrySection,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> TelemetrySettings {
    let section = FieldPath::top("telemetry");
    let level = &telemetry.log.level;
    if level.trim().is_empty() || EnvFilter::builder().parse(level).is_err() {
        let hint = "write error, warn, info, debug, trace or a filter such as info,penstock::proxy=debug";
        findings.error(&section.key("log").key("level"), format!("{level:?} is not a log level"), hint);
    }
    TelemetrySettings {
        log_format: telemetry.log.format,
        log_level: level.clone(),
        client_address: telemetry.log.client_address,
        refusals_per_second: telemetry.refusals_per_second,
        otlp: otlp_settings(&telemetry.otlp, &section.key("otlp"), secrets, findings),
    }
}

fn otlp_settings(
    otlp: &OtlpSection,
    field: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> OtlpSettings {
    if let Some((message, hint)) = otlp.endpoint.as_deref().and_then(|text| url::any(text).err()) {
        findings.error(&field.key("endpoint"), message, hint);
    }
    if let Some(sample) = otlp.sample {
        numbers::share(sample, &field.key("sample"), findings);
    }
    let headers = field.key("headers");
    if otlp.headers.len() > MAX_HEADERS {
        findings.error(&headers, format!("has more than {MAX_HEADERS} entries"), "take some away");
    }
    let mut values = BTreeMap::new();
    for (name, value) in &otlp.headers {
        let own = headers.key(name);
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            findings.error(&own, format!("{name:?} is not the name of a header"), "write it like x-api-key");
            continue;
        }
        let Some(secret) = secret_ref::read(value, &own, secrets, findings) else { continue };
        values.insert(name.to_ascii_lowercase(), secret);
    }
    OtlpSettings {
        endpoint: otlp.endpoint.clone(),
        protocol: otlp.protocol,
        headers: values,
        ca: otlp.ca.as_deref().and_then(|path| {
            let pem = secrets.bytes(path).and_then(|pem| tls::authorities(&pem, path).map(|_| pem));
            pem.map_err(|message| findings.error(&field.key("ca"), message, "name a PEM file")).ok()
        }),
        sample: otlp.sample,
        variables: OTEL_VARIABLES
            .into_iter()
            .filter_map(|name| secrets.variable(name).map(|value| (name, value)))
            .collect(),
    }
}
