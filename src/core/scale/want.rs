//! What the classes of one line ask for, as one number.
//!
//! With λ for the work that arrives each second, μ for what a replica does in
//! one, S for how long a start takes, and for each class its tolerance D, what
//! waits W, and for how long the oldest has waited, A:
//!
//! * *sustained*: λ over a window of S, at a use of four fifths;
//! * *noise*: what waits will have gone within D as it is: nothing more;
//! * *burst*: else, where D > S: (λ over ten seconds + W/max(D − S, A))/μ. What
//!   is older than D − S will be refused before a replica comes. Never much more
//!   than what arrived over the window would need, spread over it: a burst that
//!   is short against S has passed when they come;
//! * *hopeless*: where D ≤ S no start can save what waits: only what is sustained
//!   counts, and bursts that come again raise the floor ([`super::memory`]);
//! * *patient*: classes with D far above S need W/((D − A)/2 − S), and whatever
//!   the others leave free.

use std::time::Duration;

use super::Reason;

/// The use of a replica that is aimed at.
const TARGET: f64 = 0.8;
/// The same with work that may wait.
const PATIENT_TARGET: f64 = 0.95;
/// How much longer than a start work must be able to wait to count as patient.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// Time over which a backlog is drained at least, in seconds.
const MIN_DRAIN: f64 = 30.0;
/// The same of patient work.
const MIN_PATIENT_DRAIN: f64 = 60.0;
/// How much more than what is sustained a burst may come to.
const MOST_BURST: f64 = 1.5;

/// What one class asks for in one line.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Want {
    /// How long its jobs can wait.
    pub tolerance: Duration,
    /// Work per second over the slow window.
    pub slow: f64,
    /// What comes to that by the time that a replica has started.
    pub rise: f64,
    /// Work per second over the fast window.
    pub fast: f64,
    /// Work that waits.
    pub backlog: f64,
    /// How long the oldest has waited.
    pub oldest: Duration,
}

/// What a line asks for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Asked {
    /// Work per second that replicas have to be able to do, headroom included.
    pub work: f64,
    /// What that is mostly for.
    pub reason: Reason,
    /// What arrives each second and cannot wait for a start, beyond what is
    /// sustained; 0 unless some will be refused.
    pub hopeless: f64,
}

/// Whether work that can wait so long is patient where a start takes so long.
#[must_use]
pub fn is_patient(tolerance: Duration, start: Duration) -> bool {
    tolerance >= start.saturating_add(PATIENCE)
}

/// What the classes ask for, given in the order of service. `capacity` is what
/// the replicas in service do in a second.
#[must_use]
pub fn asked(wants: &[Want], start: Duration, capacity: f64) -> Asked {
    let patient = |want: &&Want| is_patient(want.tolerance, start);
    let urgent = || wants.iter().filter(|want| !patient(want));
    let sustained: f64 = urgent().map(|want| want.slow + want.rise).sum();
    let fast: f64 = urgent().map(|want| want.fast).sum();
    let start_s = start.as_secs_f64();

    let (mut before, mut drain, mut hopeless) = (0.0, 0.0, false);
    for want in urgent().filter(|want| want.backlog > 0.0) {
        before += want.backlog;
        let (tolerance, age) = (want.tolerance.as_secs_f64(), want.oldest.as_secs_f64());
        if before <= (capacity - fast).max(0.0) * tolerance {
            continue;
        }
        match tolerance > start_s {
            true => drain += want.backlog / (tolerance - start_s).max(age).max(MIN_DRAIN),
            false => hopeless = true,
        }
    }
    let later: f64 = wants.iter().filter(patient).map(|want| patient_rate(want, start_s)).sum();

    let burst = if drain > 0.0 { (fast + drain).min(MOST_BURST * sustained / TARGET) } else { 0.0 };
    let options = [
        (sustained / TARGET, Reason::Sustained),
        (burst, Reason::Burst),
        ((sustained + later) / PATIENT_TARGET, Reason::Deadline),
    ];
    let most = options.into_iter().max_by(|one, two| one.0.total_cmp(&two.0).then(two.1.cmp(&one.1)));
    let (work, reason) = most.filter(|(work, _)| *work > 0.0).unwrap_or_default();
    let hopeless = if hopeless { (fast - sustained).max(0.0) } else { 0.0 };
    Asked { work, reason, hopeless }
}

/// Work per second that gets patient work done in half of the time that it has.
fn patient_rate(want: &Want, start: f64) -> f64 {
    let left = want.tolerance.saturating_sub(want.oldest).as_secs_f64();
    want.backlog / (left / 2.0 - start).max(MIN_PATIENT_DRAIN)
}
