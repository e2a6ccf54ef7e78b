//! Replicas from the EndpointSlices of a Kubernetes Service, and notice of
//! machines that are about to go from the taints and conditions of Nodes.
//! Whatever fails, the last view holds: without the Nodes there are no
//! notices, and without the slices no changes at all.

mod api;
mod follow;
mod lines;
mod nodes;
mod slices;
#[cfg(test)]
mod tests;

use std::time::Duration;

use parking_lot::Mutex;

use crate::config::discover::{Kubernetes, Notices};
use crate::fleet::discover::board::Desk;
use crate::fleet::discover::pause::Pauses;

use self::api::{Resource, Trouble};
use self::follow::{Audience, LONGEST_PAUSE, follow};
use self::nodes::{Doomed, Node};
use self::slices::{Slice, Slices};

const SHORTEST_PAUSE: Duration = Duration::from_millis(500);

/// Asks for ever.
pub(super) async fn run(rules: &Kubernetes, desk: &Desk) {
    run_with(rules, desk, || Pauses::new(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
}

async fn run_with(rules: &Kubernetes, desk: &Desk, pauses: impl Fn() -> Pauses) {
    let view = View { rules, desk, known: Mutex::default() };
    let slices = follow(rules, Resource::Slices, OfSlices(&view), pauses());
    match &rules.nodes {
        None => slices.await,
        Some(notices) => {
            let audience = OfNodes { view: &view, notices, is_lost: false };
            tokio::join!(slices, follow(rules, Resource::Nodes, audience, pauses()));
        }
    }
}

/// What both watches have come to.
struct View<'a> {
    rules: &'a Kubernetes,
    desk: &'a Desk,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Absent before the first list.
    slices: Option<Slices>,
    doomed: Doomed,
}

impl View<'_> {
    fn publish(&self) -> Result<(), Trouble> {
        let known = self.known.lock();
        let Some(slices) = &known.slices else { return Ok(()) };
        let endpoints = slices.endpoints(self.rules, &known.doomed)?;
        self.desk.found(endpoints);
        Ok(())
    }
}

struct OfSlices<'a>(&'a View<'a>);

impl Audience for OfSlices<'_> {
    type Object = Slice;

    fn replace(&mut self, all: Vec<Slice>) -> Result<(), Trouble> {
        let mut slices = Slices::default();
        all.into_iter().for_each(|slice| slices.put(slice));
        self.0.known.lock().slices = Some(slices);
        self.publish()
    }

    fn put(&mut self, slice: Slice) -> bool {
        self.0.known.lock().slices.get_or_insert_default().put(slice);
        true
    }

    fn remove(&mut self, slice: &Slice) -> bool {
        self.0.known.lock().slices.get_or_insert_default().remove(slice);
        true
    }

    fn publish(&mut self) -> Result<(), Trouble> {
        self.0.publish()
    }

    fn lost(&mut self, why: &str) {
        self.0.desk.lost(why);
    }
}

struct OfNodes<'a> {
    view: &'a View<'a>,
    notices: &'a Notices,
    is_lost: bool,
}

impl OfNodes<'_> {
    /// What is wrong with the slices is said where those are asked for.
    fn tell(&self) {
        let _said = self.view.publish();
    }
}

impl Audience for OfNodes<'_> {
    type Object = Node;

    fn replace(&mut self, all: Vec<Node>) -> Result<(), Trouble> {
        let mut doomed = Doomed::default();
        for node in all {
            doomed.put(node, self.notices);
        }
        self.view.known.lock().doomed = doomed;
        self.tell();
        Ok(())
    }

    fn put(&mut self, node: Node) -> bool {
        self.view.known.lock().doomed.put(node, self.notices)
    }

    fn remove(&mut self, node: &Node) -> bool {
        self.view.known.lock().doomed.remove(node)
    }

    fn publish(&mut self) -> Result<(), Trouble> {
        if std::mem::take(&mut self.is_lost) {
            self.view.desk.beside(None);
        }
        self.tell();
        Ok(())
    }

    fn lost(&mut self, why: &str) {
        self.is_lost = true;
        self.view.desk.beside(Some(&format!("nodes: {why}")));
    }
}
