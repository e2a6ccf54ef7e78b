//! One job's ticket: what its request holds of the scheduler.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::core::budget::Standing;
use crate::core::budget::rule::RuleId;
use crate::core::event::{Event, Fault, Outcome, Recalled, Rejection};
use crate::core::ids::JobId;
use crate::core::job::Usage;
use crate::proxy::gate::desks::{Answer, Dispatch, Placement, Start, Word};
use crate::proxy::gate::{Bills, Gate};

/// One job's place in the queue, then its credit at a replica. Reports the
/// job's end exactly once, at the latest when dropped.
///
/// The scheduler may take the job away from its replica before its client has
/// seen anything: [`Ticket::recalled`] says so, and what the ticket is told of
/// that try from then on is not passed on.
#[derive(Debug)]
pub struct Ticket {
    gate: Arc<Gate>,
    job: JobId,
    post: Post,
    usage: Usage,
    limits: Limits,
    bills: Arc<Bills>,
    live: bool,
}

/// How it stood with a job's limits when it had come. Empty where it has none.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Each, with what the job reserved taken off.
    pub standings: SmallVec<[Standing; 4]>,
    /// Those in shadow mode that would have refused it.
    pub shadowed: SmallVec<[RuleId; 1]>,
}

#[derive(Debug)]
enum Post {
    Waits(oneshot::Receiver<Answer>),
    /// Nothing more is to be heard where there is no receiver.
    Runs {
        dispatch: Dispatch,
        word: Option<oneshot::Receiver<Word>>,
    },
    Over,
}

impl Ticket {
    pub(super) fn new(
        gate: Arc<Gate>,
        job: JobId,
        answer: oneshot::Receiver<Answer>,
        (limits, bills): (Limits, Arc<Bills>),
    ) -> Self {
        Self { gate, job, post: Post::Waits(answer), usage: Usage::Unknown, limits, bills, live: true }
    }

    /// How it stood with the job's limits when it had come.
    pub fn take_limits(&mut self) -> Limits {
        std::mem::take(&mut self.limits)
    }

    /// The job's id.
    #[cfg(test)]
    pub(super) const fn job(&self) -> JobId {
        self.job
    }

    /// What the job's stays at replicas come to; complete once the ticket is
    /// gone.
    #[must_use]
    pub fn bills(&self) -> Arc<Bills> {
        Arc::clone(&self.bills)
    }

    /// Waits for a replica. Dropping the future keeps the ticket.
    ///
    /// # Errors
    /// The rejection, after which the job is over.
    pub async fn placed(&mut self) -> Result<Placement, Rejection> {
        let Post::Waits(receiver) = &mut self.post else {
            unreachable!("a ticket waits only after admit, after a failure and after a recall");
        };
        match receiver.await {
            Ok(Ok(Start { placement, dispatch, word })) => {
                self.post = Post::Runs { dispatch, word: Some(word) };
                Ok(placement)
            }
            Ok(Err(rejection)) => {
                self.post = Post::Over;
                self.live = false;
                Err(rejection)
            }
            // Somebody else ended the job, and ends this wait too.
            Err(_) => pending().await,
        }
    }

    /// Waits until the job is taken away from its replica; then wait for
    /// another with `placed`. Never ends while the ticket is not at a replica.
    /// Dropping the future keeps the ticket.
    pub async fn recalled(&mut self) -> Recalled {
        let Post::Runs { word, .. } = &mut self.post else { return pending().await };
        let Some(receiver) = word else { return pending().await };
        let said = receiver.await;
        // A receiver that has spoken must not be polled again.
        *word = None;
        match said {
            Ok(Word::Recalled { why, again }) => {
                self.post = Post::Waits(again);
                why
            }
            // A stream is handed over after its first token; nobody waits here
            // for that. Or somebody else ended the job.
            Ok(Word::HandOver(_)) | Err(_) => pending().await,
        }
    }

    /// Whether another replica is to go on with the stream, and why. Says so
    /// once; `cx` is woken when that changes.
    pub fn poll_handed_over(&mut self, cx: &mut Context<'_>) -> Poll<Recalled> {
        let Post::Runs { word, .. } = &mut self.post else { return Poll::Pending };
        let Some(receiver) = word else { return Poll::Pending };
        let Poll::Ready(said) = Pin::new(receiver).poll(cx) else { return Poll::Pending };
        *word = None;
        match said {
            Ok(Word::HandOver(why)) => Poll::Ready(why),
            // What streams is never recalled.
            Ok(Word::Recalled { .. }) | Err(_) => Poll::Pending,
        }
    }

    /// The job's first token is here. Only if this is true may it be shown to
    /// the client; otherwise the job has been recalled.
    #[must_use]
    pub fn first_token(&self) -> bool {
        let Post::Runs { dispatch, .. } = self.post else { return false };
        self.gate.report(self.job, dispatch, Event::FirstToken { job: self.job })
    }

    /// What is known so far of the job's consumption; used if it is dropped.
    pub fn note_usage(&mut self, usage: Usage) {
        self.usage = usage;
    }

    /// The replica failed the job, and the client has seen nothing of it:
    /// wait for another with `placed`. False if the job had been recalled:
    /// then wait for [`Ticket::recalled`] first.
    #[must_use]
    pub fn failed_unseen(&mut self, fault: Fault, usage: Usage) -> bool {
        self.again(Outcome::Failed { fault, usage })
    }

    /// The same for a stream of which the client has seen `output` tokens and
    /// which another replica can go on with.
    #[must_use]
    pub fn interrupted(&mut self, fault: Fault, usage: Usage, output: u64) -> bool {
        self.again(Outcome::Interrupted { fault, usage, output })
    }

    fn again(&mut self, outcome: Outcome) -> bool {
        let Post::Runs { dispatch, .. } = self.post else { return false };
        let again = self.gate.retry(self.job, dispatch, Event::Finished { job: self.job, outcome });
        match again {
            Some(answer) => self.post = Post::Waits(answer),
            None => return false,
        }
        true
    }

    /// The answer is over. Only if this is true is it the job's answer;
    /// otherwise the job has been recalled, or ended otherwise.
    pub fn finish(&mut self, outcome: Outcome) -> bool {
        let Post::Runs { dispatch, .. } = self.post else { return false };
        let finished = self.gate.finish(self.job, dispatch, Event::Finished { job: self.job, outcome });
        self.live &= !finished;
        finished
    }

    /// Ends the job wherever it is.
    pub fn give_up(&mut self, usage: Usage) {
        if std::mem::take(&mut self.live) {
            self.post = Post::Over;
            self.gate.event(Event::Left { job: self.job, usage });
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.give_up(self.usage);
    }
}
