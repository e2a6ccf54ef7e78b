//! Time limits of one connection. A timer is armed only while the connection waits for something,
//! and is moved only when it fires. A read therefore costs no timer call.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::config::settings::ListenerLimits;

/// Interval at which the connection checks whether a client whose input is not read has left.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// The event that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnWait {
    /// The first byte of a request.
    Idle,
    /// The rest of a head.
    Head,
    /// The next bytes of a body.
    Body,
    /// The next check of whether the client has left.
    Watch,
}

/// Time limits of a connection's waits. The clock measures one wait at a time.
#[derive(Debug)]
pub(super) struct ConnClock {
    idle: Duration,
    head: Duration,
    body: Duration,
    waiting: Option<(ConnWait, Instant)>,
    alarm: Alarm,
}

impl ConnClock {
    pub(super) fn new(limits: &ListenerLimits) -> Self {
        Self {
            idle: limits.idle_timeout,
            head: limits.head_timeout,
            body: limits.body_timeout,
            waiting: None,
            alarm: Alarm::default(),
        }
    }

    /// Ends the wait, if there is one.
    pub(super) fn clear(&mut self) {
        self.waiting = None;
    }

    /// Whether `wait` has exceeded its limit. The wait starts with the first call after
    /// [`Self::clear`] or after a call for another wait. If the result is false, the task is woken
    /// when the limit is reached.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>, wait: ConnWait) -> bool {
        let deadline = match self.waiting {
            Some((same, deadline)) if same == wait => deadline,
            _ => Instant::now() + self.limit(wait),
        };
        self.waiting = Some((wait, deadline));
        self.alarm.poll_expired(cx, deadline)
    }

    fn limit(&self, wait: ConnWait) -> Duration {
        match wait {
            ConnWait::Idle => self.idle,
            ConnWait::Head => self.head,
            ConnWait::Body => self.body,
            ConnWait::Watch => WATCH_INTERVAL,
        }
    }
}

/// A timer that is created on first use.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Whether `deadline` has passed. If not, the task is woken when `deadline` passes.
    pub(super) fn poll_expired(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() == deadline {
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }
}
