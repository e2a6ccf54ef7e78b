//! Past use: what tenants have used lately, which counts for less the longer ago it was.
//!
//! Fair shares forget what a tenant used before it had to wait. Where a class has a half-life for
//! use, a tenant that used less than the others lately has a larger weight until the difference is
//! gone, and one that used more a smaller weight. The factor is that of Slurm's fair-share formula,
//! `2^(-use / share)`, with the exponent doubled and 1 for a tenant that used just its share. It is
//! bounded, so that nobody is kept waiting for what was long ago.

use std::time::Duration;

use crate::model::ids::TenantId;
use crate::model::number_map::NumberMap;
use crate::model::time::Tick;

/// The factor of a tenant that used nothing lately.
const MOST: f64 = 4.0;
/// The least factor.
const LEAST: f64 = 1.0 / 16.0;
/// Half-lives after which the stored amounts are made small again.
const MAX_AGE: f64 = 64.0;
/// Tokens of use that are no longer worth remembering.
const NEGLIGIBLE: f64 = 1e-3;

/// A tenant, or the group of tenants with its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct UseHolder {
    pub(super) tenant: TenantId,
    pub(super) is_group: bool,
    /// The group in which it competes.
    pub(super) within: Option<TenantId>,
}

/// Use of one holder, or the sum over all who compete in a group.
#[derive(Debug, Clone, Copy, Default)]
struct DecayedUse {
    used: f64,
    /// The square of `used` over the weight.
    weighted: f64,
}

/// Decayed use of all tenants and groups. Instead of making old amounts smaller, each new amount is
/// multiplied by a factor that doubles in each half-life.
#[derive(Debug, Clone)]
pub(super) struct PastUse {
    half_life: Duration,
    /// When an amount has the factor 1.
    origin: Tick,
    /// When the last amount was added.
    latest: Tick,
    holders: NumberMap<UseHolder, DecayedUse>,
    siblings: NumberMap<Option<TenantId>, DecayedUse>,
}

impl PastUse {
    pub(super) fn new(half_life: Duration) -> Self {
        Self {
            half_life: half_life.max(Duration::from_secs(1)),
            origin: Tick::ZERO,
            latest: Tick::ZERO,
            holders: NumberMap::default(),
            siblings: NumberMap::default(),
        }
    }

    /// Changes the half-life. What was used so far counts as it did at the last use.
    pub(super) fn set_half_life(&mut self, half_life: Duration) {
        self.rebase(self.latest);
        self.half_life = half_life.max(Duration::from_secs(1));
    }

    /// Adds use, which may be negative as a correction.
    pub(super) fn add(&mut self, holder: UseHolder, weight: f64, tokens: f64, now: Tick) {
        if self.age(now) > MAX_AGE {
            self.rebase(now);
        }
        self.latest = self.latest.max(now);
        let amount = tokens * self.age(now).exp2();
        let own = self.holders.entry(holder).or_default();
        let used = (own.used + amount).max(0.0);
        let new = DecayedUse { used, weighted: used * used / weight.clamp(1e-6, 1e9) };
        let all = self.siblings.entry(holder.within).or_default();
        all.used += new.used - own.used;
        all.weighted += new.weighted - own.weighted;
        *own = new;
    }

    /// Factor on the holder's weight: 1 when its use over its weight is the mean of all its
    /// siblings, each counted by its use.
    pub(super) fn factor(&self, holder: UseHolder, weight: f64) -> f64 {
        let all = self.siblings.get(&holder.within).copied().unwrap_or_default();
        if !(all.used > NEGLIGIBLE && all.weighted > 0.0) {
            return 1.0;
        }
        let own = self.holders.get(&holder).map_or(0.0, |own| own.used) / weight.clamp(1e-6, 1e9);
        MOST.powf(1.0 - own * all.used / all.weighted).clamp(LEAST, MOST)
    }

    /// What each tenant itself used, in tokens, as it counts now; of groups only their own requests.
    pub(super) fn tenants(&self, now: Tick) -> impl Iterator<Item = (TenantId, u64)> {
        let scale = (-self.age(now)).exp2();
        let own = self.holders.iter().filter(|(holder, _)| !holder.is_group);
        own.map(move |(holder, own)| (holder.tenant, (own.used * scale) as u64))
            .filter(|(_, tokens)| *tokens > 0)
    }

    /// Forgets the tenants and groups that `keep` rejects.
    pub(super) fn retain(&mut self, keep: impl Fn(TenantId) -> bool) {
        self.holders.retain(|holder, _| keep(holder.tenant) && holder.within.is_none_or(&keep));
        self.sum_up();
    }

    /// Half-lives since `origin`.
    fn age(&self, now: Tick) -> f64 {
        now.since(self.origin).as_secs_f64() / self.half_life.as_secs_f64()
    }

    /// Makes `now` the origin. Looks at every holder.
    fn rebase(&mut self, now: Tick) {
        let scale = (-self.age(now)).exp2();
        self.origin = self.origin.max(now);
        self.holders.retain(|_, own| {
            own.used *= scale;
            own.weighted *= scale * scale;
            own.used > NEGLIGIBLE
        });
        self.sum_up();
    }

    fn sum_up(&mut self) {
        self.siblings.clear();
        for (holder, own) in &self.holders {
            let all = self.siblings.entry(holder.within).or_default();
            all.used += own.used;
            all.weighted += own.weighted;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    fn alone(tenant: u32) -> UseHolder {
        UseHolder { tenant: TenantId::new(tenant), is_group: false, within: None }
    }

    fn factors(past: &PastUse) -> [f64; 2] {
        [0, 1].map(|tenant| past.factor(alone(tenant), 1.0))
    }

    #[test]
    fn equal_use_changes_nothing_and_use_fades() {
        let mut past = PastUse::new(Duration::from_millis(HOUR));
        assert_eq!(factors(&past), [1.0; 2], "nothing is known");
        past.add(alone(0), 1.0, 1_000.0, Tick::ZERO);
        assert_eq!(factors(&past), [1.0, 4.0]);
        past.add(alone(1), 1.0, 1_000.0, Tick::ZERO);
        assert_eq!(factors(&past), [1.0; 2]);
        // 1,000 of an hour ago are 500 of now.
        past.add(alone(1), 1.0, 500.0, Tick::from_millis(HOUR));
        past.add(alone(0), 1.0, 500.0, Tick::from_millis(HOUR));
        assert_eq!(factors(&past), [1.0; 2]);
        past.add(alone(0), 1.0, -500.0, Tick::from_millis(HOUR));
        let [less, more] = factors(&past);
        assert!(less > 1.5 && more < 1.0, "{less} {more}");
    }

    #[test]
    fn weights_and_groups_count_and_the_factor_is_bounded() {
        let mut past = PastUse::new(Duration::from_millis(HOUR));
        past.add(alone(0), 3.0, 300.0, Tick::ZERO);
        past.add(alone(1), 1.0, 100.0, Tick::ZERO);
        let equal = [past.factor(alone(0), 3.0), past.factor(alone(1), 1.0)];
        assert!(equal.iter().all(|factor| (factor - 1.0).abs() < 1e-9), "{equal:?}");
        for tenant in 2..100 {
            past.add(alone(tenant), 1.0, 100.0, Tick::ZERO);
        }
        past.add(alone(1), 1.0, 50_000.0, Tick::ZERO);
        let [few, many] = [2, 1].map(|tenant| past.factor(alone(tenant), 1.0));
        assert!((3.9..4.0).contains(&few) && (LEAST..1.0).contains(&many), "{few} {many}");
        let child = UseHolder { within: Some(TenantId::new(7)), ..alone(0) };
        assert_eq!(past.factor(child, 1.0), 1.0, "nobody of its group has used anything");
    }

    #[test]
    fn what_tenants_used_is_told_as_it_counts_now() {
        let mut past = PastUse::new(Duration::from_millis(HOUR));
        past.add(alone(0), 1.0, 1_000.0, Tick::ZERO);
        past.add(UseHolder { is_group: true, ..alone(7) }, 1.0, 500.0, Tick::ZERO);
        past.add(alone(1), 1.0, 0.5, Tick::ZERO);
        let told: Vec<_> = past.tenants(Tick::from_millis(HOUR)).collect();
        assert_eq!(told, [(TenantId::new(0), 500)]);
    }

    #[test]
    fn long_times_and_removed_tenants_leave_sound_sums() {
        let mut past = PastUse::new(Duration::from_secs(60));
        for hour in 0..200 {
            past.add(alone(hour % 3), 1.0, 1e6, Tick::from_millis(u64::from(hour) * HOUR));
        }
        let last = Tick::from_millis(199 * HOUR);
        past.set_half_life(Duration::from_secs(3600));
        assert_eq!(past.holders.len(), 1, "the others' use is worth nothing: {past:?}");
        past.add(alone(5), 1.0, 1e6, last);
        past.retain(|tenant| tenant == TenantId::new(5));
        assert_eq!((past.factor(alone(5), 1.0), past.factor(alone(1), 1.0)), (1.0, 4.0));
    }
}
