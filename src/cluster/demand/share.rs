//! Demand share: the calls that carry demand reports to the store and back.

use crate::cluster::demand::reports::{DemandReportState, StoreNames};
use crate::cluster::demand::shared_reports::SharedReports;
use crate::cluster::parts::ClusterMember;
use crate::cluster::store::connection::StoreConnection;
use crate::cluster::store::scripts::{DEMAND, StoreScript};
use crate::telemetry::Telemetry;
use crate::telemetry::event::DemandNotShared;

#[derive(Debug)]
pub(in crate::cluster) struct DemandShare {
    script: StoreScript,
    state: DemandReportState,
}

impl DemandShare {
    pub(in crate::cluster) fn new() -> Self {
        Self { script: StoreScript::new(DEMAND), state: DemandReportState::default() }
    }

    /// Notes that the connection was lost, and the store may have lost its data.
    pub(in crate::cluster) const fn start_over(&mut self) {
        self.state.send_again();
    }

    /// Tells the store the demand that this gateway sees, and the scaler that of the others. `members` are all
    /// gateways that share limits. A call that the store refuses is a line of the log: limits do not depend on it.
    ///
    /// # Errors
    /// The connection is lost.
    pub(in crate::cluster) async fn share(
        &mut self,
        connection: &StoreConnection,
        names: StoreNames<'_>,
        members: &[ClusterMember],
        reports: &dyn SharedReports,
        telemetry: &Telemetry,
    ) -> Result<(), String> {
        let call = self.state.call(names, reports.own(self.state.stored()));
        let keys: Vec<&str> = call.keys.iter().map(String::as_str).collect();
        let tell = |problem: &str| DemandNotShared { problem }.emit(telemetry);
        let answer = connection.run_or_tell(&mut self.script, &keys, &call.values, tell).await?;
        let Some(answer) = answer else { return Ok(()) };
        let others = members.iter().filter(|member| member.id != names.id);
        let others = others.map(|member| (&*member.id, &*member.name));
        if let Some(heard) = self.state.receive_answer(&call, answer, others) {
            reports.receive_answer(heard);
        }
        Ok(())
    }
}
