//! Tests of notices from Nodes that are about to be shut down.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::config::discover::{KubernetesSource, NodeNotices};

use super::{Asked, Cluster, PATIENCE, list, slice, status};

/// A node with these taints.
fn node(name: &str, version: u64, taints: &[&str]) -> Value {
    let taint = |key: &&str| json!({"key": key, "effect": "NoSchedule"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "resourceVersion": version.to_string()},
        "spec": {"taints": taints.iter().map(taint).collect::<Vec<_>>()},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

const SPOT: &str = "karpenter.sh/disrupted";

fn with_nodes(rules: &mut KubernetesSource) {
    rules.nodes = Some(NodeNotices { taints: vec![SPOT.to_owned()], conditions: Vec::new() });
}

/// The next request about slices and the next about nodes, in that order.
async fn both(cluster: &mut Cluster) -> [Asked; 2] {
    let (one, other) = (cluster.next().await, cluster.next().await);
    assert_ne!(one.is_about_nodes(), other.is_about_nodes());
    if one.is_about_nodes() { [other, one] } else { [one, other] }
}

#[tokio::test]
async fn a_tainted_node_is_a_spot_notice_for_what_runs_there() {
    let mut cluster = Cluster::start(with_nodes).await;
    let [slices, nodes] = both(&mut cluster).await;
    assert_eq!(nodes.query("labelSelector"), None);
    nodes.answer(200, &list(3, &[node("node-1", 1, &["other"]), node("node-2", 2, &[SPOT])])).await;
    slices.answer(200, &list(5, &[slice("a", 4, &["10.0.0.1"])])).await;
    let [slices, nodes] = both(&mut cluster).await;
    let (mut slices, mut nodes) = (slices.begin().await, nodes.begin().await);
    cluster.holds(&["10.0.0.1"]).await;
    nodes.event("MODIFIED", &node("node-1", 6, &["other", SPOT])).await;
    cluster.holds(&["-10.0.0.1"]).await;
    let found = cluster.fixture.statuses.found();
    assert!(found.values().flat_map(|found| found.iter()).all(|endpoint| endpoint.spot_notice));
    slices.event("MODIFIED", &slice("a", 7, &["10.0.0.1", "10.0.0.2"])).await;
    cluster.holds(&["-10.0.0.1", "-10.0.0.2"]).await;
    nodes.event("MODIFIED", &node("node-1", 8, &["other"])).await;
    cluster.holds(&["10.0.0.1", "10.0.0.2"]).await;
    nodes.event("MODIFIED", &node("node-1", 9, &[SPOT])).await;
    cluster.holds(&["-10.0.0.1", "-10.0.0.2"]).await;
    nodes.event("DELETED", &node("node-1", 10, &[SPOT])).await;
    cluster.holds(&["10.0.0.1", "10.0.0.2"]).await;
    assert_eq!(cluster.fixture.logged(), Vec::<&str>::new());
}

#[tokio::test]
async fn without_a_right_to_see_nodes_there_are_replicas_and_a_problem() {
    let mut cluster = Cluster::start(with_nodes).await;
    let [slices, nodes] = both(&mut cluster).await;
    slices.answer(200, &list(5, &[slice("a", 4, &["10.0.0.1"])])).await;
    nodes.answer(403, &status(403)).await;
    let (mut watch, mut refused) = (None, 0);
    while watch.is_none() || refused < 2 {
        let asked = cluster.next().await;
        if asked.is_about_nodes() {
            refused += 1;
            asked.answer(403, &status(403)).await;
        } else {
            watch = Some(asked.begin().await);
        }
    }
    cluster.holds(&["10.0.0.1"]).await;
    let problem = cluster.fixture.statuses.views()[0].problem.clone();
    assert_eq!(problem.as_deref(), Some("nodes: the API server answers 403"));
    // Once it may, the notice counts.
    let mut asked = cluster.next().await;
    asked.answer(200, &list(9, &[node("node-1", 1, &[SPOT])])).await;
    asked = cluster.next().await;
    let mut nodes = asked.begin().await;
    cluster.holds(&["-10.0.0.1"]).await;
    let mended = async {
        while cluster.fixture.statuses.views()[0].problem.is_some() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, mended).await.expect("it may see nodes");
    // A version that is gone means a new list here as well.
    nodes.event("ERROR", &status(410)).await;
    let asked = cluster.next().await;
    assert!(asked.is_about_nodes() && !asked.is_watch(), "{}", asked.head);
    asked.answer(200, &list(80, &[node("node-1", 70, &[])])).await;
    cluster.holds(&["10.0.0.1"]).await;
}
