//! Nodes that are about to be shut down, known by their taints and conditions.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::config::discover::NodeNotices;
use crate::fleet::discovery::kubernetes::object::{KubeObject, ObjectMetadata};

/// Fields of a `v1` Node that are used.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct KubeNode {
    metadata: ObjectMetadata,
    #[serde(default)]
    spec: Option<NodeSpec>,
    #[serde(default)]
    status: Option<NodeStatus>,
}

#[derive(Debug, Clone, Deserialize)]
struct NodeSpec {
    #[serde(default)]
    taints: Option<Vec<Taint>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Taint {
    key: String,
}

#[derive(Debug, Clone, Deserialize)]
struct NodeStatus {
    #[serde(default)]
    conditions: Option<Vec<NodeCondition>>,
}

#[derive(Debug, Clone, Deserialize)]
struct NodeCondition {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    reason: Option<String>,
}

impl KubeObject for KubeNode {
    const NO_LIST: &'static str = "the list is no NodeList";

    fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }
}

/// Names of the nodes that are on notice.
#[derive(Debug, Default)]
pub(super) struct NodesOnNotice(BTreeSet<String>);

impl NodesOnNotice {
    /// Adds or updates a node. Returns whether the set changed.
    pub(super) fn put(&mut self, node: KubeNode, rules: &NodeNotices) -> bool {
        let doomed = node.is_on_notice(rules);
        let name = node.metadata.name;
        if doomed { self.0.insert(name) } else { self.0.remove(&name) }
    }

    pub(super) fn remove(&mut self, node: &KubeNode) -> bool {
        self.0.remove(&node.metadata.name)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

impl KubeNode {
    fn is_on_notice(&self, rules: &NodeNotices) -> bool {
        let taints = self.spec.iter().filter_map(|spec| spec.taints.as_deref()).flatten();
        let conditions = self.status.iter().filter_map(|status| status.conditions.as_deref()).flatten();
        taints.into_iter().any(|taint| rules.taints.contains(&taint.key))
            || conditions.into_iter().any(|condition| condition.matches_any(&rules.conditions))
    }
}

impl NodeCondition {
    /// Whether the condition is true and listed, as `Type` or as `Type=Reason`.
    fn matches_any(&self, wanted: &[String]) -> bool {
        self.status == "True"
            && wanted.iter().any(|wanted| match wanted.split_once('=') {
                Some((kind, reason)) => kind == self.kind && self.reason.as_deref() == Some(reason),
                None => *wanted == self.kind,
            })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rules() -> NodeNotices {
        let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        NodeNotices { taints: strings(&["spot/gone"]), conditions: strings(&["Going", "Event=Preempted"]) }
    }

    fn is_doomed(spec: &Value, conditions: &Value) -> bool {
        let node = json!({
            "metadata": {"name": "n", "resourceVersion": "1"}, "spec": spec,
            "status": {"conditions": conditions},
        });
        serde_json::from_value::<KubeNode>(node).unwrap().is_on_notice(&rules())
    }

    #[test]
    fn taints_and_conditions_give_notice() {
        let none = json!(null);
        let taint = |key: &str| json!({"taints": [{"key": "other", "effect": "NoSchedule"}, {"key": key}]});
        assert!(is_doomed(&taint("spot/gone"), &none));
        assert!(!is_doomed(&taint("spot"), &none));
        assert!(!is_doomed(&json!({}), &json!([])) && !is_doomed(&none, &none));
        for (kind, status, reason, doomed) in [
            ("Going", "True", json!(null), true),
            ("Going", "False", json!(null), false),
            ("Going", "Unknown", json!(null), false),
            ("Event", "True", json!("Preempted"), true),
            ("Event", "True", json!("Frozen"), false),
            ("Ready", "True", json!("KubeletReady"), false),
        ] {
            let condition = json!([{"type": kind, "status": status, "reason": reason}]);
            assert_eq!(is_doomed(&none, &condition), doomed, "{kind} {status} {reason}");
        }
    }

    #[test]
    fn a_notice_can_be_withdrawn() {
        let node = |key: &str| -> KubeNode {
            let spec = json!({"taints": [{"key": key}]});
            serde_json::from_value(json!({"metadata": {"name": "n", "resourceVersion": "1"}, "spec": spec}))
                .unwrap()
        };
        let mut doomed = NodesOnNotice::default();
        assert!(doomed.put(node("spot/gone"), &rules()) && doomed.contains("n"));
        assert!(!doomed.put(node("spot/gone"), &rules()));
        assert!(doomed.put(node("other"), &rules()) && !doomed.contains("n"));
        doomed.put(node("spot/gone"), &rules());
        assert!(doomed.remove(&node("spot/gone")) && !doomed.contains("n"));
    }
}
