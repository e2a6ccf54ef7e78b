//! State of a job's limits at its arrival.

use smallvec::SmallVec;

use crate::core::limits::LimitStatus;
use crate::core::limits::rule::LimitId;

/// State of a job's limits right after the job's arrival. Empty for a job without limits.
#[derive(Debug, Clone, Default)]
pub struct LimitsAtEntry {
    /// State of each limit, after the job's reservation.
    pub statuses: SmallVec<[LimitStatus; 4]>,
    /// Limits in shadow mode that would have refused the job.
    pub shadowed: SmallVec<[LimitId; 1]>,
}
