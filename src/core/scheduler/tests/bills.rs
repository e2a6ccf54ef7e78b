//! Tests of bills: by example, and that they add up.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

use crate::billing::bill::{AttemptBill, Waste, WasteCause};
use crate::limits::rule::{LimitId, LimitPeriod, LimitRule, LimitScope, LimitUnit};
use crate::model::event::{Action, EngineFault, Event, JobAction};
use crate::model::ids::{JobId, PoolId, ReplicaId, TenantId};
use crate::model::job::{JobSpec, JobUsage};
use crate::model::overrides::{Closed, Override, OverrideChange};
use crate::model::policy::{Policy, Pool};
use crate::model::reason::PreemptReason;
use crate::model::time::Tick;
use crate::placement::rules::{PoolTraits, Price};
use crate::scheduler::tests::edge::Edge;
use crate::scheduler::tests::worlds::{Rules, op, rules};
use crate::scheduler::tests::{World, policy, sent, spec, used};

const HOUR: u64 = 3_600_000;

/// The bill of the attempt that ended last.
fn bill(world: &World) -> AttemptBill {
    world.bills.last().unwrap().1
}

fn waste(world: &World) -> Option<(u64, WasteCause)> {
    bill(world).waste.map(|waste: Waste| (waste.tokens, waste.why))
}

/// Replicas of one pool that cost 3.6 an hour: a microunit a millisecond.
fn priced(replicas: &[u32]) -> Policy {
    let mut policy = policy(&[replicas], &[&[0]]);
    let pool = PoolId::new(0);
    let supply = PoolTraits { price: Price::new(3.6), ..PoolTraits::default() };
    let row = Pool { traits: supply, ..policy.pools.get(pool).unwrap().clone() };
    policy.pools.insert("p0", row);
    policy
}

#[test]
fn a_stream_is_billed_for_its_part_of_each_step() {
    let mut world = World::new(priced(&[4]));
    world.arrive(JobSpec { prompt_tokens: 99, ..spec(1) });
    world.now = Tick::from_millis(100);
    world.event(Event::FirstToken { job: JobId::new(1) });
    world.arrive(JobSpec { prompt_tokens: 99, ..spec(2) });
    world.now = Tick::from_millis(200);
    world.event(Event::FirstToken { job: JobId::new(2) });
    world.now = Tick::from_millis(300);
    world.done(1);
    // Alone, beside a prompt of 99 tokens, beside another stream.
    let first = bill(&world);
    let nearly = Duration::from_millis(100 + 1 + 50) - first.time;
    assert!(nearly <= Duration::from_nanos(1), "{nearly:?}");
    world.done(2);
    let second = bill(&world);
    assert_eq!(first.time + second.time, Duration::from_millis(300));
    assert_eq!(first.money + second.money, 300_000);
    assert_eq!((second.waste, second.price), (None, Price::new(3.6)));
}

#[test]
fn what_was_done_for_nobody_is_said() {
    let mut world = World::new(priced(&[1, 1]));
    world.arrive(spec(1));
    world.fail(1, EngineFault::Reset);
    assert_eq!(waste(&world), Some((10, WasteCause::Retry)));
    world.event(Event::Abandoned { job: JobId::new(1), usage: used(10, 7) });
    assert_eq!(waste(&world), Some((17, WasteCause::ClientGone)));

    let mut world = World::new(priced(&[1, 1]));
    world.arrive(spec(1));
    world.fail(1, EngineFault::Refused);
    assert_eq!(waste(&world), None, "it never came there");
    world.event(Event::FirstToken { job: JobId::new(1) });
    world.interrupt(1, EngineFault::Reset, 4);
    assert_eq!(waste(&world), Some((10, WasteCause::Interrupted)));

    let mut world = World::new(priced(&[1, 1]));
    let there = sent(&world.arrive(spec(1)))[0].1;
    let measure = OverrideChange::CloseReplica(ReplicaId::new(there), Closed::Drained);
    let set = Override { change: measure, until: Tick::NEVER, reason: "any".into() };
    let actions = world.whole_event(Event::Overridden(set));
    let at = |wanted: fn(&Action) -> bool| actions.iter().position(wanted);
    let recall =
        at(|action| matches!(action, Action::Job(JobAction::Preempt { why: PreemptReason::Drained, .. })));
    let waste = Some(Waste { tokens: 10, why: WasteCause::TakenBack });
    let billed = actions.iter().position(
        |action| matches!(action, Action::Job(JobAction::Billed { bill, .. }) if bill.waste == waste),
    );
    assert!(billed.is_some() && billed < recall, "the bill goes before: {actions:?}");
}

#[test]
fn what_nobody_used_is_told_once() {
    let mut world = World::new(priced(&[1, 1]));
    world.now = Tick::from_millis(HOUR);
    world.arrive(JobSpec { deadline: Tick::NEVER, ..spec(1) });
    world.now = Tick::from_millis(2 * HOUR);
    let mut idle = || -> Vec<(Duration, u64)> {
        let idle = world.scheduler.take_idle(world.now);
        idle.into_iter().map(|idle| (idle.time, idle.money)).collect()
    };
    assert_eq!(idle(), [(Duration::from_secs(3 * 3_600), 10_800_000_000)], "one of two worked for an hour");
    assert_eq!(idle(), [], "nothing since");
}

/// A limit that counts what each tenant is billed, and refuses nothing.
fn tally(unit: LimitUnit, tenant: u32) -> LimitRule {
    let scope = LimitScope::Tenant(TenantId::new(tenant));
    LimitRule { id: LimitId { scope, unit, period: LimitPeriod::Month, shadow: true }, amount: u64::MAX / 2 }
}

fn with_tally(mut rules: Rules, prices: &[f64]) -> Rules {
    for tenant in 0..5 {
        rules.limits.extend([LimitUnit::GpuTime, LimitUnit::Money].map(|unit| tally(unit, tenant)));
    }
    let supply = |(pool, price): (usize, &f64)| PoolTraits {
        price: Price::new(*price),
        ..rules.places.supplies.get(pool).copied().unwrap_or_default()
    };
    rules.places.supplies = prices.iter().enumerate().map(supply).collect();
    rules
}

/// What was billed, and what stayed idle, is what the replicas' time costs; and
/// what was billed is what was settled.
fn adds_up(edge: &mut Edge, prices: &[f64]) {
    edge.ask_idle();
    let mut settled: BTreeMap<(TenantId, LimitUnit), u64> = BTreeMap::new();
    for (tenant, bill) in &edge.bills {
        let nanos = u64::try_from(bill.time.as_nanos()).unwrap();
        *settled.entry((*tenant, LimitUnit::GpuTime)).or_default() += nanos;
        *settled.entry((*tenant, LimitUnit::Money)).or_default() += bill.money;
    }
    for status in edge.scheduler.limits(edge.now) {
        let LimitId { scope: LimitScope::Tenant(tenant), unit, period: LimitPeriod::Month, .. } =
            status.rule.id
        else {
            continue;
        };
        let used = status.rule.amount - status.left;
        assert_eq!(used, settled.get(&(tenant, unit)).copied().unwrap_or(0), "{tenant:?} {unit:?}");
    }
    for (pool, price) in prices.iter().enumerate() {
        let pool = PoolId::from(pool);
        let here = || edge.bills.iter().map(|(_, bill)| bill).filter(|bill| bill.pool == pool);
        let idle = || edge.idle.iter().filter(|idle| idle.pool == pool);
        let times = edge.scheduler.times(pool);
        assert_eq!(here().map(|bill| bill.time).sum::<Duration>(), times.busy, "each moment is billed once");
        assert_eq!(idle().map(|idle| idle.time).sum::<Duration>(), times.present - times.busy);
        let money = here().map(|bill| bill.money).sum::<u64>() + idle().map(|idle| idle.money).sum::<u64>();
        let present = u64::try_from(times.present.as_nanos()).unwrap();
        assert_eq!(money, Price::new(*price).unwrap().cost_of(present), "the fleet's hours at their rate");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Whatever happens: cancels, retries, continuations, recalls, preemptions,
    /// reloads, replicas that come and go.
    #[test]
    fn every_moment_is_billed_once_or_idle(
        worlds in vec(rules(), 1..4),
        prices in vec(0.0..20.0_f64, 3),
        ops in vec(op(), 1..160),
    ) {
        let worlds: Vec<Rules> = worlds.into_iter().map(|rules| with_tally(rules, &prices)).collect();
        let mut edge = Edge::new(&worlds);
        for (index, op) in ops.iter().enumerate() {
            edge.apply(op);
            if index % 7 == 0 {
                edge.ask_idle();
            }
        }
        edge.run_out();
        adds_up(&mut edge, &prices);
    }

    /// Nobody passes a limit on time by more than what was reserved.
    #[test]
    fn time_is_refused_when_it_is_spent(tokens in 1_u64..2_000, wait in 1_u64..5_000) {
        let mut rules = priced(&[8]);
        rules.limits = vec![LimitRule {
            id: LimitId { scope: LimitScope::Tenant(TenantId::new(0)), unit: LimitUnit::GpuTime, period: LimitPeriod::Day, shadow: false },
            amount: 10_000_000_000,
        }];
        let mut world = World::new(rules);
        let mut spent = Duration::ZERO;
        for id in 0..60 {
            let job = JobSpec { prompt_tokens: tokens, deadline: Tick::NEVER, ..spec(id) };
            let actions = world.arrive(job);
            if sent(&actions).is_empty() {
                break;
            }
            world.now += Duration::from_millis(wait);
            world.done(id);
            spent += bill(&world).time;
        }
        let limit = Duration::from_secs(10);
        let least = limit.saturating_sub(Duration::from_millis(2 * wait + 1_000));
        prop_assert!(spent >= least || spent >= Duration::from_millis(59 * wait), "{spent:?}");
        prop_assert!(spent <= limit + Duration::from_millis(wait), "{spent:?}");
        prop_assert_eq!(world.scheduler.unfinished(), 0);
    }
}

/// A limit on money counts tries that failed, too, and what nobody counted.
#[test]
fn failed_tries_are_paid_for() {
    let mut rules = priced(&[1, 1]);
    let scope = LimitScope::Tenant(TenantId::new(0));
    let id = LimitId { scope, unit: LimitUnit::Money, period: LimitPeriod::Day, shadow: false };
    rules.limits = vec![LimitRule { id, amount: 1_000_000_000 }];
    let mut world = World::new(rules);
    world.arrive(spec(1));
    world.now = Tick::from_millis(40);
    world.fail(1, EngineFault::Reset);
    world.now = Tick::from_millis(100);
    world.event(Event::Abandoned { job: JobId::new(1), usage: JobUsage::Unknown });
    let status = world.scheduler.limits(world.now)[0];
    assert_eq!(status.rule.amount - status.left, 100_000, "100 ms at 3.6 an hour");
}
