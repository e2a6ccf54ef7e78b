//! EndpointSlices, and the list of endpoints made from them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::discover::{Endpoint, EndpointPort, KubernetesSource};
use crate::fleet::discovery::kubernetes::api::KubeError;
use crate::fleet::discovery::kubernetes::nodes::NodesOnNotice;
use crate::fleet::discovery::kubernetes::object::{KubeObject, ObjectMetadata};

/// Fields of a `discovery.k8s.io/v1` EndpointSlice that are used. Optional fields may also be
/// `null`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct EndpointSlice {
    metadata: ObjectMetadata,
    #[serde(default)]
    endpoints: Option<Vec<SliceEndpoint>>,
    #[serde(default)]
    ports: Option<Vec<SlicePort>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SliceEndpoint {
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Option<EndpointConditions>,
    #[serde(default)]
    zone: Option<String>,
    #[serde(default)]
    node_name: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct EndpointConditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
struct SlicePort {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    port: Option<u16>,
    #[serde(default)]
    protocol: Option<String>,
}

/// The slices of one Service, by name.
#[derive(Debug, Default)]
pub(super) struct ServiceSlices(BTreeMap<String, EndpointSlice>);

impl KubeObject for EndpointSlice {
    const NO_LIST: &'static str = "the list is no EndpointSliceList";

    fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }
}

impl EndpointSlice {
    fn port(&self, wanted: Option<&EndpointPort>) -> Option<u16> {
        let ports = self.ports.as_deref().unwrap_or_default().iter();
        let mut tcp = ports.filter(|port| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"));
        match wanted {
            Some(EndpointPort::Number(number)) => Some(*number),
            Some(EndpointPort::Name(name)) => tcp.find(|port| port.name.as_ref() == Some(name))?.port,
            None => match (tcp.next(), tcp.next()) {
                (Some(only), None) => only.port,
                _ => None,
            },
        }
    }
}

impl ServiceSlices {
    pub(super) fn put(&mut self, slice: EndpointSlice) {
        self.0.insert(slice.metadata.name.clone(), slice);
    }

    pub(super) fn remove(&mut self, slice: &EndpointSlice) {
        self.0.remove(&slice.metadata.name);
    }

    /// Endpoints that take work, and endpoints that drain.
    pub(super) fn endpoints(
        &self,
        rules: &KubernetesSource,
        doomed: &NodesOnNotice,
    ) -> Result<Vec<Endpoint>, KubeError> {
        let mut all = Vec::new();
        for slice in self.0.values() {
            let endpoints = slice.endpoints.as_deref().unwrap_or_default();
            if endpoints.is_empty() {
                continue;
            }
            let Some(port) = slice.port(rules.port.as_ref()) else { return Err(no_port(rules)) };
            all.extend(endpoints.iter().filter_map(|endpoint| endpoint.resolve(port, rules, doomed)));
        }
        Ok(all)
    }
}

impl SliceEndpoint {
    /// The endpoint, if it is ready or terminating. An endpoint without a ready condition is ready.
    /// Of several addresses only the first has a meaning.
    fn resolve(&self, port: u16, rules: &KubernetesSource, doomed: &NodesOnNotice) -> Option<Endpoint> {
        let conditions = self.conditions.unwrap_or_default();
        let terminating = conditions.terminating.unwrap_or(false);
        if !terminating && !conditions.ready.unwrap_or(true) {
            return None;
        }
        let spot_notice = self.node_name.as_ref().is_some_and(|name| doomed.contains(name));
        let draining = terminating || spot_notice;
        let endpoint = rules.form.endpoint(self.addresses.first()?, port)?;
        Some(Endpoint { zone: self.zone.as_deref().map(Into::into), draining, spot_notice, ..endpoint })
    }
}

fn no_port(rules: &KubernetesSource) -> KubeError {
    KubeError::NoPort(match &rules.port {
        Some(EndpointPort::Name(name)) => format!("the Service has no TCP port called {name:?}"),
        _ => "the Service has not exactly one TCP port; write which one is the engines' as `port`".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fleet::discovery::kubernetes::tests::rules;

    fn hosts(slices: &[Value], port: Option<EndpointPort>) -> Result<Vec<String>, KubeError> {
        let mut all = ServiceSlices::default();
        for slice in slices {
            all.put(serde_json::from_value(slice.clone()).unwrap());
        }
        let found = all.endpoints(
            &KubernetesSource { port, ..rules("http://127.0.0.1:1") },
            &NodesOnNotice::default(),
        )?;
        let text = |endpoint: Endpoint| {
            let going = if endpoint.draining { "-" } else { "" };
            let zone = endpoint.zone.map(|zone| format!(" in {zone}")).unwrap_or_default();
            format!("{going}{}{zone}", endpoint.url.authority().unwrap())
        };
        Ok(found.into_iter().map(text).collect())
    }

    fn slice(name: &str, endpoints: &Value, ports: &Value) -> Value {
        json!({"metadata": {"name": name, "resourceVersion": "1"}, "addressType": "IPv4",
               "endpoints": endpoints, "ports": ports})
    }

    #[test]
    fn conditions_say_who_gets_work() {
        let endpoints = json!([
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false}, "zone": "a"},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            {"addresses": ["10.0.0.4"], "conditions": {"ready": false, "serving": false, "terminating": true}},
            {"addresses": ["10.0.0.5", "10.9.9.9"], "conditions": {}},
            {"addresses": ["10.0.0.6"], "conditions": null, "zone": null},
            {"addresses": []},
            {"addresses": ["fd00::7"]},
            {"addresses": ["a pod"]},
        ]);
        let ports = json!([{"name": "http", "port": 8000, "protocol": "TCP"}]);
        assert_eq!(
            hosts(&[slice("s", &endpoints, &ports)], None).unwrap(),
            [
                "10.0.0.1:8000 in a",
                "-10.0.0.3:8000",
                "-10.0.0.4:8000",
                "10.0.0.5:8000",
                "10.0.0.6:8000",
                "[fd00::7]:8000"
            ]
        );
    }

    #[test]
    fn the_port_is_known_or_asked_for() {
        let one = json!([{"addresses": ["10.0.0.1"]}]);
        let two = json!([
            {"name": "metrics", "port": 9000},
            {"name": "http", "port": 9, "protocol": "UDP"},
            {"name": "http", "port": 8000, "protocol": "TCP"},
        ]);
        let named = |name: &str| Some(EndpointPort::Name(name.to_owned()));
        let slices = [slice("s", &one, &two)];
        assert_eq!(hosts(&slices, named("http")).unwrap(), ["10.0.0.1:8000"]);
        assert_eq!(hosts(&slices, Some(EndpointPort::Number(7))).unwrap(), ["10.0.0.1:7"]);
        assert!(matches!(hosts(&slices, None), Err(KubeError::NoPort(_))));
        assert!(matches!(hosts(&slices, named("grpc")), Err(KubeError::NoPort(_))));
        let none = [slice("s", &one, &Value::Null), slice("t", &Value::Null, &Value::Null)];
        assert!(matches!(hosts(&none, None), Err(KubeError::NoPort(_))));
        assert_eq!(hosts(&none[1..], None).unwrap(), Vec::<String>::new());
    }
}
