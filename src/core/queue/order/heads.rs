//! The heads of lanes, and what is asked of their order.

use std::fmt;

use smallvec::SmallVec;

use crate::core::model::bit_set::BitSet;
use crate::core::model::ids::{JobId, PoolId, ReplicaId};
use crate::core::queue::fit_tree::{FitEntry, FitRank, FitSize, FitTree};
use crate::core::queue::quota::QuotaState;
use crate::core::queue::{LaneKey, LanePart, LanePlace};

/// Order within a class and pool set: who has less than its guarantee first, then
/// the least counter, then by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeadKey {
    /// How the tenant stands to its quota.
    pub standing: QuotaState,
    /// The tenant's virtual counter; 0 for returned jobs, which have paid.
    pub counter: u128,
    /// The job's place in its lane.
    pub place: LanePlace,
    /// The counter again. A floor of keys has the least one here, whoever has
    /// it, for the tenants to come.
    pub(super) least: u128,
}

impl HeadKey {
    /// The key of a head.
    #[must_use]
    pub const fn new(standing: QuotaState, counter: u128, place: LanePlace) -> Self {
        Self { standing, counter, place, least: counter }
    }
}

impl FitRank for HeadKey {
    type Query = ();
    type Cost = Self;

    fn cost(&self, (): ()) -> Self {
        *self
    }

    fn floor(self, other: Self) -> Self {
        let first = if other < self { other } else { self };
        Self { least: self.least.min(other.least), ..first }
    }
}

/// The head of a part of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneHead {
    /// The job.
    pub job: JobId,
    /// Its lane.
    pub lane: LaneKey,
    /// Its part of the lane.
    pub part: LanePart,
}

/// A head with its place on a board.
pub type HeadEntry = FitEntry<HeadKey, LaneHead>;

/// Where a head stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadPosition {
    /// Among those that look only at the pools that they want most.
    pub bound: bool,
    pub(super) slot: usize,
}

/// The number of a board within its pool set.
pub(super) const fn tree(part: LanePart, bound: bool) -> usize {
    2 * part as usize + bound as usize
}

/// A replica that is kept free for a job that needs more room than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldReplica {
    /// The replica.
    pub replica: ReplicaId,
    /// Its pool.
    pub pool: PoolId,
    /// The job.
    pub job: JobId,
}

/// Who may go next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its class, by place in the order of service.
    pub class: usize,
    /// Its pool set.
    pub pool_set: usize,
    /// Its head.
    pub head: LaneHead,
    /// Its place in its lane.
    pub place: LanePlace,
    /// What it needs.
    pub need: FitSize,
    /// Whether its class goes first because it is owed its share.
    pub guaranteed: bool,
    /// Whether a more urgent class uses the replicas.
    pub background: bool,
    /// How its tenant stands to its quota.
    pub standing: QuotaState,
}

/// A pool that can take something, and the most that it can in each respect.
pub type PoolOpening = (PoolId, FitSize);

/// All of these, and the pool sets that reach one of them at least.
#[derive(Debug, Clone, Default)]
pub struct PoolOpenings {
    pub(super) pools: SmallVec<[PoolOpening; 4]>,
    pub(super) pool_sets: BitSet,
}

/// Where there is room.
#[derive(Clone, Copy)]
pub enum RoomIn<'a> {
    /// Anywhere, for anything.
    Anywhere,
    /// For anything whose pools are such.
    Where(&'a dyn Fn(&[PoolId]) -> bool),
    /// In some pools only.
    In(OpenRoom<'a>),
}

/// Where there is room, and for whom.
#[derive(Clone, Copy)]
pub struct OpenRoom<'a> {
    /// The pools, by whether a background asks.
    pub openings: &'a dyn Fn(bool) -> &'a PoolOpenings,
    /// The tier of a pool set's pools that is wanted most just now.
    pub wanted: &'a dyn Fn(usize) -> Option<usize>,
    /// Whether nobody of this class, pool set and part is to be looked at.
    pub closed: &'a dyn Fn((usize, usize, LanePart)) -> bool,
}

impl<'a> RoomIn<'a> {
    /// The pool sets for which there may be room, where not all have to be looked at.
    pub(super) fn pool_sets(&self, background: bool) -> Option<&'a BitSet> {
        match self {
            Self::Anywhere | Self::Where(_) => None,
            Self::In(rooms) => Some(&(rooms.openings)(background).pool_sets),
        }
    }
}

impl fmt::Debug for RoomIn<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Anywhere => "Anywhere",
            Self::Where(_) => "Where",
            Self::In(_) => "In",
        })
    }
}

impl fmt::Debug for OpenRoom<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Rooms")
    }
}

/// What the promises of a group's pools depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupObjective {
    /// The classes that wait, run or did so a moment ago.
    pub active: BitSet,
    /// See [`super::PoolGroup::headroom`].
    pub headroom: u32,
    /// See [`super::PoolGroup::widest`].
    pub widest: u32,
    /// See [`Fleet::turns`](crate::core::replica::fleet::Fleet::turns).
    pub turns: u64,
}

/// What waits in one class for one set of pools.
#[derive(Debug, Clone, Default)]
pub(super) struct PoolSetQueue {
    /// By part, and by whether they are bound.
    pub(super) trees: [FitTree<HeadKey, LaneHead>; 4],
    pub(super) waiting: u64,
    /// The largest counter with which a tenant was served here.
    pub(super) served: u128,
    /// The tier of pools that the last job went to.
    pub(super) tier: Option<usize>,
}
