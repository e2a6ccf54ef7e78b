//! Class demand: the replicas that the classes of one pool set need, as one number.
//!
//! λ is the work that arrives each second. μ is the work that one replica does each second. S
//! is the time that a start takes. Each class has a tolerance D, waiting work W, and the age A
//! of its oldest waiting job.
//!
//! * *sustained*: λ as it goes on, plus β standard deviations, within bounds;
//! * *noise*: the present capacity serves the waiting work within D, and nothing is added;
//! * *burst*: the present capacity does not, and D > S. The need is W/max(D − S, A) plus the
//!   sustained work that was served, or plus all of the sustained work while as much still
//!   arrives. Jobs older than D − S will be refused before a replica comes. A burst never
//!   counts by its arrival rate: a burst that is short against S is over when replicas come,
//!   and leaves only its waiting work;
//! * *hopeless*: D ≤ S, so no start can save the waiting jobs. Only the sustained work counts,
//!   and repeated bursts raise the floor ([`crate::autoscale::desired`]);
//! * *patient*: classes with D far above S need W/((D − A)/2 − S), and use whatever the other
//!   classes leave free. Patient work starts a cold pool only when its age reaches D/2 − S.

use std::time::Duration;

use super::{ScaleReason, window};

/// Target utilization of a replica where demand is even.
const TARGET: f64 = 0.9;
/// Lowest target utilization, however noisy the demand is.
const LEAST_TARGET: f64 = 0.75;
/// Standard deviations of concurrent work that are kept as headroom: the β of square-root staffing
/// (Halfin and Whitt 1981), n = a + β√a for independent jobs of one replica each. At β = 1, about
/// one job in five would wait.
const HEADROOM: f64 = 1.0;
/// Target utilization of a replica when patient work is included.
const PATIENT_TARGET: f64 = 0.95;
/// Work is patient when its tolerance exceeds a start by at least this time.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// Shortest time over which a burst's backlog is drained, in seconds.
const MIN_DRAIN: f64 = 30.0;
/// Shortest time over which a patient backlog is drained, in seconds.
const MIN_PATIENT_DRAIN: f64 = 60.0;
/// A hopeless burst counts when fast demand is more than this many times sustained demand.
const HOPELESS_RATIO: f64 = 2.0;
/// Capacity is strained when a job has waited for this fraction, 1 / 10, of its tolerance.
const STRAIN_DIVISOR: u32 = 10;

/// Demand of one class in one pool set.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClassDemand {
    /// Tolerance: how long its jobs can wait.
    pub tolerance: Duration,
    /// Sustained work per second.
    pub sustained: f64,
    /// Standard deviation of the class's concurrent work.
    pub deviation: f64,
    /// Expected rise of the work per second until a replica has started.
    pub rise: f64,
    /// Work per second over the fast window.
    pub fast: f64,
    /// Waiting work.
    pub backlog: f64,
    /// Age of the oldest waiting job.
    pub oldest: Duration,
    /// True when jobs were refused lately because too much work waited, or when jobs wait past
    /// their objective. Patient jobs count from half of their tolerance on.
    pub unmet: bool,
}

/// Need of a pool set: what its classes ask for together.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PoolSetNeed {
    /// Work per second that the replicas have to be able to do, headroom included.
    pub work: f64,
    /// The reason for most of `work`.
    pub reason: ScaleReason,
    /// Urgent work per second beyond what is sustained. Zero unless the burst is far above what is
    /// sustained and no start can save it.
    pub hopeless: f64,
    /// True when waiting work must not wait longer for a start.
    pub due: bool,
    /// True when urgent jobs have waited for long.
    pub strained: bool,
    /// See [`ClassDemand::unmet`].
    pub unmet: bool,
}

/// Whether work of this tolerance is patient, given the time that a start takes.
pub fn is_patient(tolerance: Duration, start: Duration) -> bool {
    tolerance >= start.saturating_add(PATIENCE)
}

/// Adds up the demand of the classes. `capacity` is the work that the replicas in service do in a
/// second. The order of `wants` is the order of service.
pub fn total_need(wants: &[ClassDemand], start: Duration, capacity: f64) -> PoolSetNeed {
    let patient = |want: &&ClassDemand| is_patient(want.tolerance, start);
    let urgent = || wants.iter().filter(|want| !patient(want));
    let sustained: f64 = urgent().map(|want| want.sustained + want.rise).sum();
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

    // Sustained work that was served, or all of the sustained work while as much still arrives.
    let served = (sustained - waits / window(start).as_secs_f64()).max(fast.min(sustained));
    let options = [
        (with_headroom(sustained, deviation), ScaleReason::Sustained),
        (if drain > 0.0 { served + drain } else { 0.0 }, ScaleReason::Burst),
        ((sustained + later) / PATIENT_TARGET, ScaleReason::Deadline),
    ];
    let most = options.into_iter().max_by(|one, two| one.0.total_cmp(&two.0).then(two.1.cmp(&one.1)));
    let (work, reason) = most.filter(|(work, _)| *work > 0.0).unwrap_or_default();
    let is_high = hopeless && fast > sustained * HOPELESS_RATIO;
    let hopeless = if is_high { fast - sustained } else { 0.0 };
    let strained = urgent().any(|want| want.backlog > 0.0 && want.oldest >= want.tolerance / STRAIN_DIVISOR);
    let is_due =
        |want: &&ClassDemand| !patient(want) || want.oldest.saturating_add(start) >= want.tolerance / 2;
    let due = wants.iter().filter(|want| want.backlog > 0.0).any(|want| is_due(&want));
    let unmet = wants.iter().any(|want| want.unmet);
    PoolSetNeed { work, reason, hopeless, due, strained, unmet }
}

/// Capacity, in work per second, for demand of this mean and standard deviation.
fn with_headroom(work: f64, deviation: f64) -> f64 {
    (work / TARGET).max(work + HEADROOM * deviation).min(work / LEAST_TARGET)
}

/// Work per second that drains patient work within half of its remaining time, less a start.
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
        ClassDemand { tolerance: secs(tolerance), sustained: 100.0, fast: 100.0, ..ClassDemand::default() }
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
        let want = ClassDemand { sustained: 22.0, fast: 100.0, backlog: 3000.0, ..hundred(30) };
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
            sustained in 0.0f64..1e4, fast in 0.0f64..1e4, backlog in 0.0f64..1e7, tolerance in 1u64..10_000,
            start in 1u64..600, capacity in 0.0f64..1e4, more in 0.0f64..1e4,
        ) {
            let want = ClassDemand { tolerance: secs(tolerance), sustained, fast, backlog, ..ClassDemand::default() };
            let work = |want: ClassDemand| total_need(&[want], secs(start), capacity).work;
            let least = work(want);
            let larger = [
                ClassDemand { sustained: sustained + more, ..want },
                ClassDemand { fast: fast + more, ..want },
                ClassDemand { backlog: backlog + more, ..want },
            ];
            for one in larger {
                prop_assert!(work(one) >= least);
            }
            let most = sustained / LEAST_TARGET + backlog / MIN_DRAIN / PATIENT_TARGET;
            prop_assert!(least <= most + 1e-6);
        }
    }
}
