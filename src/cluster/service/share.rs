//! Service share: the calls that carry the work of tenants and classes to the store and back.

use std::sync::Arc;

use crate::cluster::demand::reports::StoreNames;
use crate::cluster::parts::ClusterParts;
use crate::cluster::service::batches::ServiceBatches;
use crate::cluster::store::connection::StoreConnection;
use crate::cluster::store::scripts::{SERVICE, StoreScript};
use crate::core::model::event::Event;
use crate::core::queue::fairness::service::{HeldSequences, summed};
use crate::dispatcher::Dispatcher;
use crate::telemetry::event::ServiceNotShared;

/// Accounts that are told in one turn of 200 ms; further ones wait for the next turns. A row is 60 to 80
/// bytes, so that they are at most 45 kB a second.
const ROWS_A_TURN: usize = 112;
/// Reports in one event of the scheduler. Requests wait while it is handled.
const REPORTS_AN_EVENT: usize = 256;

#[derive(Debug)]
pub(in crate::cluster) struct ServiceShare {
    script: StoreScript,
    batches: ServiceBatches,
    /// What tenants hold at other gateways, as the scheduler was told last.
    held: Vec<HeldSequences>,
}

impl ServiceShare {
    pub(in crate::cluster) fn new() -> Self {
        let (script, batches) = (StoreScript::new(SERVICE), ServiceBatches::default());
        Self { script, batches, held: Vec::new() }
    }

    /// Notes that the connection was lost, or that this gateway is alone. Nothing is known of what tenants
    /// hold elsewhere.
    pub(in crate::cluster) fn start_over(&mut self, dispatcher: &Dispatcher) {
        self.batches.start_over();
        self.pass_held(dispatcher, Vec::new());
    }

    fn pass_held(&mut self, dispatcher: &Dispatcher, held: Vec<HeldSequences>) {
        if self.held != held {
            self.held.clone_from(&held);
            dispatcher.event(Event::HeldElsewhere(held));
        }
    }

    /// Tells the store what was dispatched here since the last call, and the scheduler what other gateways
    /// have dispatched. A gateway that is alone tells and asks nothing. A call that the store refuses is a
    /// line of the log: each gateway is then fair by itself. `members` are the gateways that are there.
    ///
    /// # Errors
    /// The connection is lost.
    pub(in crate::cluster) async fn share(
        &mut self,
        connection: &StoreConnection,
        names: StoreNames<'_>,
        parts: &ClusterParts,
        members: &[String],
    ) -> Result<(), String> {
        let ClusterParts { dispatcher, settings, telemetry, .. } = parts;
        let most = if self.batches.has_begun() { ROWS_A_TURN } else { usize::MAX };
        let mut reports = dispatcher.take_service_reports(most);
        if members.len() < 2 {
            self.start_over(dispatcher);
            return Ok(());
        }
        if !self.batches.has_begun() {
            // Nobody takes over what was dispatched while this gateway was away or alone.
            reports.clear();
        }
        let policy = Arc::clone(&settings.load().policy);
        let call = self.batches.call(names, &reports, &dispatcher.held_sequences(), &policy);
        let keys: Vec<&str> = call.keys.iter().map(String::as_str).collect();
        let tell = |problem: &str| ServiceNotShared { problem }.emit(telemetry);
        let answer = connection.run_or_tell(&mut self.script, &keys, &call.values, tell).await?;
        let Some(answer) = answer else {
            self.start_over(dispatcher);
            return Ok(());
        };
        let heard = self.batches.receive_answer(&call, answer, &policy).unwrap_or_default();
        for reports in summed(&heard).chunks(REPORTS_AN_EVENT) {
            dispatcher.event(Event::ServedElsewhere(reports.to_vec()));
        }
        let held = self.batches.held_elsewhere(members);
        self.pass_held(dispatcher, held);
        Ok(())
    }
}
