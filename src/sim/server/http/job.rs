//! Client job: a request as its connection sees it. The engine's progress is
//! combined with the fault that hits this request.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::faults::{FaultKind, ResetPoint};
use crate::server::core::SimTicket;
use crate::server::feed::{Failure, FeedEnd, Progress};
use crate::server::http::conn::SimConn;

/// Failure that the transport shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionFailure {
    Cut,
    Reset,
    Silent,
    BadChunk,
    BadSse,
    BadJson,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TransportFault {
    End(FeedEnd),
    Act(ConnectionFailure),
}

/// A fault that waits for the request's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LateFault {
    after: u32,
    fault: TransportFault,
}

impl LateFault {
    /// The late fault of this kind; `None` if the kind is not a late fault.
    pub(crate) fn from_kind(kind: &FaultKind) -> Option<Self> {
        let (after, wrong) = match *kind {
            FaultKind::Reset { at: ResetPoint::Head } => (0, TransportFault::Act(ConnectionFailure::Reset)),
            FaultKind::Cut { after_tokens } => (after_tokens, TransportFault::Act(ConnectionFailure::Cut)),
            FaultKind::Silent { after_tokens, .. } => {
                (after_tokens, TransportFault::Act(ConnectionFailure::Silent))
            }
            FaultKind::MalformedChunk { after_tokens } => {
                (after_tokens, TransportFault::Act(ConnectionFailure::BadChunk))
            }
            FaultKind::MalformedSse { after_tokens } => {
                (after_tokens, TransportFault::Act(ConnectionFailure::BadSse))
            }
            FaultKind::MalformedJson { after_tokens } => {
                (after_tokens, TransportFault::Act(ConnectionFailure::BadJson))
            }
            FaultKind::Abort { after_tokens } => (after_tokens, TransportFault::End(FeedEnd::Aborted)),
            FaultKind::NoFinish { after_tokens } => (after_tokens, TransportFault::End(FeedEnd::NoFinish)),
            FaultKind::EngineDead { after_tokens } => {
                (after_tokens, TransportFault::End(FeedEnd::Failed(Failure::ENGINE_DEAD)))
            }
            FaultKind::ErrorEvent { after_tokens, status } => {
                (after_tokens, TransportFault::End(FeedEnd::Failed(Failure { status, ..Failure::BUSY })))
            }
            _ => return None,
        };
        Some(Self { after, fault: wrong })
    }
}

/// A request with its late fault, as its connection sees it.
#[derive(Debug)]
pub(crate) struct ClientJob {
    ticket: SimTicket,
    late: Option<LateFault>,
    pub(crate) conn: Arc<SimConn>,
}

impl ClientJob {
    pub(crate) fn new(ticket: SimTicket, late: Option<LateFault>, conn: Arc<SimConn>) -> Self {
        Self { ticket, late, conn }
    }

    /// The next change: the progress, and the failure to show after it.
    pub(crate) fn poll_progress(&mut self, cx: &Context<'_>) -> Poll<(Progress, Option<ConnectionFailure>)> {
        let at_once = self.late.as_ref().is_some_and(|late| late.after == 0);
        let mut progress =
            if at_once { self.ticket.feed.progress() } else { ready!(self.ticket.feed.poll(cx)) };
        let Some(late) = self.late.take_if(|late| progress.tokens() >= u64::from(late.after)) else {
            return Poll::Ready((progress, None));
        };
        clip(&mut progress, late.after);
        self.ticket.feed.refresh();
        match late.fault {
            TransportFault::End(end) => {
                progress.end = Some(end);
                Poll::Ready((progress, None))
            }
            TransportFault::Act(act) => Poll::Ready((progress, Some(act))),
        }
    }

    /// Waits for the end of the request.
    pub(crate) async fn complete(&mut self) -> (Progress, Option<ConnectionFailure>) {
        loop {
            let (progress, act) = poll_fn(|cx| self.poll_progress(cx)).await;
            if progress.end.is_some() || act.is_some() {
                return (progress, act);
            }
        }
    }

    /// Time at which the request arrived.
    pub(crate) fn arrived(&self) -> penstock_core::model::time::Tick {
        self.ticket.feed.arrived
    }
}

/// Cuts the progress to `tokens` tokens in all, from the first choices.
fn clip(progress: &mut Progress, tokens: u32) {
    let mut left = tokens;
    for choice in &mut progress.choices {
        choice.tokens = choice.tokens.min(left);
        choice.done = false;
        left -= choice.tokens;
    }
    progress.end = None;
}
