//! Connection wakers: wake-ups of an upstream connection that is driven by the task that uses it.
//!
//! The two ends of hyper's connection wake each other for every piece of data, and here both ends
//! live in one task. Most wake-ups of the task would come from the task itself, and each would poll
//! all layers only to find nothing. A wake-up that comes while the connection is being driven
//! therefore only causes one more drive. A task that is woken for another reason does not drive a
//! connection on which nothing has happened.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Most turns within one poll. After that, the task yields to other tasks.
const MAX_TURNS: u32 = 4;

/// The connection may have news. A wake-up goes to the task.
const AWAKE: u8 = 0;
/// The connection has had no news since the last turn. A wake-up goes to the task.
const ASLEEP: u8 = 1;
/// A turn runs. A wake-up requests another turn.
const TURNING: u8 = 2;
/// A turn runs, and another turn was requested.
const AGAIN: u8 = 3;

/// Waker that a connection gets in place of its task's waker.
pub(super) struct OwnWaker {
    shared: Arc<WakerState>,
    waker: Waker,
}

struct WakerState {
    state: AtomicU8,
    task: AtomicWaker,
}

impl OwnWaker {
    pub(super) fn new() -> Self {
        let shared = Arc::new(WakerState { state: AtomicU8::new(AWAKE), task: AtomicWaker::new() });
        let waker = Waker::from(Arc::clone(&shared));
        Self { shared, waker }
    }

    /// Polls `ask`, then `drive`, then `ask` again, until `ask` is ready or `drive` has nothing
    /// left to do. `drive` sees the effects of the first `ask`. After a ready result, the caller
    /// must poll again for the next one, as with a stream. A pending `ask` must be polled to its
    /// end before another `ask` is used.
    pub(super) fn poll<T>(
        &self,
        cx: &Context<'_>,
        mut ask: impl FnMut(&mut Context<'_>) -> Poll<T>,
        mut drive: impl FnMut(&mut Context<'_>),
    ) -> Poll<T> {
        self.shared.task.register(cx.waker());
        if self.shared.state.load(Ordering::Acquire) == ASLEEP {
            return Poll::Pending;
        }
        let own = &mut Context::from_waker(&self.waker);
        for _ in 0..MAX_TURNS {
            self.enter(TURNING);
            let mut answer = ask(own);
            if answer.is_pending() {
                self.enter(TURNING);
                drive(own);
                answer = ask(own);
            }
            if answer.is_ready() {
                self.enter(AWAKE);
                return answer;
            }
            if self.fall_asleep() {
                return Poll::Pending;
            }
        }
        self.enter(AWAKE);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Drops the task's waker.
    pub(super) fn forget(&self) {
        self.shared.task.take();
        self.enter(AWAKE);
    }

    /// Sets the state. The swap's ordering makes all writes before earlier wake-ups visible.
    fn enter(&self, state: u8) {
        self.shared.state.swap(state, Ordering::AcqRel);
    }

    fn fall_asleep(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.shared.state.compare_exchange(TURNING, ASLEEP, success, failure).is_ok()
    }
}

impl Wake for WakerState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let next = |state| Some(if state >= TURNING { AGAIN } else { AWAKE });
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        if before.is_ok_and(|state| state < TURNING) {
            self.task.wake();
        }
    }
}

impl fmt::Debug for OwnWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnWaker").field("state", &self.shared.state).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Count {
        fn get(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }
    }

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Release);
        }
    }

    fn task() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (Arc::clone(&count), Waker::from(count))
    }

    /// A poll that drives and finds nothing.
    fn drive(own: &OwnWaker, task: &Waker, mut drive: impl FnMut(&Waker)) {
        let outcome = own.poll(&Context::from_waker(task), |_| Poll::<()>::Pending, |cx| drive(cx.waker()));
        assert!(outcome.is_pending());
    }

    #[test]
    fn its_own_wake_ups_cost_a_turn_and_not_a_wake_up() {
        let (woken, waker) = task();
        let mut turns = 0;
        drive(&OwnWaker::new(), &waker, |own| {
            turns += 1;
            if turns == 1 {
                own.wake_by_ref();
            }
        });
        assert_eq!((turns, woken.get()), (2, 0));
    }

    #[test]
    fn what_is_asked_for_before_the_drive_costs_no_turn_of_its_own() {
        let (woken, waker) = task();
        let (mut asked, mut driven) = (0, 0);
        let ask = |cx: &mut Context<'_>| {
            asked += 1;
            if asked == 1 {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        };
        let _pending = OwnWaker::new().poll(&Context::from_waker(&waker), ask, |_| driven += 1);
        assert_eq!((asked, driven, woken.get()), (2, 1, 0));
    }

    #[test]
    fn nothing_is_driven_until_something_happens() {
        let (woken, waker) = task();
        let own = OwnWaker::new();
        let (mut turns, mut kept) = (0, None);
        for _ in 0..3 {
            drive(&own, &waker, |own| {
                turns += 1;
                kept = Some(own.clone());
            });
        }
        assert_eq!((turns, woken.get()), (1, 0));
        kept.unwrap().wake();
        drive(&own, &waker, |_| turns += 1);
        assert_eq!((turns, woken.get()), (2, 1));

        let answer = |_: &mut Context<'_>| Poll::Ready(7);
        own.forget();
        assert_eq!(own.poll(&Context::from_waker(&waker), answer, |_| {}), Poll::Ready(7));
        drive(&own, &waker, |_| turns += 1);
        assert_eq!(turns, 3, "an answer says nothing of what may follow");
    }

    #[test]
    fn wake_ups_reach_the_task_that_polled_last() {
        let ((first, first_waker), (second, second_waker)) = (task(), task());
        let own = OwnWaker::new();
        let mut kept = None;
        drive(&own, &first_waker, |own| kept = Some(own.clone()));
        drive(&own, &second_waker, |_| {});
        let kept = kept.unwrap();
        kept.wake_by_ref();
        assert_eq!((first.get(), second.get()), (0, 1));
        drive(&own, &second_waker, |_| {});
        own.forget();
        kept.wake_by_ref();
        assert_eq!(second.get(), 1);
    }

    #[test]
    fn one_that_never_rests_lets_others_run() {
        let (woken, waker) = task();
        let mut turns = 0;
        drive(&OwnWaker::new(), &waker, |own| {
            turns += 1;
            own.wake_by_ref();
        });
        assert_eq!((turns, woken.get()), (MAX_TURNS, 1));
    }

    #[test]
    fn no_wake_up_from_another_thread_is_lost() {
        let (woken, waker) = task();
        let own = OwnWaker::new();
        let mut kept = None;
        drive(&own, &waker, |own| kept = Some(own.clone()));
        let (kept, happened, rounds) = (kept.unwrap(), Arc::new(AtomicU32::new(0)), 20_000);
        let others = Arc::clone(&happened);
        let thread = std::thread::spawn(move || {
            for _ in 0..rounds {
                others.fetch_add(1, Ordering::Release);
                kept.wake_by_ref();
            }
        });
        // A task polls only when it was woken.
        let (mut seen, mut polled) = (0, 0);
        while seen < rounds {
            let over = thread.is_finished();
            let wakes = woken.get();
            if wakes == polled {
                assert!(!over, "lost after {seen}");
                std::hint::spin_loop();
                continue;
            }
            polled = wakes;
            drive(&own, &waker, |_| seen = happened.load(Ordering::Acquire));
        }
        thread.join().unwrap();
    }
}
