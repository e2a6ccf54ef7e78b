//! Set-up of KEDA tests: a gateway with a scaler, and its clients.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use penstock::config::report::problem::Severity;
use penstock::sim::server::SimHandle;
use serde_json::Value;
use tokio::time::sleep;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::support::gateway::{Rig, TENANT, head, pool_lines, soon, tenant_lines};

use self::wire::external_scaler_client::ExternalScalerClient;

/// The client's side of the contract.
#[expect(unreachable_pub, reason = "generated")]
pub(crate) mod wire {
    include!("../../../../src/scaler/proto/generated/client.rs");
}

/// The one metric.
pub(crate) const METRIC: &str = "desired-replicas";

/// The pool `main`, as KEDA names it.
pub(crate) const MAIN: &[(&str, &str)] = &[("pool", "main")];

/// Demand that was seen before the start: half a second of a replica for a unit of work.
pub(crate) const SEEN: &str =
    r#"{"version": 1, "pools": [{"name": "main", "cost": 0.5, "start": 180.0}], "rows": []}"#;

/// What the gateway says of all gateways.
pub(crate) async fn fleet(rig: &Rig) -> Value {
    rig.admin(Method::GET, "/scale/v1/pools").await.json()["gateways"].clone()
}

/// Waits until the gateway hears all of so many, itself included, and somebody decides.
pub(crate) async fn sees(rig: &Rig, count: usize) {
    let seen = async {
        loop {
            let fleet = fleet(rig).await;
            if fleet["known"] == count && fleet["live"] == count && !fleet["decider"].is_null() {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    soon(&format!("{count} gateways"), seen).await;
}

/// A file with a scaler and the pool `main`, which has these replicas.
pub(crate) fn file(urls: &[String], scale: &str) -> String {
    let pool = "engine: vllm\nmodels: [sim]\nmax_seqs: 16\ncold_start: 3m";
    head("")
        + &format!("scale: {{listen: \"127.0.0.1:0\"{scale}}}\n")
        + "tenants:\n"
        + &tenant_lines(TENANT, "")
        + "pools:\n"
        + &pool_lines("main", pool, urls)
        + &pool_lines(
            "other",
            "engine: vllm\nmodels: [sim-b]\nmax_seqs: 4",
            &["http://127.0.0.1:9".to_owned()],
        )
        + "classes:\n  standard: {rank: 0, max_wait: 10m, cold_start_tolerance: 9m}\n"
}

pub(crate) async fn rig(engines: Vec<SimHandle>, urls: &[String], scale: &str) -> Rig {
    Rig::with_file(&file(urls, scale), engines, [TENANT]).await
}

/// Puts another file in force.
pub(crate) async fn apply(rig: &Rig, text: &str) {
    let before = rig.generation();
    rig.put(text);
    let report = soon("a reload", rig.gateway.reload_handle().reload("test".into())).await.expect("a report");
    let wrong = report.problems.iter().filter(|problem| problem.severity != Severity::Info);
    assert_eq!((wrong.count(), rig.generation()), (0, before + 1), "{:?}", report.problems);
}

/// One connection, as KEDA has one for all ScaledObjects.
#[derive(Clone)]
pub(crate) struct Keda {
    pub(crate) client: ExternalScalerClient<Channel>,
    pub(crate) channel: Channel,
}

impl Keda {
    pub(crate) async fn of(rig: &Rig) -> Self {
        Self::at(rig.gateway.scale_address().unwrap()).await
    }

    pub(crate) async fn at(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel = soon("a connection", endpoint.connect()).await.unwrap();
        Self::over(channel)
    }

    pub(crate) fn over(channel: Channel) -> Self {
        Self { client: ExternalScalerClient::new(channel.clone()), channel }
    }

    pub(crate) async fn is_active(&self, keys: &[(&str, &str)]) -> Result<bool, Status> {
        let call = self.client.clone().is_active(trigger(keys)).await;
        call.map(|answer| answer.into_inner().result)
    }

    pub(crate) async fn specs(&self, keys: &[(&str, &str)]) -> Result<Vec<wire::MetricSpec>, Status> {
        let call = self.client.clone().get_metric_spec(trigger(keys)).await;
        call.map(|answer| answer.into_inner().metric_specs)
    }

    pub(crate) async fn values(
        &self,
        keys: &[(&str, &str)],
        metric: &str,
    ) -> Result<Vec<wire::MetricValue>, Status> {
        let request = wire::GetMetricsRequest {
            scaled_object_ref: Some(trigger(keys)),
            metric_name: metric.to_owned(),
        };
        let call = self.client.clone().get_metrics(request).await;
        call.map(|answer| answer.into_inner().metric_values)
    }

    /// The one number of the pool `main`.
    pub(crate) async fn desired(&self) -> u64 {
        let values = self.values(&[("pool", "main")], METRIC).await.unwrap();
        assert_eq!(values.len(), 1, "{values:?}");
        u64::try_from(values[0].metric_value).unwrap()
    }

    /// Waits until the pool `main` is active, or is not.
    pub(crate) async fn becomes(&self, active: bool) {
        let reached = async {
            while self.is_active(&[("pool", "main")]).await.unwrap() != active {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon(&format!("active: {active}"), reached).await;
    }

    /// Waits until the pool `main` wants so many.
    pub(crate) async fn wants(&self, replicas: u64) {
        let reached = async {
            while self.desired().await != replicas {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon(&format!("{replicas} replicas"), reached).await;
    }
}

/// A trigger with such metadata, and what KEDA adds to it.
pub(crate) fn trigger(keys: &[(&str, &str)]) -> wire::ScaledObjectRef {
    let own = [("scalerAddress", "penstock:8082"), ("enableTLS", "false")];
    let all = keys.iter().chain(&own).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let scaler_metadata: HashMap<String, String> = all.collect();
    wire::ScaledObjectRef { name: "llama".to_owned(), namespace: "ml".to_owned(), scaler_metadata }
}
