//! Tests of limits, by example and by property.

use std::time::Duration;

use proptest::prelude::{Strategy, prop, prop_assert, proptest};

use super::rule::{LimitId, LimitPeriod, LimitRule, LimitScope, LimitUnit, UnitAmounts, UsedAmounts};
use super::{LimitExceeded, LimitGrant, LimitReservation, LimitSubject, UsageLimits};
use crate::model::ids::{KeyId, ModelId, TenantId};
use crate::model::time::Tick;

const TENANT: TenantId = TenantId::new(1);
const PAYER: LimitSubject = LimitSubject { tenant: TENANT, key: Some(KeyId::new(3)), model: ModelId::new(2) };
const NOW: Tick = Tick::from_millis(5_000);

const fn id(unit: LimitUnit, period: LimitPeriod) -> LimitId {
    LimitId { scope: LimitScope::Tenant(TENANT), unit, period, shadow: false }
}

const fn rule(unit: LimitUnit, period: LimitPeriod, amount: u64) -> LimitRule {
    LimitRule { id: id(unit, period), amount }
}

fn budgets(rules: &[LimitRule]) -> UsageLimits {
    let mut budgets = UsageLimits::default();
    budgets.apply(rules);
    budgets
}

const fn tokens(input: u64, output: u64) -> UnitAmounts {
    UnitAmounts { input, output, gpu: 0, money: 0 }
}

const fn used_by(amounts: UnitAmounts) -> UsedAmounts {
    UsedAmounts { amounts, tokens_known: true }
}

fn used(budgets: &UsageLimits, id: LimitId) -> u64 {
    budgets.entries[&id].account.used()
}

#[test]
fn five_calls_at_once_do_not_pass_a_limit_together() {
    let mut budgets = budgets(&[rule(LimitUnit::Tokens, LimitPeriod::Minute, 100)]);
    let calls: Vec<_> = (0..5).map(|_| budgets.reserve(&PAYER, &tokens(10, 123), NOW)).collect();
    let granted = calls.iter().filter(|call| call.is_ok()).count();
    assert_eq!(granted, 1);
    let refused = calls[4].clone().unwrap_err();
    assert_eq!((refused.limit, refused.asked, refused.left), (100, 100, 0));
    // Running jobs may use less than they reserved; used amounts are free after a minute.
    assert_eq!(refused.retry_after, Some(Duration::from_secs(1)));
    let reservation = calls.into_iter().flatten().next().unwrap().reservation;
    budgets.settle(reservation, &used_by(tokens(10, 90)), NOW);
    let refused = budgets.reserve(&PAYER, &tokens(10, 123), NOW).unwrap_err();
    assert_eq!(refused.retry_after, Some(Duration::from_millis(60_250)));
}

#[test]
fn work_before_the_engines_counts_in_minutes_and_not_in_days() {
    let day = rule(LimitUnit::Requests, LimitPeriod::Day, 100);
    let requests = rule(LimitUnit::Requests, LimitPeriod::Minute, 3);
    let prompts = rule(LimitUnit::InputTokens, LimitPeriod::Minute, 1_000);
    let mut budgets = budgets(&[day, requests, prompts, rule(LimitUnit::Requests, LimitPeriod::Now, 2)]);
    budgets.charge_minutes(&PAYER, &tokens(400, 0), NOW);
    budgets.charge_minutes(&PAYER, &tokens(5_000, 0), NOW);
    assert_eq!(
        (used(&budgets, day.id), used(&budgets, requests.id), used(&budgets, prompts.id)),
        (0, 2, 1_400)
    );
    let refused = budgets.reserve(&PAYER, &tokens(1, 0), NOW).unwrap_err();
    assert_eq!((refused.rule, refused.retry_after), (prompts.id, Some(Duration::from_millis(60_250))));
    let later = NOW + Duration::from_secs(61);
    budgets.charge_minutes(&PAYER, &tokens(1, 0), later);
    assert_eq!((used(&budgets, requests.id), used(&budgets, prompts.id)), (1, 1), "for a minute each");
    assert!(budgets.is_balanced(std::iter::empty::<&LimitReservation>()));
}

#[test]
fn a_guess_that_is_larger_than_the_limit_does_not_refuse_for_ever() {
    let mut budgets = budgets(&[rule(LimitUnit::Tokens, LimitPeriod::Minute, 60)]);
    let LimitGrant { reservation, .. } = budgets.reserve(&PAYER, &tokens(5, 100_000), NOW).unwrap();
    budgets.settle(reservation, &used_by(tokens(5, 20)), NOW);
    assert_eq!(used(&budgets, id(LimitUnit::Tokens, LimitPeriod::Minute)), 25);
    let refused = budgets.reserve(&PAYER, &tokens(61, 0), NOW).unwrap_err();
    assert_eq!((refused.retry_after, refused.asked), (None, 61), "this prompt never fits");
}

#[test]
fn nothing_is_free() {
    let limits = [
        LimitUnit::Requests,
        LimitUnit::InputTokens,
        LimitUnit::Tokens,
        LimitUnit::GpuTime,
        LimitUnit::Money,
    ];
    for unit in limits {
        let mut budgets = budgets(&[rule(unit, LimitPeriod::Minute, 10)]);
        let granted = (0..1_000).filter(|_| budgets.reserve(&PAYER, &tokens(0, 0), NOW).is_ok()).count();
        assert_eq!(granted, 10, "{unit:?}");
    }
    let mut output = budgets(&[rule(LimitUnit::OutputTokens, LimitPeriod::Minute, 10)]);
    assert!((0..100).all(|_| output.reserve(&PAYER, &tokens(5, 0), NOW).is_ok()), "it has no output");
    let mut none = budgets(&[rule(LimitUnit::Requests, LimitPeriod::Minute, 0)]);
    assert_eq!(none.reserve(&PAYER, &tokens(0, 0), NOW).unwrap_err().retry_after, None);
}

#[test]
fn all_scopes_count_and_the_one_that_takes_longest_is_told() {
    let key = LimitRule {
        id: LimitId {
            scope: LimitScope::Key(KeyId::new(3)),
            unit: LimitUnit::Requests,
            period: LimitPeriod::Minute,
            shadow: false,
        },
        amount: 1,
    };
    let model = LimitRule {
        id: LimitId {
            scope: LimitScope::Model(TENANT, ModelId::new(2)),
            unit: LimitUnit::Requests,
            period: LimitPeriod::Day,
            shadow: false,
        },
        amount: 1,
    };
    let mut budgets = budgets(&[rule(LimitUnit::Requests, LimitPeriod::Now, 1), key, model]);
    budgets.set_end(LimitPeriod::Day, NOW + Duration::from_secs(3_600));
    let granted = budgets.reserve(&PAYER, &tokens(1, 1), NOW).unwrap();
    let refused = budgets.reserve(&PAYER, &tokens(1, 1), NOW).unwrap_err();
    assert_eq!((refused.rule, refused.retry_after), (model.id, Some(Duration::from_secs(3_600))));
    let other = LimitSubject { key: None, model: ModelId::new(9), ..PAYER };
    let refused = budgets.reserve(&other, &tokens(1, 1), NOW).unwrap_err();
    assert_eq!(refused.rule, id(LimitUnit::Requests, LimitPeriod::Now));
    budgets.settle(granted.reservation, &used_by(tokens(1, 1)), NOW);
    assert!(budgets.reserve(&other, &tokens(1, 1), NOW).is_ok());
    let stranger = LimitSubject { tenant: TenantId::new(7), key: None, model: ModelId::new(2) };
    assert!((0..100).all(|_| budgets.reserve(&stranger, &tokens(1, 1), NOW).unwrap().reservation.is_empty()));
}

#[test]
fn a_refusal_reserves_nothing() {
    let mut budgets = budgets(&[
        rule(LimitUnit::Requests, LimitPeriod::Minute, 1_000),
        rule(LimitUnit::Tokens, LimitPeriod::Minute, 10),
    ]);
    assert!(budgets.reserve(&PAYER, &tokens(10, 0), NOW).is_ok());
    (0..50).for_each(|_| assert!(budgets.reserve(&PAYER, &tokens(1, 0), NOW).is_err()));
    assert_eq!(used(&budgets, id(LimitUnit::Requests, LimitPeriod::Minute)), 1);
}

#[test]
fn a_shadow_refuses_nothing_and_is_told() {
    let id = LimitId { shadow: true, ..id(LimitUnit::Tokens, LimitPeriod::Minute) };
    let shadow = LimitRule { id, amount: 10 };
    let mut budgets = budgets(&[shadow]);
    assert!(budgets.reserve(&PAYER, &tokens(10, 0), NOW).unwrap().shadowed.is_empty());
    let second = budgets.reserve(&PAYER, &tokens(10, 0), NOW).unwrap();
    assert_eq!(second.shadowed[..], [shadow.id]);
}

#[test]
fn unknown_use_counts_as_reserved_and_a_job_without_an_engine_as_nothing() {
    let day = id(LimitUnit::Tokens, LimitPeriod::Day);
    let mut budgets = budgets(&[
        rule(LimitUnit::Tokens, LimitPeriod::Day, 1_000),
        rule(LimitUnit::Requests, LimitPeriod::Day, 9),
    ]);
    let reservation =
        |budgets: &mut UsageLimits| budgets.reserve(&PAYER, &tokens(50, 50), NOW).unwrap().reservation;
    let unknown = reservation(&mut budgets);
    budgets.settle(unknown, &UsedAmounts::default(), NOW);
    assert_eq!(used(&budgets, day), 100);
    let waited = reservation(&mut budgets);
    budgets.give_back(waited, NOW);
    assert_eq!((used(&budgets, day), used(&budgets, id(LimitUnit::Requests, LimitPeriod::Day))), (100, 1));
}

#[test]
fn what_runs_over_midnight_counts_in_the_new_day() {
    let day = id(LimitUnit::Tokens, LimitPeriod::Day);
    let mut budgets = budgets(&[rule(LimitUnit::Tokens, LimitPeriod::Day, 1_000)]);
    budgets.restore(day, 700);
    let reservation = budgets.reserve(&PAYER, &tokens(100, 100), NOW).unwrap().reservation;
    assert!(budgets.reserve(&PAYER, &tokens(100, 100), NOW).is_err());
    budgets.start_period(LimitPeriod::Day, NOW + Duration::from_secs(86_400));
    assert_eq!(used(&budgets, day), 200);
    budgets.settle(reservation, &used_by(tokens(100, 20)), NOW);
    assert_eq!(used(&budgets, day), 120);
}

#[test]
fn a_reload_keeps_what_was_used() {
    let minute = id(LimitUnit::Tokens, LimitPeriod::Minute);
    let mut budgets = budgets(&[rule(LimitUnit::Tokens, LimitPeriod::Minute, 100)]);
    let first = budgets.reserve(&PAYER, &tokens(80, 0), NOW).unwrap().reservation;
    budgets.apply(&[
        rule(LimitUnit::Tokens, LimitPeriod::Minute, 50),
        rule(LimitUnit::Requests, LimitPeriod::Now, 5),
    ]);
    assert!(budgets.reserve(&PAYER, &tokens(1, 0), NOW).is_err());
    budgets.settle(first, &used_by(tokens(20, 0)), NOW);
    assert_eq!(used(&budgets, minute), 20);
    let second = budgets.reserve(&PAYER, &tokens(30, 0), NOW).unwrap().reservation;
    budgets.apply(&[]);
    assert!(budgets.is_empty());
    budgets.apply(&[rule(LimitUnit::Requests, LimitPeriod::Now, 5)]);
    let third = budgets.reserve(&PAYER, &tokens(1, 0), NOW).unwrap().reservation;
    budgets.settle(second, &UsedAmounts::default(), NOW);
    assert_eq!(
        used(&budgets, id(LimitUnit::Requests, LimitPeriod::Now)),
        1,
        "the closed account is not this one"
    );
    assert!(budgets.is_balanced([&third].into_iter()));
}

fn unit() -> impl Strategy<Value = LimitUnit> {
    prop::sample::select(LimitUnit::ALL.to_vec())
}

fn period() -> impl Strategy<Value = LimitPeriod> {
    prop::sample::select(vec![LimitPeriod::Now, LimitPeriod::Minute, LimitPeriod::Day, LimitPeriod::Month])
}

fn amounts() -> impl Strategy<Value = UnitAmounts> {
    (0_u64..60, 0_u64..60, 0_u64..60, 0_u64..60).prop_map(|(input, output, gpu, money)| UnitAmounts {
        input,
        output,
        gpu,
        money,
    })
}

proptest! {
    /// Jobs come and go in any order: what is reserved and used never passes a
    /// limit by more than one reservation where all stay within theirs, and
    /// nothing is held once all have ended.
    #[test]
    fn no_limit_is_passed_and_nothing_stays(
        limits in prop::collection::vec((unit(), period(), 120_u64..400), 1..6),
        steps in prop::collection::vec((amounts(), 0_u64..2_000, 0_u8..4, 0_usize..8), 1..150),
    ) {
        let rules: Vec<LimitRule> = limits.iter().map(|(unit, period, amount)| rule(*unit, *period, *amount)).collect();
        let mut budgets = budgets(&rules);
        let mut running: Vec<(LimitReservation, UnitAmounts)> = Vec::new();
        let mut now = NOW;
        for (wanted, gap, end, which) in steps {
            now += Duration::from_millis(gap);
            match budgets.reserve(&PAYER, &wanted, now) {
                Ok(granted) => running.push((granted.reservation, wanted)),
                Err(LimitExceeded { limit, asked, left, .. }) => prop_assert!(asked > left && left <= limit),
            }
            for (id, entry) in &budgets.entries {
                prop_assert!(entry.account.used() <= entry.rule.amount, "{id:?} {entry:?}");
            }
            if end > 0 && which < running.len() {
                let (reservation, wanted) = running.swap_remove(which);
                let half = UnitAmounts { output: wanted.output / 2, gpu: wanted.gpu / 2, ..wanted };
                match end {
                    1 => budgets.settle(reservation, &used_by(half), now),
                    2 => budgets.settle(reservation, &UsedAmounts::default(), now),
                    _ => budgets.give_back(reservation, now),
                }
            }
        }
        prop_assert!(budgets.is_balanced(running.iter().map(|(reservation, _)| reservation)));
        running.into_iter().for_each(|(reservation, _)| budgets.give_back(reservation, now));
        prop_assert!(budgets.is_balanced(std::iter::empty()));
    }
}
