//! Probes of ejected replicas, sent when the scheduler asks for them.

use std::sync::Arc;

use crate::core::model::event::Event;
use crate::fleet::context::FleetContext;
use crate::fleet::fetch::FetchError;
use crate::fleet::scrape::MonitoredReplica;
use crate::telemetry::event::ProbeFailed;

/// Carries out one `ReplicaAction::Probe`. The dispatcher gets `ProbeSucceeded` or `ReplicaLost`.
pub(super) async fn run(shared: Arc<FleetContext>, member: Arc<MonitoredReplica>) {
    let limit = shared.timing.probe_timeout;
    let result = tokio::time::timeout(limit, check_ready(&member)).await.unwrap_or(Err(FetchError::Timeout));
    if member.is_ended() {
        // The reload that ended this task saw the probe in flight and repeats it.
        return;
    }
    member.probing.end();
    let replica = member.target.replica;
    match result {
        Ok(()) => {
            // The engine may be another than before, so its models are read anew.
            member.refresh.notify_one();
            shared.dispatcher.event(Event::ProbeSucceeded { replica });
        }
        Err(why) => {
            ProbeFailed { replica, problem: &why.to_string() }.emit(&shared.telemetry);
            shared.dispatcher.event(Event::ReplicaLost { replica, answers: why.is_answered() });
        }
    }
}

async fn check_ready(member: &MonitoredReplica) -> Result<(), FetchError> {
    let target = &member.target;
    let engine = target.engine();
    let mut last = None;
    for path in engine.ready_paths {
        let status = member.fetcher.get_status(&target.url(path), target.key.as_ref()).await?;
        if engine.is_ready(status) {
            return Ok(());
        }
        last = Some(status);
        if status != 404 {
            break;
        }
    }
    Err(last.map_or(FetchError::Unsendable, FetchError::Status))
}
