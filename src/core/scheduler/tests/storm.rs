//! All engines refuse everything for a while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::core::event::{Action, Event, Fault, Outcome};
use crate::core::ids::JobId;
use crate::core::job::{Prefix, Usage};
use crate::core::scheduler::Scheduler;
use crate::core::scheduler::tests::{policy, spec, used};
use crate::core::time::Tick;

const REPLICAS: usize = 8;
/// One job each so many milliseconds.
const EVERY: u64 = 10;
const STORM_ENDS: u64 = 20_000;
/// An engine's first token after so many milliseconds.
const FIRST_TOKEN: u64 = 50;

/// What came of the storm.
struct After {
    jobs: u64,
    tries: u64,
    /// When the last replica had its first answer, milliseconds.
    recovered: u64,
    waiting: usize,
}

/// Steps of a millisecond; a refusal takes one.
fn storm(retry_after: Option<Duration>) -> After {
    let mut scheduler = Scheduler::new(Arc::new(policy(&[&[16; REPLICAS]], &[&[0]])));
    let mut refused = Vec::new();
    let mut started: VecDeque<(u64, JobId, usize)> = VecDeque::new();
    let (mut tries, mut jobs) = (0, 0);
    let mut answered = [None; REPLICAS];
    let mut out = Vec::new();
    for millis in 0..STORM_ENDS + 10_000 {
        let now = Tick::from_millis(millis);
        if millis % EVERY == 0 {
            jobs += 1;
            scheduler.handle(now, Event::Arrived(spec(jobs), Prefix::default()), &mut out);
        }
        if scheduler.next_deadline().is_some_and(|at| at <= now) {
            scheduler.handle(now, Event::Timer, &mut out);
        }
        for job in std::mem::take(&mut refused) {
            let outcome = Outcome::Failed { fault: Fault::Busy { retry_after }, usage: Usage::Unknown };
            scheduler.handle(now, Event::Finished { job, outcome }, &mut out);
        }
        while started.front().is_some_and(|&(at, ..)| at <= millis) {
            let Some((_, job, replica)) = started.pop_front() else { break };
            answered[replica] = answered[replica].or(Some(millis));
            scheduler.handle(now, Event::FirstToken { job }, &mut out);
            let outcome = Outcome::Done(used(10, 1));
            scheduler.handle(now, Event::Finished { job, outcome }, &mut out);
        }
        for action in out.drain(..) {
            let Action::Dispatch { job, replica, .. } = action else { continue };
            tries += 1;
            match millis < STORM_ENDS {
                true => refused.push(job),
                false => started.push_back((millis + FIRST_TOKEN, job, replica.index())),
            }
        }
    }
    assert_eq!(scheduler.audit(), []);
    let recovered = answered.into_iter().map(|at| at.expect("every replica serves again")).max();
    let waiting = scheduler.jobs() - started.len();
    After { jobs, tries, recovered: recovered.expect("replicas"), waiting }
}

#[test]
fn engines_that_refuse_all_are_not_asked_by_everybody() {
    for retry_after in [None, Some(Duration::from_millis(100)), Some(Duration::from_secs(1))] {
        let after = storm(retry_after);
        assert!(after.tries * 10 <= after.jobs * 12, "{} tries of {} jobs", after.tries, after.jobs);
        assert!(after.recovered <= STORM_ENDS + 2_000, "served again only at {} ms", after.recovered);
        assert_eq!(after.waiting, 0, "the queue is empty again");
    }
}
