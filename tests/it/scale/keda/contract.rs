//! Contract of the external scaler: the answer and the errors of each call.

use std::sync::Arc;

use hyper_util::rt::TokioIo;
use penstock::sim::server::{SimHandle, SimOptions, start_fleet};
use tonic::Code;
use tonic::transport::Endpoint;
use tower_service::Service;

use super::setup::{Keda, METRIC, apply, file, rig, trigger, wire};
use crate::support::certificates::{Authority, Leaf, connect, uri};
use crate::support::gateway::{Rig, chat, soon, until};

const MAIN: &[(&str, &str)] = &[("pool", "main")];

#[tokio::test]
async fn a_trigger_has_one_metric_with_the_target_one_and_one_value() {
    let engines = start_fleet(vec![SimOptions::default()]).await.unwrap();
    let urls: Vec<String> = engines.iter().map(SimHandle::url).collect();
    let rig = rig(engines, &urls, "").await;
    let keda = Keda::of(&rig).await;
    let spec = wire::MetricSpec { metric_name: METRIC.into(), target_size: 1, target_size_float: 1.0 };
    for keys in [MAIN, &[("model", "sim")]] {
        assert_eq!(keda.specs(keys).await.unwrap(), std::slice::from_ref(&spec));
    }
    assert!(!keda.is_active(MAIN).await.unwrap());
    let value = |value: u32| wire::MetricValue {
        metric_name: METRIC.into(),
        metric_value: value.into(),
        metric_value_float: value.into(),
    };
    // What is there after a start is kept until a window was seen.
    assert_eq!(keda.values(MAIN, METRIC).await.unwrap(), [value(1)]);
    let bounded = [("pool", "main"), ("minReplicas", "2"), ("maxReplicas", "5")];
    assert_eq!(keda.values(&bounded, METRIC).await.unwrap(), [value(2)]);
    assert_eq!(rig.metric("penstock_scaler_clamped_total").await, 1.0);
    assert!(rig.metric("penstock_scaler_calls_total").await >= 5.0);
    // Raw numbers have names and targets of their own.
    for (mode, name) in [("queue", "queue-depth"), ("tokens", "queued-tokens"), ("inflight", "in-flight")] {
        let keys = [("pool", "main"), ("mode", mode), ("target", "2.5")];
        let spec = wire::MetricSpec { metric_name: name.into(), target_size: 2, target_size_float: 2.5 };
        assert_eq!(keda.specs(&keys).await.unwrap(), [spec]);
        assert_eq!(keda.values(&keys, name).await.unwrap()[0].metric_value, 0);
    }
    let small = [("pool", "main"), ("mode", "queue"), ("target", "0.5")];
    assert_eq!(keda.specs(&small).await.unwrap()[0].target_size, 1, "a target of 0 makes no HPA");
}

#[tokio::test]
async fn what_is_not_there_and_what_means_nothing_is_an_error_and_never_zero() {
    let rig = rig(Vec::new(), &[], "").await;
    let keda = Keda::of(&rig).await;
    let wrong: [(&[(&str, &str)], Code); 5] = [
        (&[("pool", "gone")], Code::NotFound),
        (&[("model", "gone")], Code::NotFound),
        (&[], Code::InvalidArgument),
        (&[("pool", "main"), ("keepLast", "soon")], Code::InvalidArgument),
        (&[("pool", "main"), ("mode", "queue")], Code::InvalidArgument),
    ];
    for (keys, code) in wrong {
        let codes = [
            keda.is_active(keys).await.unwrap_err().code(),
            keda.specs(keys).await.unwrap_err().code(),
            keda.values(keys, METRIC).await.unwrap_err().code(),
            keda.client.clone().stream_is_active(trigger(keys)).await.unwrap_err().code(),
            keda.client.clone().stream_metric_spec(trigger(keys)).await.unwrap_err().code(),
        ];
        assert_eq!(codes, [code; 5], "{keys:?}");
    }
    assert_eq!(keda.values(MAIN, "s0-other").await.unwrap_err().code(), Code::InvalidArgument);
    let bare = wire::GetMetricsRequest { scaled_object_ref: None, metric_name: METRIC.into() };
    let refused = keda.client.clone().get_metrics(bare).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    // A key that is misspelt is said once.
    for _ in 0..3 {
        keda.specs(&[("pool", "main"), ("keeplast", "300")]).await.unwrap();
    }
    let log = rig.telemetry.captured_log();
    assert_eq!(log.matches("has a key that means nothing here").count(), 1, "{log}");
}

#[tokio::test]
async fn what_is_stale_is_not_told_but_the_metric_is() {
    // So short that nothing that is known is young enough.
    let rig = rig(Vec::new(), &[], ", stale_after: 1ms").await;
    let keda = Keda::of(&rig).await;
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let mut codes = Vec::new();
    for _ in 0..20 {
        codes.extend(keda.values(MAIN, METRIC).await.err().map(|status| status.code()));
        codes.extend(keda.is_active(MAIN).await.err().map(|status| status.code()));
        assert_eq!(keda.specs(MAIN).await.unwrap().len(), 1);
    }
    assert!(codes.contains(&Code::Unavailable), "{codes:?}");
    assert!(codes.iter().all(|code| *code == Code::Unavailable), "{codes:?}");
    apply(&rig, &file(&[], ", stale_after: 1m")).await;
    assert_eq!(keda.desired().await, 0, "the bound takes effect without a restart");
}

#[tokio::test]
async fn health_and_reflection_are_those_of_grpc() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

    let rig = rig(Vec::new(), &[], "").await;
    let keda = Keda::of(&rig).await;
    let mut health = HealthClient::new(keda.channel.clone());
    for service in ["", "externalscaler.ExternalScaler"] {
        let asked = health.check(HealthCheckRequest { service: service.into() }).await.unwrap();
        assert_eq!(asked.into_inner().status, 1, "{service:?} is serving");
    }
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(keda.channel.clone());
    let asked = reflection.server_reflection_info(futures_util::stream::iter([ask])).await.unwrap();
    let answer: ServerReflectionResponse = asked.into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else { panic!() };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    assert!(names.contains(&"externalscaler.ExternalScaler".to_owned()), "{names:?}");
}

/// A client with a certificate, or without one.
async fn over_tls(rig: &Rig, ca: &Authority, own: Option<&Leaf>) -> Result<Keda, tonic::transport::Error> {
    let (address, config) = (rig.gateway.scale_address().unwrap(), ca.client(own, &[b"h2"]));
    let dial = Dial(Arc::new(move || {
        let config = Arc::clone(&config);
        Box::pin(async move { connect(address, &config).await.map(TokioIo::new) })
    }));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    soon("a connection", endpoint.connect_with_connector(dial)).await.map(Keda::over)
}

type Io = TokioIo<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>;
type Dialling = std::pin::Pin<Box<dyn Future<Output = std::io::Result<Io>> + Send>>;

/// Connects over TLS whatever the address says.
#[derive(Clone)]
struct Dial(Arc<dyn Fn() -> Dialling + Send + Sync>);

impl Service<http::Uri> for Dial {
    type Response = Io;
    type Error = std::io::Error;
    type Future = Dialling;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        (self.0)()
    }
}

#[tokio::test]
async fn a_certificate_of_the_right_name_is_asked_for() {
    let ca = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    ca.server().put(folder.path(), "scale");
    crate::support::certificates::put(&folder.path().join("ca.crt"), &ca.pem());
    let tls = ", tls: {cert: scale.crt, key: scale.key, client_ca: ca.crt, require_client_cert: true}, \
               client_certs: [{uri: 'spiffe://test/keda'}]";
    let path = folder.path().join("penstock.yaml");
    std::fs::write(&path, file(&[], tls)).unwrap();
    let rig = Rig::at(folder, path, Vec::new(), []).await;

    let keda = ca.leaf(vec![uri("spiffe://test/keda")]);
    let client = over_tls(&rig, &ca, Some(&keda)).await.unwrap();
    assert_eq!(client.desired().await, 0);
    let other = ca.leaf(vec![uri("spiffe://test/other")]);
    for own in [None, Some(&other)] {
        let answer = match over_tls(&rig, &ca, own).await {
            Ok(client) => client.specs(MAIN).await.map(drop).map_err(drop),
            Err(_) => Err(()),
        };
        assert_eq!(answer, Err(()));
    }
    until("it is told", || rig.telemetry.captured_log().contains("\"reason\":\"not_allowed\"")).await;
    // A new certificate counts for the next connection, and cuts nobody.
    let next = Authority::new();
    next.server().put(rig.folder.path(), "scale");
    let loaded = || rig.telemetry.captured_log().matches("\"listener\":\"scale\",\"ends\"").count();
    until("it is loaded", || loaded() == 2).await;
    assert!(over_tls(&rig, &ca, Some(&keda)).await.is_err(), "the old authority is over");
    assert_eq!(client.desired().await, 0, "the open connection goes on");
}

#[tokio::test]
async fn a_pool_that_runs_something_is_active_and_wants_a_replica() {
    let engines = start_fleet(vec![SimOptions::default()]).await.unwrap();
    let urls: Vec<String> = engines.iter().map(SimHandle::url).collect();
    let rig = rig(engines, &urls, "").await;
    let keda = Keda::of(&rig).await;
    rig.engine(0).add(penstock::sim::faults::FaultKind::Slow { factor: 50.0 }).unwrap();
    let stream = tokio::spawn(
        crate::support::client::Call::post("/v1/chat/completions", &chat(1_000, true))
            .key(rig.key(crate::support::gateway::TENANT))
            .send(rig.address()),
    );
    until("it runs", || rig.snapshot().replicas[0].running == 1).await;
    keda.becomes(true).await;
    assert_eq!(keda.desired().await, 1);
    let running = keda.values(&[("pool", "main"), ("mode", "inflight"), ("target", "8")], "in-flight").await;
    assert_eq!(running.unwrap()[0].metric_value_float, 1.0);
    rig.engine(0).clear();
    assert!(soon("the stream", stream).await.unwrap().is_done());
    keda.becomes(false).await;
    assert_eq!(keda.desired().await, 1, "the gateway has only just begun to watch");
    assert!(
        keda.is_active(&[("pool", "main"), ("keepLast", "300")]).await.unwrap(),
        "its last work is not long ago"
    );
}
