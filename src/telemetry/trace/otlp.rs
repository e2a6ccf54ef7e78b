//! OTLP export: where spans go, from the configuration and the `OTEL_*` variables, and the exporter
//! that sends them.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::uri::Scheme;
use http::{Request, Response, Uri};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig};
use opentelemetry_sdk::trace::Sampler;
use reqwest::redirect::Policy;
use tokio::runtime::Handle;
use tonic::metadata::{MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig};

use crate::config::settings::{OtlpProtocol, OtlpSettings};
use crate::telemetry::error::TelemetryError;

/// Timeout for sending one batch, unless a variable says another.
const USUAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest timeout that is obeyed.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// Share of the requests that start a trace, unless the file or a variable says another.
const USUAL_SAMPLE: f64 = 0.1;
/// Most bytes of a collector's answer that are read.
const MAX_ANSWER: usize = 64 << 10;

/// Name of the service in traces, unless a variable says another.
pub(super) const SERVICE: &str = "penstock";

/// Reads one of the variables that are set.
type ReadEnv<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where spans go, and which requests are traced.
pub(super) struct OtlpTarget {
    endpoint: String,
    protocol: OtlpProtocol,
    headers: HashMap<String, String>,
    ca: Option<Vec<u8>>,
    timeout: Duration,
    pub(super) sampler: Sampler,
    /// `service.name`; absent = a variable names it.
    pub(super) service: Option<&'static str>,
}

impl OtlpTarget {
    /// The target of the file, and of the variables where the file says nothing. `None` = there is
    /// none, or the variables switch traces off.
    ///
    /// # Errors
    /// The key or variable that cannot be used.
    pub(super) fn resolve(settings: &OtlpSettings) -> Result<Option<Self>, TelemetryError> {
        let env: ReadEnv<'_> = &|name| settings.variables.get(name).cloned();
        let is = |name: &str, value: &str| env(name).is_some_and(|text| text.eq_ignore_ascii_case(value));
        if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        let protocol = match settings.protocol {
            Some(protocol) => protocol,
            None => protocol(env)?,
        };
        let Some((endpoint, from)) = endpoint(settings, protocol, env) else { return Ok(None) };
        check_endpoint(&endpoint).map_err(|problem| TelemetryError::Endpoint(from, problem))?;
        let ca = match (&settings.ca, certificate(env)) {
            (Some(pem), _) => Some(pem.clone()),
            (None, Some((name, path))) => Some(
                std::fs::read(&path)
                    .map_err(|problem| TelemetryError::variable(name, format!("{path:?}: {problem}")))?,
            ),
            (None, None) => None,
        };
        let headers = settings.headers.iter().map(|(name, value)| (name.clone(), value.expose().to_owned()));
        Ok(Some(Self {
            endpoint,
            protocol,
            headers: headers.collect(),
            ca,
            timeout: timeout(env)?,
            sampler: match settings.sample {
                Some(share) => parent_based(Sampler::TraceIdRatioBased(share)),
                None => sampler(env)?,
            },
            service: (!names_service(env)).then_some(SERVICE),
        }))
    }

    /// Builds the exporter. The current runtime carries its connections.
    ///
    /// # Errors
    /// The file of certificates or a header cannot be used, or no runtime is running.
    pub(super) fn exporter(self) -> Result<SpanExporter, TelemetryError> {
        let runtime = Handle::try_current().map_err(|_| TelemetryError::NoRuntime)?;
        // An error here only means that a provider is already installed.
        let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let built = match self.protocol {
            OtlpProtocol::Grpc => {
                let builder = SpanExporter::builder()
                    .with_tonic()
                    .with_endpoint(&self.endpoint)
                    .with_timeout(self.timeout)
                    .with_metadata(self.metadata()?);
                if self.endpoint.starts_with("https:") {
                    builder.with_tls_config(self.grpc_tls()).build()
                } else {
                    builder.build()
                }
            }
            OtlpProtocol::HttpProtobuf => {
                let client = HttpSender { client: self.http_client()?, runtime, timeout: self.timeout };
                SpanExporter::builder()
                    .with_http()
                    .with_endpoint(&self.endpoint)
                    .with_timeout(self.timeout)
                    .with_headers(self.headers)
                    .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                    .with_http_client(client)
                    .build()
            }
        };
        built.map_err(|problem| TelemetryError::Exporter(problem.to_string()))
    }

    fn metadata(&self) -> Result<MetadataMap, TelemetryError> {
        let mut map = MetadataMap::with_capacity(self.headers.len());
        for (name, value) in &self.headers {
            let problem = || TelemetryError::Exporter(format!("the header {name} cannot be sent"));
            let key = MetadataKey::from_bytes(name.as_bytes()).map_err(|_| problem())?;
            map.insert(key, MetadataValue::try_from(value).map_err(|_| problem())?);
        }
        Ok(map)
    }

    fn grpc_tls(&self) -> ClientTlsConfig {
        match &self.ca {
            Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
            None => ClientTlsConfig::new().with_enabled_roots(),
        }
    }

    fn http_client(&self) -> Result<reqwest::Client, TelemetryError> {
        let mut builder =
            reqwest::Client::builder().no_proxy().redirect(Policy::none()).timeout(self.timeout);
        if let Some(pem) = &self.ca {
            let certificates = reqwest::Certificate::from_pem_bundle(pem)
                .map_err(|problem| TelemetryError::Exporter(problem.to_string()))?;
            builder = builder.tls_certs_only(certificates);
        } else if !self.endpoint.starts_with("https:") {
            builder = builder.tls_certs_only([]);
        }
        builder.build().map_err(|problem| TelemetryError::Exporter(problem.to_string()))
    }
}

impl fmt::Debug for OtlpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut headers: Vec<_> = self.headers.keys().collect();
        headers.sort();
        f.debug_struct("OtlpTarget")
            .field("endpoint", &self.endpoint)
            .field("protocol", &self.protocol)
            .field("headers", &headers)
            .field("timeout", &self.timeout)
            .field("sampler", &self.sampler)
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

/// The first of the variables that is set: that of traces, then that of all signals.
fn of_traces(env: ReadEnv<'_>, end: &'static str) -> Option<(&'static str, String)> {
    let names = match end {
        "PROTOCOL" => ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"],
        "TIMEOUT" => ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"],
        _ => ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"],
    };
    names.into_iter().find_map(|name| Some((name, env(name)?)))
}

fn certificate(env: ReadEnv<'_>) -> Option<(&'static str, String)> {
    of_traces(env, "CERTIFICATE")
}

fn protocol(env: ReadEnv<'_>) -> Result<OtlpProtocol, TelemetryError> {
    match of_traces(env, "PROTOCOL") {
        None => Ok(OtlpProtocol::Grpc),
        Some((_, text)) if text == "grpc" => Ok(OtlpProtocol::Grpc),
        Some((_, text)) if text == "http/protobuf" => Ok(OtlpProtocol::HttpProtobuf),
        Some((name, text)) => {
            Err(TelemetryError::variable(name, format!("{text:?} is neither grpc nor http/protobuf")))
        }
    }
}

/// The collector's URL, and the key or variable that names it. The path of the call is added to a
/// URL of the file without a path and to the variable of all signals, for HTTP; the variable of
/// traces is taken as it is.
fn endpoint(
    settings: &OtlpSettings,
    protocol: OtlpProtocol,
    env: ReadEnv<'_>,
) -> Option<(String, &'static str)> {
    const OF_TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    const OF_ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let is_http = protocol == OtlpProtocol::HttpProtobuf;
    let with_path = |base: &str| format!("{}/v1/traces", base.trim_end_matches('/'));
    if let Some(text) = &settings.endpoint {
        let bare = text.parse::<Uri>().is_ok_and(|uri| matches!(uri.path(), "" | "/"));
        let whole = if is_http && bare { with_path(text) } else { text.clone() };
        return Some((whole, "telemetry.otlp.endpoint"));
    }
    if let Some(text) = env(OF_TRACES) {
        return Some((text, OF_TRACES));
    }
    let text = env(OF_ALL)?;
    Some((if is_http { with_path(&text) } else { text }, OF_ALL))
}

fn check_endpoint(endpoint: &str) -> Result<(), String> {
    match endpoint.parse::<Uri>() {
        Err(problem) => Err(problem.to_string()),
        Ok(url) if ![Some(&Scheme::HTTP), Some(&Scheme::HTTPS)].contains(&url.scheme()) => {
            Err("it is neither http nor https".to_owned())
        }
        Ok(_) => Ok(()),
    }
}

fn timeout(env: ReadEnv<'_>) -> Result<Duration, TelemetryError> {
    let Some((name, text)) = of_traces(env, "TIMEOUT") else { return Ok(USUAL_TIMEOUT) };
    match text.trim().parse() {
        Ok(millis) if millis > 0 => Ok(Duration::from_millis(millis).min(MAX_TIMEOUT)),
        _ => Err(TelemetryError::variable(name, format!("{text:?} is not a number of milliseconds"))),
    }
}

/// The sampler that the variables name, else the usual one.
fn sampler(env: ReadEnv<'_>) -> Result<Sampler, TelemetryError> {
    const NAME: &str = "OTEL_TRACES_SAMPLER";
    const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
    let ratio = |usual: f64| match env(ARGUMENT) {
        None => Ok(Sampler::TraceIdRatioBased(usual)),
        Some(text) => match text.trim().parse() {
            Ok(share) if (0.0..=1.0).contains(&share) => Ok(Sampler::TraceIdRatioBased(share)),
            _ => Err(TelemetryError::variable(ARGUMENT, format!("{text:?} is not a share from 0 to 1"))),
        },
    };
    match env(NAME).as_deref() {
        None => Ok(parent_based(Sampler::TraceIdRatioBased(USUAL_SAMPLE))),
        Some("always_on") => Ok(Sampler::AlwaysOn),
        Some("always_off") => Ok(Sampler::AlwaysOff),
        Some("traceidratio") => ratio(1.0),
        Some("parentbased_always_on") => Ok(parent_based(Sampler::AlwaysOn)),
        Some("parentbased_always_off") => Ok(parent_based(Sampler::AlwaysOff)),
        Some("parentbased_traceidratio") => ratio(1.0).map(parent_based),
        Some(other) => {
            Err(TelemetryError::variable(NAME, format!("{other:?} is not a sampler of this program")))
        }
    }
}

fn parent_based(root: Sampler) -> Sampler {
    Sampler::ParentBased(Box::new(root))
}

/// Whether a variable names the service; the SDK takes it from there.
fn names_service(env: ReadEnv<'_>) -> bool {
    let attributes = env("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let named = |pair: &str| pair.split_once('=').is_some_and(|(key, _)| key.trim() == "service.name");
    env("OTEL_SERVICE_NAME").is_some() || attributes.split(',').any(named)
}

/// Client of the exporter for HTTP. The exporter has a thread of its own, so calls run on the
/// runtime that the client was made in.
struct HttpSender {
    client: reqwest::Client,
    runtime: Handle,
    timeout: Duration,
}

impl fmt::Debug for HttpSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpSender")
    }
}

impl HttpClient for HttpSender {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let (client, timeout) = (self.client.clone(), self.timeout);
        let sending = self.runtime.spawn(async move {
            tokio::time::timeout(timeout, send(&client, request)).await.map_err(HttpError::from)?
        });
        Box::pin(async move { sending.await.map_err(HttpError::from)? })
    }
}

async fn send(client: &reqwest::Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let mut answer = client.execute(reqwest::Request::try_from(request)?).await?;
    let mut body = BytesMut::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(format!("the collector's answer is longer than {MAX_ANSWER} bytes").into());
        }
        body.extend_from_slice(&chunk);
    }
    let mut response = Response::new(body.freeze());
    *response.status_mut() = answer.status();
    *response.headers_mut() = std::mem::take(answer.headers_mut());
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Secret;

    fn resolve(
        settings: &OtlpSettings,
        variables: &[(&'static str, &str)],
    ) -> Result<Option<OtlpTarget>, String> {
        let variables = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let settings = OtlpSettings { variables, ..settings.clone() };
        OtlpTarget::resolve(&settings).map_err(|problem| problem.to_string())
    }

    fn target(settings: &OtlpSettings, variables: &[(&'static str, &str)]) -> OtlpTarget {
        resolve(settings, variables).unwrap().expect("there is a target")
    }

    fn at(endpoint: &str) -> OtlpSettings {
        OtlpSettings { endpoint: Some(endpoint.to_owned()), ..OtlpSettings::default() }
    }

    #[test]
    fn the_file_goes_before_the_variables() {
        let file = OtlpSettings {
            protocol: Some(OtlpProtocol::Grpc),
            sample: Some(0.5),
            headers: [("x-key".to_owned(), Secret::new("hidden"))].into(),
            ..at("https://file:4317")
        };
        let found = target(
            &file,
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://variable:4318"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
                ("OTEL_TRACES_SAMPLER", "always_on"),
            ],
        );
        assert_eq!((&*found.endpoint, found.protocol), ("https://file:4317", OtlpProtocol::Grpc));
        assert_eq!(format!("{:?}", found.sampler), "ParentBased(TraceIdRatioBased(0.5))");
        assert_eq!((found.headers["x-key"].as_str(), found.service), ("hidden", Some("penstock")));
        assert!(!format!("{found:?}").contains("hidden"));
    }

    #[test]
    fn without_an_endpoint_and_when_switched_off_there_are_no_traces() {
        assert!(resolve(&OtlpSettings::default(), &[]).unwrap().is_none());
        for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert!(resolve(&at("http://collector:4317"), &[off]).unwrap().is_none());
        }
    }

    #[test]
    fn the_path_is_added_where_the_specification_says_so() {
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        let endpoint = |settings: &OtlpSettings, more: &[(&'static str, &str)]| {
            let variables: Vec<_> = more.iter().copied().chain([http]).collect();
            target(settings, &variables).endpoint
        };
        let none = OtlpSettings::default();
        assert_eq!(
            endpoint(&none, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/base/")]),
            "http://c:4318/base/v1/traces"
        );
        assert_eq!(endpoint(&none, &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/x")]), "http://c/x");
        assert_eq!(endpoint(&at("https://c:4318"), &[]), "https://c:4318/v1/traces");
        assert_eq!(endpoint(&at("https://c/otel/v1/traces"), &[]), "https://c/otel/v1/traces");
    }

    #[test]
    fn variables_of_traces_go_before_those_of_all_signals() {
        let found = target(
            &OtlpSettings::default(),
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4317"),
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4317"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
                ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2500"),
                ("OTEL_TRACES_SAMPLER", "traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
                ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=edge"),
            ],
        );
        assert_eq!((&*found.endpoint, found.timeout), ("http://traces:4317", Duration::from_millis(2500)));
        assert_eq!(format!("{:?}", found.sampler), "TraceIdRatioBased(0.25)");
        assert_eq!(found.service, None);
    }

    #[test]
    fn a_wrong_variable_is_named() {
        let collector = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
        for wrong in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "5s"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file.pem"),
        ] {
            let problem = resolve(&OtlpSettings::default(), &[collector, wrong]).unwrap_err();
            assert!(problem.starts_with(wrong.0), "{problem}");
        }
        let ratio = [collector, ("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")];
        let problem = resolve(&OtlpSettings::default(), &ratio).unwrap_err();
        assert!(problem.starts_with("OTEL_TRACES_SAMPLER_ARG"), "{problem}");
    }
}
