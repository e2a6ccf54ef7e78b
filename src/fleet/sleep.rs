//! Sleep orders: a replica is put to sleep, or woken, when the scheduler asks for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::core::model::event::Event;
use crate::core::replica::health::sleep::SleepResult;
use crate::fleet::context::FleetContext;
use crate::fleet::fetch::FetchError;
use crate::fleet::scrape::MonitoredReplica;
use crate::telemetry::event::{SleepOrderDone, SleepOrderFailed, SleepUnsupported};

/// Longest time for an engine to fall asleep.
const SLEEP_LIMIT: Duration = Duration::from_secs(30);
/// Limit for the request that asks the engine whether it sleeps, after an order that failed.
const STATE_LIMIT: Duration = Duration::from_secs(5);

/// Sleep order to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepOrder {
    /// Gives the accelerator's memory back and takes no work.
    Sleep,
    /// Takes work again.
    Wake {
        /// Longest time for the engine to wake.
        limit: Duration,
    },
}

impl SleepOrder {
    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sleep => "sleep",
            Self::Wake { .. } => "wake",
        }
    }

    const fn limit(self) -> Duration {
        match self {
            Self::Sleep => SLEEP_LIMIT,
            Self::Wake { limit } => limit,
        }
    }

    const fn expected_result(self) -> SleepResult {
        match self {
            Self::Sleep => SleepResult::Asleep,
            Self::Wake { .. } => SleepResult::Awake,
        }
    }
}

/// Carries out one order. The dispatcher gets `SleepAnswered` in any case, unless a reload ends the
/// replica meanwhile.
pub(super) async fn carry_out(shared: Arc<FleetContext>, member: Arc<MonitoredReplica>, order: SleepOrder) {
    let began = Instant::now();
    member.cell.lock().sleep_orders.open += 1;
    let answer = send_order(&member, order).await;
    let sleep_result = match answer {
        Ok(()) => order.expected_result(),
        Err(FetchError::Status(404 | 405 | 501)) => SleepResult::Unable,
        // The engine may have obeyed even though the request failed.
        Err(_) => fetch_state(&member).await.unwrap_or(SleepResult::Failed),
    };
    if member.is_ended() {
        return;
    }
    {
        let mut status = member.cell.lock();
        (status.sleep_orders.open, status.sleep_orders.answered) =
            (status.sleep_orders.open - 1, Some(Instant::now()));
        if let SleepResult::Asleep | SleepResult::Awake = sleep_result {
            status.gauges.asleep = Some(sleep_result == SleepResult::Asleep);
        }
    }
    member.refresh.notify_one();
    let replica = member.target.replica;
    let telemetry = &shared.telemetry;
    match (sleep_result == order.expected_result(), answer) {
        (true, _) => SleepOrderDone { replica, order: order.name(), took: began.elapsed() }.emit(telemetry),
        (false, Err(_)) if sleep_result == SleepResult::Unable => {
            SleepUnsupported { replica }.emit(telemetry);
        }
        (false, answer) => {
            let problem = answer.err().unwrap_or(FetchError::Malformed).to_string();
            SleepOrderFailed { replica, order: order.name(), problem: &problem }.emit(telemetry);
        }
    }
    shared.dispatcher.event(Event::SleepAnswered { replica, result: sleep_result });
}

async fn send_order(member: &MonitoredReplica, order: SleepOrder) -> Result<(), FetchError> {
    let target = &member.target;
    let Some(paths) = &target.engine().sleep else { return Err(FetchError::Status(404)) };
    let path = match order {
        SleepOrder::Sleep => paths.sleep,
        SleepOrder::Wake { .. } => paths.wake,
    };
    member.fetcher.post(&target.url(path), target.key.as_ref(), order.limit()).await
}

/// Whether the engine sleeps; `None` when it does not say.
async fn fetch_state(member: &MonitoredReplica) -> Option<SleepResult> {
    let target = &member.target;
    let paths = target.engine().sleep.as_ref()?;
    let body = member.fetcher.get(&target.url(paths.state), target.key.as_ref(), STATE_LIMIT).await.ok()?;
    let asleep = (paths.read)(&body)?;
    Some(if asleep { SleepResult::Asleep } else { SleepResult::Awake })
}
