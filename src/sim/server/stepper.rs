//! Stepper: the one task that moves an engine forward in real time.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::time::sleep_until;

use super::feed::GeneratedChoice;
use crate::engine::{EngineEvent, EngineEventKind};
use crate::server::core::{ServerCore, SimWork};
use penstock_core::model::time::Tick;

/// Largest timer lag that is made up. A step right after another starts at the
/// planned end of the last one, so that timer lag does not add up. Beyond this
/// lag the machine is too slow, and the engine's time follows the clock
/// instead.
const MAX_LAG: Duration = Duration::from_millis(250);

/// Steps the engine until it is stopped.
pub(super) async fn run(sim: Arc<ServerCore>) {
    let stopped = sim.stopped.clone();
    stopped.run_until_cancelled(run_steps(&sim)).await;
}

async fn run_steps(sim: &ServerCore) {
    let mut last_end: Option<Tick> = None;
    let mut events = Vec::new();
    let mut wakers = Vec::new();
    loop {
        let Some(end) = start_step(sim, last_end) else {
            last_end = None;
            sim.stepping.notified().await;
            continue;
        };
        if sim.now() < end {
            sleep_until(sim.instant(end)).await;
        } else {
            tokio::task::yield_now().await;
        }
        if !book_step(&mut sim.work.lock(), end, &mut events, &mut wakers) {
            last_end = None;
            sim.stepping.notified().await;
            continue;
        }
        for waker in wakers.drain(..) {
            waker.wake();
        }
        last_end = Some(end);
    }
}

fn start_step(sim: &ServerCore, last_end: Option<Tick>) -> Option<Tick> {
    let now = sim.now();
    let start = last_end.filter(|end| now.since(*end) < MAX_LAG).unwrap_or(now);
    let mut work = sim.work.lock();
    if work.is_still() {
        return None;
    }
    let end = work.engine.next_step(start)?;
    work.busy += end.since(start);
    Some(end)
}

/// Ends the step, unless the engine stands still; returns whether it ended.
fn book_step(work: &mut SimWork, end: Tick, events: &mut Vec<EngineEvent>, wakers: &mut Vec<Waker>) -> bool {
    if work.is_still() {
        return false;
    }
    work.engine.finish_step(end, events);
    for event in events.drain(..) {
        let Some(target) = work.targets.get(&event.request) else { continue };
        let stats = &mut work.stats;
        let mut over = false;
        let waker = target.feed.update(target.base + event.choice as usize, |choice, cached| {
            match event.kind {
                EngineEventKind::Scheduled { cached_tokens } => {
                    if choice.scheduled.is_none() {
                        *cached += cached_tokens;
                    }
                    choice.scheduled.get_or_insert(event.at);
                }
                EngineEventKind::Token { last } => {
                    stats.token(target, choice, event.at);
                    take_token(choice, event.at);
                    choice.done = last;
                }
                EngineEventKind::Computed => choice.done = true,
                EngineEventKind::Preempted => {}
            }
            if choice.done {
                stats.finished(target, choice, event.at);
                over = true;
            }
        });
        wakers.extend(waker);
        if over && target.feed.done(target.base..target.base + target.choices) {
            work.targets.remove(&event.request);
        }
    }
    true
}

fn take_token(choice: &mut GeneratedChoice, at: Tick) {
    if choice.tokens == 0 {
        choice.first_token = at;
    }
    choice.tokens += 1;
    choice.last_token = at;
}
