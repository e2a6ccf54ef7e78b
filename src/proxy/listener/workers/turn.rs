//! Turns of a worker thread: what a thread does from one wake-up until no task is ready any more.
//!
//! A thread with many requests is faster if it takes the same step of all of them one after the other; what that gains,
//! and what is known of why, is in `docs/decisions/100-requests-of-one-turn.md`. A request that is alone in its turn
//! goes on at once.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

/// Steps that the requests of one turn take one after the other.
#[derive(Debug, Clone, Copy)]
pub(in crate::proxy) enum Step {
    /// Into the scheduler.
    Admit,
    /// From the scheduler to an engine.
    Send,
}

#[derive(Default)]
struct Turn {
    /// Whether the thread is a worker, and tells where its turns end.
    is_worker: Cell<bool>,
    /// Requests that have come to each [`Step`] in this turn.
    requests: [Cell<u32>; 2],
}

thread_local! {
    static TURN: Turn = Turn::default();
}

/// Lets what else is ready on this thread go first, if this is not the first request of the turn that
/// comes to `step`.
pub(in crate::proxy) async fn take_together(step: Step) {
    let waits = TURN.with(|turn| {
        let requests = &turn.requests[step as usize];
        turn.is_worker.get() && requests.replace(requests.get().saturating_add(1)) > 0
    });
    let mut is_last = !waits;
    // tokio's own `yield_now` asks the system for events first, with a call for each request.
    poll_fn(|cx| {
        if std::mem::replace(&mut is_last, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Makes this thread a worker, which calls [`end`] before it rests.
pub(super) fn start_thread() {
    TURN.with(|turn| turn.is_worker.set(true));
}

/// Ends the turn.
pub(super) fn end() {
    TURN.with(|turn| turn.requests.iter().for_each(|requests| requests.set(0)));
}

/// Requests that have come to the step in this turn.
#[cfg(test)]
pub(super) fn requests(step: Step) -> u32 {
    TURN.with(|turn| turn.requests[step as usize].get())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use tokio::runtime::{Builder, Runtime};
    use tokio::task::LocalSet;

    use super::*;

    /// Makes the test's thread a worker.
    fn worker() -> Runtime {
        start_thread();
        Builder::new_current_thread().enable_all().on_thread_park(end).build().unwrap()
    }

    #[test]
    fn all_requests_but_the_first_take_a_step_together() {
        for (runtime, expected) in [
            (worker(), "read admitted read read admitted admitted"),
            (Builder::new_current_thread().build().unwrap(), "read admitted read admitted read admitted"),
        ] {
            let steps = Rc::<RefCell<Vec<&str>>>::default();
            let requests = LocalSet::new();
            for _ in 0..3 {
                let steps = Rc::clone(&steps);
                requests.spawn_local(async move {
                    steps.borrow_mut().push("read");
                    take_together(Step::Admit).await;
                    steps.borrow_mut().push("admitted");
                });
            }
            runtime.block_on(requests);
            assert_eq!(steps.borrow().join(" "), expected);
            TURN.with(|turn| turn.is_worker.set(false));
        }
    }
}
