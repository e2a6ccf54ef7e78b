//! Answers to triggers, from the signal of a pool.

use std::fmt;

use tokio::time::Instant;

use crate::scaler::pool_signal::PoolSignal;
use crate::scaler::trigger::{TriggerMode, TriggerQuery};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TriggerAnswer {
    /// Whether the pool must have at least one replica.
    pub(super) active: bool,
    /// The number asked for; `None` = not known.
    pub(super) value: Option<u64>,
    pub(super) reason: AnswerReason,
}

/// Source of an answer's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AnswerReason {
    pub(super) name: &'static str,
    /// Whether the trigger's `minReplicas` or `maxReplicas` changed the number.
    pub(super) clamped: bool,
}

impl fmt::Display for AnswerReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if self.clamped { f.write_str(", clamp") } else { Ok(()) }
    }
}

/// Answers a trigger about its pool at `now`. The desired number is at least one while the pool is
/// active.
pub(super) fn answer(ask: &TriggerQuery, row: &PoolSignal, now: Instant) -> TriggerAnswer {
    let need = row.demand;
    let kept = row.last_busy.is_some_and(|last| now.saturating_duration_since(last) < ask.keep_last);
    let active =
        need.in_flight > 0 || need.has_due_jobs_above(ask.activation) || need.keep_above_zero || kept;
    let raw = |value, name| (Some(value), AnswerReason { name, clamped: false });
    let (value, reason) = match ask.mode {
        TriggerMode::Desired => {
            let wanted = need.desired.map(|desired| u64::from(desired).max(u64::from(active)));
            let bounded = wanted.map(|wanted| wanted.max(ask.min).min(ask.max.unwrap_or(u64::MAX)));
            (bounded, AnswerReason { name: need.reason, clamped: bounded != wanted })
        }
        TriggerMode::Queue => raw(need.queued, "queue"),
        TriggerMode::Tokens => raw(need.queued_tokens, "tokens"),
        TriggerMode::InFlight => raw(need.in_flight, "inflight"),
    };
    TriggerAnswer { active, value, reason }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::core::autoscale::replica_demand::ReplicaDemand;
    use crate::core::model::ids::PoolId;

    fn row(desired: Option<u32>, queued: u64, in_flight: u64) -> PoolSignal {
        let need = ReplicaDemand {
            pool: PoolId::new(0),
            desired,
            reason: "sustained",
            keep_above_zero: false,
            ready: 1,
            queued,
            due: true,
            queued_tokens: queued * 100,
            in_flight,
            cold_start: None,
        };
        PoolSignal { demand: need, last_busy: None }
    }

    fn ask(mode: TriggerMode) -> TriggerQuery {
        TriggerQuery {
            pool: "p".to_owned(),
            mode,
            target: 1.0,
            activation: 0,
            keep_last: Duration::ZERO,
            min: 0,
            max: None,
            unknown_keys: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_is_active_while_it_has_work_and_for_a_while_after() {
        let now = Instant::now();
        let told = |ask: &TriggerQuery, row: &PoolSignal| answer(ask, row, now).active;
        let plain = ask(TriggerMode::Desired);
        assert!(!told(&plain, &row(Some(0), 0, 0)));
        assert!(told(&plain, &row(Some(0), 1, 0)) && told(&plain, &row(Some(0), 0, 1)));
        let lazy = TriggerQuery { activation: 3, ..plain.clone() };
        assert!(!told(&lazy, &row(Some(0), 3, 0)) && told(&lazy, &row(Some(0), 4, 0)));
        assert!(told(&lazy, &row(Some(0), 0, 1)), "never inactive while something runs");
        let kept = TriggerQuery { keep_last: Duration::from_secs(10), ..plain };
        let idle = |seconds| {
            let last_busy = now.checked_sub(Duration::from_secs(seconds));
            PoolSignal { last_busy, ..row(Some(0), 0, 0) }
        };
        tokio::time::advance(Duration::from_secs(60)).await;
        let now = Instant::now();
        let ago = |seconds| PoolSignal {
            last_busy: Some(now - Duration::from_secs(seconds)),
            ..row(Some(0), 0, 0)
        };
        assert!(answer(&kept, &ago(9), now).active && !answer(&kept, &ago(10), now).active);
        assert!(!told(&kept, &PoolSignal { last_busy: None, ..idle(0) }));
        let mut held = row(Some(3), 0, 0);
        held.demand.keep_above_zero = true;
        assert!(told(&kept, &held));
    }

    #[test]
    fn raw_numbers_are_as_they_are() {
        let now = Instant::now();
        let told = |mode| answer(&ask(mode), &row(None, 7, 3), now).value;
        assert_eq!(told(TriggerMode::Queue), Some(7));
        assert_eq!(told(TriggerMode::Tokens), Some(700));
        assert_eq!(told(TriggerMode::InFlight), Some(3));
        assert_eq!(told(TriggerMode::Desired), None, "not known is not zero");
    }

    #[test]
    fn bounds_of_the_trigger_are_said() {
        let now = Instant::now();
        let bound = TriggerQuery { min: 2, max: Some(5), ..ask(TriggerMode::Desired) };
        for (desired, value, reason) in
            [(1, 2, "sustained, clamp"), (3, 3, "sustained"), (9, 5, "sustained, clamp")]
        {
            let told = answer(&bound, &row(Some(desired), 1, 0), now);
            assert_eq!((told.value, &*told.reason.to_string()), (Some(value), reason));
        }
    }

    proptest! {
        #[test]
        fn what_is_active_asks_for_one_at_least(
            desired in any::<u32>(), queued in 0_u64..3, in_flight in 0_u64..3, min in 0_u64..4, extra in 0_u64..4,
            bounded in any::<bool>(),
        ) {
            let ask = TriggerQuery { min, max: bounded.then_some((min + extra).max(1)), ..ask(TriggerMode::Desired) };
            let told = answer(&ask, &row(Some(desired), queued, in_flight), Instant::now());
            let value = told.value.unwrap();
            prop_assert_eq!(told.active, queued > 0 || in_flight > 0);
            prop_assert!(!told.active || value >= 1);
            prop_assert!(value >= min && ask.max.is_none_or(|max| value <= max));
        }
    }
}
