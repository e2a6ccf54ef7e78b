//! Turns of a worker thread: what a thread does from one wake-up until no task is ready any more.
//!
//! The code and the data of one request are larger than a core's first caches. A thread with many requests is
//! therefore faster if it takes the same step of all of them one after the other: a fifth less CPU on one core, and half as
//! many requests again on two, where the scheduler's memory then moves once for many of them
//! (`docs/decisions/100-requests-of-one-turn.md`). A request that is alone in its turn loses nothing.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

/// Most values that wait for the end of a turn: under full load a thread may never be at rest.
const MAX_LATER: usize = 32;

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
    later: RefCell<Vec<Box<dyn Any>>>,
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

/// Drops the value at the end of this turn, or at once on a thread that is not a worker.
pub(in crate::proxy) fn drop_later(value: impl Any) {
    let is_full = TURN.with(|turn| {
        if !turn.is_worker.get() {
            return false;
        }
        let mut later = turn.later.borrow_mut();
        later.push(Box::new(value));
        later.len() >= MAX_LATER
    });
    if is_full {
        drop_all();
    }
}

/// Makes this thread a worker, which calls [`end`] before it rests.
pub(super) fn start_thread() {
    TURN.with(|turn| turn.is_worker.set(true));
}

/// Ends the turn.
pub(super) fn end() {
    drop_all();
    TURN.with(|turn| turn.requests.iter().for_each(|requests| requests.set(0)));
}

/// Drops what waits for the end of the turn. One that panics stops neither the others nor the thread.
fn drop_all() {
    for value in TURN.with(|turn| turn.later.take()) {
        let _reported = catch_unwind(AssertUnwindSafe(|| drop(value)));
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::runtime::{Builder, Runtime};
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    /// Makes the test's thread a worker.
    fn worker() -> Runtime {
        start_thread();
        Builder::new_current_thread().enable_all().on_thread_park(end).build().unwrap()
    }

    /// Writes its name when it is dropped.
    struct Ends(&'static str, Rc<RefCell<Vec<&'static str>>>);

    impl Drop for Ends {
        fn drop(&mut self) {
            self.1.borrow_mut().push(self.0);
            assert_ne!(self.0, "panics");
        }
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

    #[test]
    fn a_turn_ends_before_the_thread_rests() {
        let seen = Rc::<RefCell<Vec<&str>>>::default();
        worker().block_on(async {
            for name in ["first", "panics", "last"] {
                drop_later(Ends(name, Rc::clone(&seen)));
            }
            take_together(Step::Send).await;
            assert!(seen.borrow().is_empty(), "the turn goes on");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            assert_eq!(*seen.borrow(), ["first", "panics", "last"]);
            TURN.with(|turn| assert_eq!(turn.requests[Step::Send as usize].get(), 0));
        });
    }

    #[test]
    fn a_turn_without_end_holds_a_bounded_number_of_values() {
        let seen = Rc::<RefCell<Vec<&str>>>::default();
        worker().block_on(async {
            for number in 1..=2 * MAX_LATER {
                drop_later(Ends("one", Rc::clone(&seen)));
                assert_eq!(seen.borrow().len(), number / MAX_LATER * MAX_LATER);
                yield_now().await;
            }
        });
    }

    #[test]
    fn other_threads_drop_at_once() {
        let seen = Rc::<RefCell<Vec<&str>>>::default();
        drop_later(Ends("now", Rc::clone(&seen)));
        assert_eq!(*seen.borrow(), ["now"]);
    }
}
