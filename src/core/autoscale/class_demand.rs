//! Class demand: the replicas that the classes of one pool set need, as one number.
//!
//! With λ for the work that arrives each second, μ for what a replica does in
//! one, S for how long a start takes, and for each class its tolerance D, what
//! waits W, and for how long the oldest has waited, A:
//!
//! * *sustained*: λ as it goes on and β deviations of it, within bounds;
//! * *noise*: what waits will have gone within D as it is: nothing more;
//! * *burst*: else, where D > S: what was sustained and served, or what is
//!   sustained while as much still comes, and W/max(D − S, A). What is older than
//!   D − S will be refused before a replica comes. It never counts by the rate at
//!   which it came: a burst that is short against S has passed when replicas come,
//!   and leaves what waits;
//! * *hopeless*: where D ≤ S no start can save what waits: only what is sustained
//!   counts, and bursts that come again raise the floor ([`crate::core::autoscale::desired`]);
//! * *patient*: classes with D far above S need W/((D − A)/2 − S), and whatever
//!   the others leave free. They start a pool that is cold only when half of D is
//!   over but for S.

use std::time::Duration;

use super::{ScaleReason, window};

/// The use of a replica that is aimed at where demand is even.
const TARGET: f64 = 0.9;
/// The least, however much noise there is.
const LEAST_TARGET: f64 = 0.75;
/// Deviations of what is under way at once that there is headroom for: the β of
/// square-root staffing (Halfin and Whitt 1981), n = a + β√a for independent jobs
/// of a replica each. At 1 about one in five would wait.
const HEADROOM: f64 = 1.0;
/// The same with work that may wait.
const PATIENT_TARGET: f64 = 0.95;
/// How much longer than a start work must be able to wait to count as patient.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// Time over which a backlog is drained at least, in seconds.
const MIN_DRAIN: f64 = 30.0;
/// The same of patient work.
const MIN_PATIENT_DRAIN: f64 = 60.0;
/// How much more than what is sustained a hopeless burst is.
const HIGH: f64 = 2.0;
/// Waits of more than this part of the tolerance show that there is too little.
const STRAIN: u32 = 10;

/// What one class asks for in one pool set.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClassDemand {
    /// How long its jobs can wait.
    pub tolerance: Duration,
    /// Work per second as it goes on.
    pub slow: f64,
    /// The standard deviation of what is under way of it at once.
    pub deviation: f64,
    /// What comes to that by the time that a replica has started.
    pub rise: f64,
    /// Work per second over the fast window.
    pub fast: f64,
    /// Work that waits.
    pub backlog: f64,
    /// How long the oldest has waited.
    pub oldest: Duration,
    /// Jobs wait past their objective, patient ones for half of the time that they
    /// have, or were refused of late since too much waited.
    pub unmet: bool,
}

/// What a pool set asks for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PoolSetNeed {
    /// Work per second that replicas have to be able to do, headroom included.
    pub work: f64,
    /// What that is mostly for.
    pub reason: ScaleReason,
    /// What arrives each second and cannot wait for a start, where it is far more
    /// than what is sustained; 0 unless some will be refused.
    pub hopeless: f64,
    /// Something waits that must not wait longer for a start.
    pub due: bool,
    /// Some have waited for long.
    pub strained: bool,
    /// See [`ClassDemand::unmet`].
    pub unmet: bool,
}

/// Whether work that can wait so long is patient where a start takes so long.
#[must_use]
pub fn is_patient(tolerance: Duration, start: Duration) -> bool {
    tolerance >= start.saturating_add(PATIENCE)
}

/// What the classes ask for, given in the order of service. `capacity` is what
/// the replicas in service do in a second.
#[must_use]
pub fn total_need(wants: &[ClassDemand], start: Duration, capacity: f64) -> PoolSetNeed {
    let patient = |want: &&ClassDemand| is_patient(want.tolerance, start);
    let urgent = || wants.iter().filter(|want| !patient(want));
    let sustained: f64 = urgent().map(|want| want.slow + want.rise).sum();
    let deviation = urgent().map(|want| want.deviation * want.deviation).sum::<f64>().sqrt();
    let fast: f64 = urgent().map(|want| want.fast).sum();
    let start_s = start.as_secs_f64();

    let (mut waits, mut drain, mut hopeless) = (0.0, 0.0, false);
    for want in urgent().filter(|want| want.backlog > 0.0) {
        waits += want.backlog;
        let (tolerance, age) = (want.tolerance.as_secs_f64(), want.oldest.as_secs_f64());
        if waits <= (capacity - fast).max(0.0) * tolerance {
            continue;
        }
        match tolerance > start_s {
            true => drain += want.backlog / (tolerance - start_s).max(age).max(MIN_DRAIN),
            false => hopeless = true,
        }
    }
    let later: f64 = wants.iter().filter(patient).map(|want| patient_rate(want, start_s)).sum();

    // What was sustained and served, or all of it while as much still comes.
    let served = (sustained - waits / window(start).as_secs_f64()).max(fast.min(sustained));
    let options = [
        (with_headroom(sustained, deviation), ScaleReason::Sustained),
        (if drain > 0.0 { served + drain } else { 0.0 }, ScaleReason::Burst),
        ((sustained + later) / PATIENT_TARGET, ScaleReason::Deadline),
    ];
    let most = options.into_iter().max_by(|one, two| one.0.total_cmp(&two.0).then(two.1.cmp(&one.1)));
    let (work, reason) = most.filter(|(work, _)| *work > 0.0).unwrap_or_default();
    let is_high = hopeless && fast > sustained * HIGH;
    let hopeless = if is_high { fast - sustained } else { 0.0 };
    let strained = urgent().any(|want| want.backlog > 0.0 && want.oldest >= want.tolerance / STRAIN);
    let is_due =
        |want: &&ClassDemand| !patient(want) || want.oldest.saturating_add(start) >= want.tolerance / 2;
    let due = wants.iter().filter(|want| want.backlog > 0.0).any(|want| is_due(&want));
    let unmet = wants.iter().any(|want| want.unmet);
    PoolSetNeed { work, reason, hopeless, due, strained, unmet }
}

/// What replicas must be able to do to serve so much with such a deviation.
fn with_headroom(work: f64, deviation: f64) -> f64 {
    (work / TARGET).max(work + HEADROOM * deviation).min(work / LEAST_TARGET)
}

/// Work per second that gets patient work done in half of the time that it has.
fn patient_rate(want: &ClassDemand, start: f64) -> f64 {
    let left = want.tolerance.saturating_sub(want.oldest).as_secs_f64();
    want.backlog / (left / 2.0 - start).max(MIN_PATIENT_DRAIN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    const START: Duration = Duration::from_secs(180);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A class that asks for a hundred units a second; a replica does ten.
    fn hundred(tolerance: u64) -> ClassDemand {
        ClassDemand { tolerance: secs(tolerance), slow: 100.0, fast: 100.0, ..ClassDemand::default() }
    }

    #[test]
    fn what_is_sustained_is_met_with_headroom() {
        let asked = total_need(&[hundred(30)], START, 200.0);
        assert_eq!((asked.work, asked.reason, asked.hopeless), (100.0 / 0.9, ScaleReason::Sustained, 0.0));
        let noisy = |deviation| with_headroom(100.0, deviation);
        assert_eq!((noisy(1.0), noisy(20.0), noisy(90.0)), (100.0 / 0.9, 120.0, 100.0 / 0.75));
    }

    #[test]
    fn a_backlog_that_goes_in_time_is_noise() {
        let want = ClassDemand { backlog: 2900.0, ..hundred(300) };
        assert_eq!(total_need(&[want], START, 110.0).reason, ScaleReason::Sustained);
        let want = ClassDemand { backlog: 3100.0, ..want };
        assert_eq!(total_need(&[want], START, 110.0).reason, ScaleReason::Burst);
    }

    #[test]
    fn a_backlog_is_drained_between_the_start_and_what_is_tolerated() {
        let want = ClassDemand { backlog: 12_000.0, oldest: secs(60), fast: 10.0, ..hundred(300) };
        let work = |want: ClassDemand| total_need(&[want], START, 10.0).work;
        let near = |one: f64, two: f64| (one - two).abs() < 1e-9;
        assert!(
            near(work(want), 100.0 - 12_000.0 / 180.0 + 100.0),
            "12 000 / (300 - 180), and what was served"
        );
        let comes = ClassDemand { fast: 100.0, ..want };
        assert!(near(work(comes), 100.0 + 100.0), "it goes on coming");
        let old = ClassDemand { oldest: secs(240), ..want };
        assert!(near(work(old), 100.0 / 0.9), "those older than 120 s are refused before");
        let all = ClassDemand { backlog: 18_000.0, oldest: secs(180), ..want };
        assert!(near(work(all), 100.0 / 0.9), "all that came in three minutes waits: no more than that");
    }

    #[test]
    fn a_hopeless_burst_orders_only_what_is_sustained() {
        let want = ClassDemand { slow: 22.0, fast: 100.0, backlog: 3000.0, ..hundred(30) };
        let asked = total_need(&[want], START, 10.0);
        assert_eq!((asked.work, asked.reason, asked.hopeless), (22.0 / 0.9, ScaleReason::Sustained, 78.0));
    }

    #[test]
    fn patient_work_is_done_by_half_of_its_time() {
        let want = ClassDemand { backlog: 16_200.0, ..hundred(3600) };
        let patient = total_need(&[want], START, 10.0);
        assert!((patient.work - 10.0 / 0.95).abs() < 1e-9, "16 200 / (1800 - 180)");
        assert_eq!(patient.reason, ScaleReason::Deadline);
        let fresh = ClassDemand { backlog: 0.0, ..want };
        assert_eq!(
            total_need(&[fresh], START, 10.0),
            PoolSetNeed::default(),
            "what runs in room that is there needs no more"
        );
        let half = ClassDemand { backlog: 8100.0, ..want };
        let beside = total_need(&[hundred(30), half], START, 10.0);
        assert_eq!(
            (beside.work, beside.reason),
            (100.0 / 0.9, ScaleReason::Sustained),
            "it fits into the headroom"
        );
    }

    proptest! {
        #[test]
        fn more_is_never_less(
            slow in 0.0f64..1e4, fast in 0.0f64..1e4, backlog in 0.0f64..1e7, tolerance in 1u64..10_000,
            start in 1u64..600, capacity in 0.0f64..1e4, more in 0.0f64..1e4,
        ) {
            let want = ClassDemand { tolerance: secs(tolerance), slow, fast, backlog, ..ClassDemand::default() };
            let work = |want: ClassDemand| total_need(&[want], secs(start), capacity).work;
            let least = work(want);
            let larger = [
                ClassDemand { slow: slow + more, ..want },
                ClassDemand { fast: fast + more, ..want },
                ClassDemand { backlog: backlog + more, ..want },
            ];
            for one in larger {
                prop_assert!(work(one) >= least);
            }
            let most = slow / LEAST_TARGET + backlog / MIN_DRAIN / PATIENT_TARGET;
            prop_assert!(least <= most + 1e-6);
        }
    }
}
