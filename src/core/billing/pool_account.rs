//! A pool's time: how long its replicas were there, and how much of that they
//! worked.
//!
//! Money comes of one sum for each pool, to which stays and idle time both add,
//! and of which each is told the whole units that it completes. So what was
//! billed and what was idle add up to the time of the replicas at their price,
//! whatever is asked when. A stay is charged at the price that holds when it
//! ends.

use std::time::Duration;

use crate::core::billing::bill::IdleTime;
use crate::core::model::ids::PoolId;
use crate::core::model::time::Tick;
use crate::core::placement::rules::Price;

/// What one replica counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaPresence {
    /// It is there: not asleep, not gone; or it has work, whatever else it is.
    pub present: bool,
    /// It has work.
    pub busy: bool,
}

/// Sums over the replicas of a pool since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolTimes {
    /// Time that they were there.
    pub present: Duration,
    /// Of it, time in which they had work.
    pub busy: Duration,
}

/// One pool's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolAccount {
    price: Option<Price>,
    present: u32,
    busy: u32,
    last: Tick,
    times: PoolTimes,
    /// Idle time that was not told yet, and the same times its price.
    idle: Duration,
    idle_cost: u128,
    /// What was too little to be told in money.
    carry: u128,
}

impl PoolAccount {
    /// Each of its replicas costs so much from now on.
    pub fn set_price(&mut self, now: Tick, price: Option<Price>) {
        self.advance(now);
        self.price = price;
    }

    /// A replica counts as something else from now on.
    pub fn recount(&mut self, now: Tick, before: ReplicaPresence, after: ReplicaPresence) {
        self.advance(now);
        self.present = self.present + u32::from(after.present) - u32::from(before.present);
        self.busy = self.busy + u32::from(after.busy) - u32::from(before.busy);
    }

    /// Replicas that are there, and those of them that have work.
    #[must_use]
    pub const fn counts(&self) -> (u32, u32) {
        (self.present, self.busy)
    }

    /// What an hour of a replica costs.
    #[must_use]
    pub const fn price(&self) -> Option<Price> {
        self.price
    }

    /// Charges a part of a replica's time; returns what it costs, in 1e-9 of
    /// the currency.
    pub fn charge(&mut self, time: Duration) -> u64 {
        self.money(self.cost(time))
    }

    /// The idle time since this was last asked.
    pub fn take_idle(&mut self, now: Tick, pool: PoolId) -> IdleTime {
        self.advance(now);
        let (time, cost) = (self.idle, self.idle_cost);
        (self.idle, self.idle_cost) = (Duration::ZERO, 0);
        IdleTime { pool, time, price: self.price, money: self.money(cost) }
    }

    /// The sums so far.
    #[must_use]
    pub fn times(&self, now: Tick) -> PoolTimes {
        let passed = now.since(self.last);
        PoolTimes {
            present: self.times.present.saturating_add(times(passed, self.present)),
            busy: self.times.busy.saturating_add(times(passed, self.busy)),
        }
    }

    fn advance(&mut self, now: Tick) {
        let passed = now.since(self.last);
        let idle = times(passed, self.present.saturating_sub(self.busy));
        self.times = self.times(now);
        self.idle = self.idle.saturating_add(idle);
        self.idle_cost += self.cost(idle);
        self.last = self.last.max(now);
    }

    fn cost(&self, time: Duration) -> u128 {
        time.as_nanos() * u128::from(self.price.map_or(0, Price::millionths))
    }

    fn money(&mut self, cost: u128) -> u64 {
        let sum = self.carry + cost;
        self.carry = sum % Price::UNIT;
        u64::try_from(sum / Price::UNIT).unwrap_or(u64::MAX)
    }
}

fn times(passed: Duration, count: u32) -> Duration {
    passed.saturating_mul(count)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    const POOL: PoolId = PoolId::new(0);
    const HERE: ReplicaPresence = ReplicaPresence { present: true, busy: false };
    const BUSY: ReplicaPresence = ReplicaPresence { present: true, busy: true };

    #[test]
    fn an_hour_costs_its_price() {
        let mut account = PoolAccount::default();
        account.set_price(Tick::ZERO, Price::new(2.5));
        account.recount(Tick::ZERO, ReplicaPresence::default(), HERE);
        let hour = Duration::from_secs(3_600);
        account.recount(Tick::ZERO + hour, HERE, BUSY);
        let idle = account.take_idle(Tick::ZERO + hour, POOL);
        assert_eq!((idle.time, idle.money), (hour, 2_500_000_000));
        assert_eq!(account.charge(hour), 2_500_000_000);
        let times = account.times(Tick::ZERO + 3 * hour);
        assert_eq!((times.present, times.busy), (3 * hour, 2 * hour));
        assert_eq!(account.take_idle(Tick::ZERO + 3 * hour, POOL).money, 0, "it was busy all the time");
    }

    proptest! {
        /// Whatever is asked when: what was charged and what was idle is the time
        /// of the replicas at their price, to less than one unit.
        #[test]
        fn charged_and_idle_add_up(price in 0.0..500.0_f64, steps in vec((0_u64..9_000_000_000, 0_usize..4), 1..100)) {
            let mut account = PoolAccount::default();
            account.set_price(Tick::ZERO, Price::new(price));
            let (mut now, mut replicas, mut since) = (Tick::ZERO, [ReplicaPresence::default(); 3], [Tick::ZERO; 3]);
            let mut money: u64 = 0;
            for (passed, which) in steps {
                now += Duration::from_nanos(passed);
                let Some(replica) = replicas.get_mut(which) else {
                    money += account.take_idle(now, POOL).money;
                    continue;
                };
                let next = match *replica { HERE => BUSY, BUSY => ReplicaPresence::default(), _ => HERE };
                account.recount(now, *replica, next);
                if replica.busy {
                    money += account.charge(now.since(since[which]));
                }
                (*replica, since[which]) = (next, now);
            }
            for (replica, since) in replicas.iter().zip(since).filter(|(replica, _)| replica.busy) {
                account.recount(now, *replica, ReplicaPresence::default());
                money += account.charge(now.since(since));
            }
            money += account.take_idle(now, POOL).money;
            let all = account.cost(account.times(now).present);
            prop_assert_eq!(u128::from(money), all / Price::UNIT);
        }
    }
}
