//! Puts a replica to sleep, or wakes it. Told when the core wants it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::core::event::Event;
use crate::core::rest::Rested;
use crate::fleet::fetch::Trouble;
use crate::fleet::handle::Shared;
use crate::fleet::hooks::Note;
use crate::fleet::scrape::Member;

/// How long an engine may take to fall asleep.
const SLEEP_LIMIT: Duration = Duration::from_secs(30);
/// For the question what came of an order.
const STATE_LIMIT: Duration = Duration::from_secs(5);

/// What a replica is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// To give its accelerator's memory back, and take no work.
    Sleep,
    /// To take it again.
    Wake {
        /// How long it may take.
        limit: Duration,
    },
}

impl Order {
    /// A short stable name for logs and metric labels.
    #[must_use]
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

    const fn done(self) -> Rested {
        match self {
            Self::Sleep => Rested::Asleep,
            Self::Wake { .. } => Rested::Awake,
        }
    }
}

/// Gives one order; the sink gets `Rested` in any case, unless a reload ends
/// the replica meanwhile.
pub(super) async fn obey(shared: Arc<Shared>, member: Arc<Member>, order: Order) {
    let began = Instant::now();
    member.cell.lock().told.open += 1;
    let answer = tell(&shared, &member, order).await;
    let rested = match answer {
        Ok(()) => order.done(),
        Err(Trouble::Status(404 | 405 | 501)) => Rested::Unable,
        // It may have done it all the same.
        Err(_) => ask(&shared, &member).await.unwrap_or(Rested::Failed),
    };
    if member.ended() {
        return;
    }
    {
        let mut status = member.cell.lock();
        (status.told.open, status.told.answered) = (status.told.open - 1, Some(Instant::now()));
        if let Rested::Asleep | Rested::Awake = rested {
            status.gauges.asleep = Some(rested == Rested::Asleep);
        }
    }
    member.refresh.notify_one();
    let replica = member.target.replica;
    shared.watch.note(
        replica,
        match (rested == order.done(), answer) {
            (true, _) => Note::Obeyed { order, took: began.elapsed() },
            (false, Err(_)) if rested == Rested::Unable => Note::CannotSleep,
            (false, answer) => Note::Disobeyed { order, why: answer.err().unwrap_or(Trouble::NotUnderstood) },
        },
    );
    shared.sink.event(Event::Rested { replica, rested });
}

async fn tell(shared: &Shared, member: &Member, order: Order) -> Result<(), Trouble> {
    let target = &member.target;
    let Some(paths) = &target.adapter().sleep else { return Err(Trouble::Status(404)) };
    let path = match order {
        Order::Sleep => paths.sleep,
        Order::Wake { .. } => paths.wake,
    };
    shared.fetcher.post(&target.url(path), target.key.as_ref(), order.limit()).await
}

/// Whether it sleeps, if it says so.
async fn ask(shared: &Shared, member: &Member) -> Option<Rested> {
    let target = &member.target;
    let paths = target.adapter().sleep.as_ref()?;
    let body = shared.fetcher.body(&target.url(paths.state), target.key.as_ref(), STATE_LIMIT).await.ok()?;
    let asleep = (paths.read)(&body)?;
    Some(if asleep { Rested::Asleep } else { Rested::Awake })
}
