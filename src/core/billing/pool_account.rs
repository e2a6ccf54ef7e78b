//! Pool account: how long the replicas of a pool were present, and how long they had work.
//!
//! Each pool has one sum of cost, to which attempts and idle time both add. Each bill takes the whole
//! units that it completes in that sum. Billed time and idle time therefore add up to the replicas'
//! time at their price, in whatever order they are asked for. An attempt is charged at the price
//! in force when it ends.

use std::time::Duration;

use crate::billing::bill::{AttemptBill, IdleTime};
use crate::model::ids::{PoolId, ReplicaId};
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::placement::rules::Price;

/// How one replica counts in its pool's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaPresence {
    /// The replica is neither asleep nor gone. A replica with work is always present.
    pub present: bool,
    /// The replica has work.
    pub busy: bool,
}

/// Sums over the replicas of a pool since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolTimes {
    /// Time in which replicas were present.
    pub present: Duration,
    /// The part of `present` in which replicas had work.
    pub busy: Duration,
}

/// Account of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolAccount {
    price: Option<Price>,
    present: u32,
    busy: u32,
    last: Tick,
    times: PoolTimes,
    /// Idle time that was not reported yet. `idle_cost` is the same time multiplied by its price.
    idle: Duration,
    idle_cost: u128,
    /// Cost that is less than one whole unit and was not charged yet.
    carry: u128,
}

impl PoolAccount {
    /// Sets the price of each replica from now on.
    pub fn set_price(&mut self, now: Tick, price: Option<Price>) {
        self.advance(now);
        self.price = price;
    }

    /// Changes how a replica counts from now on.
    pub fn change_presence(&mut self, now: Tick, before: ReplicaPresence, after: ReplicaPresence) {
        self.advance(now);
        self.present = self.present + u32::from(after.present) - u32::from(before.present);
        self.busy = self.busy + u32::from(after.busy) - u32::from(before.busy);
    }

    /// Replicas that are present, and the number of them that have work.
    pub const fn counts(&self) -> (u32, u32) {
        (self.present, self.busy)
    }

    /// Price of an hour of a replica.
    pub const fn price(&self) -> Option<Price> {
        self.price
    }

    /// Charges a part of a replica's time; returns its cost in 1e-9 of the currency.
    pub fn charge(&mut self, time: Duration) -> u64 {
        self.money(self.cost(time))
    }

    /// Takes the idle time since the last call.
    pub fn take_idle(&mut self, now: Tick, pool: PoolId) -> IdleTime {
        self.advance(now);
        let (time, cost) = (self.idle, self.idle_cost);
        (self.idle, self.idle_cost) = (Duration::ZERO, 0);
        IdleTime { pool, time, price: self.price, money: self.money(cost) }
    }

    /// The sums up to `now`.
    pub fn replica_time(&self, now: Tick) -> PoolTimes {
        let passed = now.since(self.last);
        PoolTimes {
            present: self.times.present.saturating_add(times(passed, self.present)),
            busy: self.times.busy.saturating_add(times(passed, self.busy)),
        }
    }

    fn advance(&mut self, now: Tick) {
        let passed = now.since(self.last);
        let idle = times(passed, self.present.saturating_sub(self.busy));
        self.times = self.replica_time(now);
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

/// Accounts of all pools, including pools that are no longer in the policy.
#[derive(Debug, Clone, Default)]
pub struct PoolAccounts(Vec<PoolAccount>);

impl PoolAccounts {
    /// Takes over the prices of a policy.
    pub fn apply(&mut self, policy: &Policy, now: Tick) {
        let count = self.0.len().max(policy.pools.capacity());
        self.0.resize(count, PoolAccount::default());
        for (id, _, row) in policy.pools.iter() {
            self.0[id.index()].set_price(now, row.traits.price);
        }
    }

    /// Changes how a replica counts in its pool's account. Returns false when the pool is unknown.
    pub fn change_presence(
        &mut self,
        pool: PoolId,
        now: Tick,
        before: ReplicaPresence,
        after: ReplicaPresence,
    ) -> bool {
        let account = self.0.get_mut(pool.index());
        account.map(|account| account.change_presence(now, before, after)).is_some()
    }

    /// Bill of an attempt that took this part of a replica's time.
    pub fn charge(&mut self, pool: PoolId, replica: ReplicaId, time: Duration) -> AttemptBill {
        let account = self.0.get_mut(pool.index());
        let (price, money) = account.map_or((None, 0), |account| (account.price(), account.charge(time)));
        AttemptBill { pool, replica, time, price, money, waste: None }
    }

    /// Takes the idle time of each pool since the last call.
    pub fn take_idle(&mut self, now: Tick) -> impl Iterator<Item = IdleTime> {
        let accounts = self.0.iter_mut().enumerate();
        let idle = accounts.map(move |(index, account)| account.take_idle(now, PoolId::from(index)));
        idle.filter(|idle| !idle.time.is_zero())
    }

    /// Time for which the pool's replicas were present and worked, since the start of the gateway.
    pub fn times(&self, pool: PoolId, now: Tick) -> PoolTimes {
        self.0.get(pool.index()).map_or_else(PoolTimes::default, |account| account.replica_time(now))
    }

    /// Replicas of each pool that are present, and the number of them that have work.
    pub fn counts(&self) -> impl Iterator<Item = (PoolId, (u32, u32))> {
        self.0.iter().enumerate().map(|(pool, account)| (PoolId::from(pool), account.counts()))
    }
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
        account.change_presence(Tick::ZERO, ReplicaPresence::default(), HERE);
        let hour = Duration::from_secs(3_600);
        account.change_presence(Tick::ZERO + hour, HERE, BUSY);
        let idle = account.take_idle(Tick::ZERO + hour, POOL);
        assert_eq!((idle.time, idle.money), (hour, 2_500_000_000));
        assert_eq!(account.charge(hour), 2_500_000_000);
        let times = account.replica_time(Tick::ZERO + 3 * hour);
        assert_eq!((times.present, times.busy), (3 * hour, 2 * hour));
        assert_eq!(account.take_idle(Tick::ZERO + 3 * hour, POOL).money, 0, "it was busy all the time");
    }

    proptest! {
        /// In whatever order bills are asked for: charged and idle time add up to the replicas'
        /// time at their price, to less than one unit.
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
                account.change_presence(now, *replica, next);
                if replica.busy {
                    money += account.charge(now.since(since[which]));
                }
                (*replica, since[which]) = (next, now);
            }
            for (replica, since) in replicas.iter().zip(since).filter(|(replica, _)| replica.busy) {
                account.change_presence(now, *replica, ReplicaPresence::default());
                money += account.charge(now.since(since));
            }
            money += account.take_idle(now, POOL).money;
            let all = account.cost(account.replica_time(now).present);
            prop_assert_eq!(u128::from(money), all / Price::UNIT);
        }
    }
}
