//! Is a replica there? Asked when the core wants to know.

use std::sync::Arc;

use crate::core::model::event::Event;
use crate::fleet::fetch::FetchError;
use crate::fleet::handle::FleetContext;
use crate::fleet::hooks::ReplicaNote;
use crate::fleet::scrape::MonitoredReplica;

/// Answers one `Action::Probe`, with `ReplicaFound` or `ReplicaLost`.
pub(super) async fn answer(shared: Arc<FleetContext>, member: Arc<MonitoredReplica>) {
    let limit = shared.timing.probe_timeout;
    let result = tokio::time::timeout(limit, ask(&shared, &member)).await.unwrap_or(Err(FetchError::Timeout));
    if member.ended() {
        // The reload that ended it saw the probe in flight and repeats it.
        return;
    }
    member.probing.end();
    let replica = member.target.replica;
    match result {
        Ok(()) => {
            // It may be another engine than before.
            member.refresh.notify_one();
            shared.watch.note(replica, ReplicaNote::ProbeSucceeded);
            shared.sink.event(Event::ReplicaFound { replica });
        }
        Err(why) => {
            shared.watch.note(replica, ReplicaNote::ProbeFailed { why });
            shared.sink.event(Event::ReplicaLost { replica, answers: why.answers() });
        }
    }
}

async fn ask(shared: &FleetContext, member: &MonitoredReplica) -> Result<(), FetchError> {
    let target = &member.target;
    let adapter = target.adapter();
    let mut last = None;
    for path in adapter.ready_paths {
        let status = shared.fetcher.status(&target.url(path), target.key.as_ref()).await?;
        if adapter.is_ready(status) {
            return Ok(());
        }
        last = Some(status);
        if status != 404 {
            break;
        }
    }
    Err(last.map_or(FetchError::Unsendable, FetchError::Status))
}
