//! Kubernetes source: replicas from the EndpointSlices of a Service, and spot notices from the
//! taints and conditions of Nodes. When a request fails, the last view stays in force: without the
//! Nodes there are no notices, and without the slices no changes at all.

mod api;
mod lines;
mod nodes;
mod object;
mod slices;
#[cfg(test)]
mod tests;
mod watch;

use std::time::Duration;

use parking_lot::Mutex;

use crate::config::discover::{KubernetesSource, NodeNotices};
use crate::fleet::discovery::pause::RetryPauses;
use crate::fleet::discovery::source_status::SourceReporter;

use self::api::{KubeError, KubeResource};
use self::nodes::{KubeNode, NodesOnNotice};
use self::slices::{EndpointSlice, ServiceSlices};
use crate::fleet::discovery::kubernetes::watch::{LONGEST_PAUSE, ObjectStore, follow};

const SHORTEST_PAUSE: Duration = Duration::from_millis(500);

/// Watches the slices, and the Nodes if configured, for ever.
pub(super) async fn run(rules: &KubernetesSource, reporter: &SourceReporter) {
    run_with(rules, reporter, || RetryPauses::new(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
}

async fn run_with(rules: &KubernetesSource, reporter: &SourceReporter, pauses: impl Fn() -> RetryPauses) {
    let view = EndpointsView { rules, reporter, known: Mutex::default() };
    let slices = follow(rules, KubeResource::Slices, SliceStore(&view), pauses());
    match &rules.nodes {
        None => slices.await,
        Some(notices) => {
            let audience = NodeStore { view: &view, notices, is_lost: false };
            tokio::join!(slices, follow(rules, KubeResource::Nodes, audience, pauses()));
        }
    }
}

/// Common view of both watches.
struct EndpointsView<'a> {
    rules: &'a KubernetesSource,
    reporter: &'a SourceReporter,
    known: Mutex<KnownObjects>,
}

#[derive(Default)]
struct KnownObjects {
    /// Slices of the Service; absent before the first list.
    slices: Option<ServiceSlices>,
    on_notice: NodesOnNotice,
}

impl EndpointsView<'_> {
    fn publish(&self) -> Result<(), KubeError> {
        let known = self.known.lock();
        let Some(slices) = &known.slices else { return Ok(()) };
        let endpoints = slices.endpoints(self.rules, &known.on_notice)?;
        self.reporter.report_endpoints(endpoints);
        Ok(())
    }
}

struct SliceStore<'a>(&'a EndpointsView<'a>);

impl ObjectStore for SliceStore<'_> {
    type Object = EndpointSlice;

    fn replace(&mut self, all: Vec<EndpointSlice>) -> Result<(), KubeError> {
        let mut slices = ServiceSlices::default();
        all.into_iter().for_each(|slice| slices.put(slice));
        self.0.known.lock().slices = Some(slices);
        self.publish()
    }

    fn put(&mut self, slice: EndpointSlice) -> bool {
        self.0.known.lock().slices.get_or_insert_default().put(slice);
        true
    }

    fn remove(&mut self, slice: &EndpointSlice) -> bool {
        self.0.known.lock().slices.get_or_insert_default().remove(slice);
        true
    }

    fn publish(&mut self) -> Result<(), KubeError> {
        self.0.publish()
    }

    fn lost(&mut self, why: &str) {
        self.0.reporter.report_lost(why);
    }
}

struct NodeStore<'a> {
    view: &'a EndpointsView<'a>,
    notices: &'a NodeNotices,
    is_lost: bool,
}

impl NodeStore<'_> {
    /// Publishes the view. A problem with the slices is reported by the watch of the slices.
    fn publish_endpoints(&self) {
        let _said = self.view.publish();
    }
}

impl ObjectStore for NodeStore<'_> {
    type Object = KubeNode;

    fn replace(&mut self, all: Vec<KubeNode>) -> Result<(), KubeError> {
        let mut doomed = NodesOnNotice::default();
        for node in all {
            doomed.put(node, self.notices);
        }
        self.view.known.lock().on_notice = doomed;
        self.publish_endpoints();
        Ok(())
    }

    fn put(&mut self, node: KubeNode) -> bool {
        self.view.known.lock().on_notice.put(node, self.notices)
    }

    fn remove(&mut self, node: &KubeNode) -> bool {
        self.view.known.lock().on_notice.remove(node)
    }

    fn publish(&mut self) -> Result<(), KubeError> {
        if std::mem::take(&mut self.is_lost) {
            self.view.reporter.set_secondary_problem(None);
        }
        self.publish_endpoints();
        Ok(())
    }

    fn lost(&mut self, why: &str) {
        self.is_lost = true;
        self.view.reporter.set_secondary_problem(Some(&format!("nodes: {why}")));
    }
}
