//! Heads of lanes: their keys and positions in the order, and the types of a search among them.

use std::cmp::Ordering;
use std::fmt;

use smallvec::SmallVec;

use crate::model::bit_set::BitSet;
use crate::model::ids::{ClassIndex, JobId, PoolId, PoolSetIndex, ReplicaId, TenantId};
use crate::model::number_map::NumberMap;
use crate::queue::fairness::quantum;
use crate::queue::fit_tree::{FitEntry, FitRank, FitSize};
use crate::queue::lane_key::{LaneKey, LaneOrderKey, LanePart};
use crate::queue::quota::QuotaState;

/// Place of a head among those of a class and pool set: tenants below their guarantee first, then
/// the least counter, then the place in the lane. Among tenants in the same fairness quantum, jobs
/// in time go before late ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadKey {
    /// State of the tenant's quota.
    pub quota_state: QuotaState,
    /// The tenant's virtual counter; 0 for returned jobs, which the tenant has already paid for.
    pub counter: u128,
    /// The job's place in its lane.
    pub place: LaneOrderKey,
    /// The counter again. The floor of several keys holds the least counter of all of them here,
    /// whichever key is first. Tenants that begin to wait are lifted to that counter.
    pub(super) least_counter: u128,
}

impl HeadKey {
    pub const fn new(quota_state: QuotaState, counter: u128, place: LaneOrderKey) -> Self {
        Self { quota_state, counter, place, least_counter: counter }
    }
}

impl Ord for HeadKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let turn = |key: &Self| (key.quota_state, quantum(key.counter), key.place.late);
        let exact = |key: &Self| (key.counter, key.place, key.least_counter);
        turn(self).cmp(&turn(other)).then_with(|| exact(self).cmp(&exact(other)))
    }
}

impl PartialOrd for HeadKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
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
        Self { least_counter: self.least_counter.min(other.least_counter), ..first }
    }
}

/// The head of a part of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneHead {
    pub job: JobId,
    pub lane: LaneKey,
    pub part: LanePart,
}

/// A head with its key and size, as stored in a search tree.
pub type HeadEntry = FitEntry<HeadKey, LaneHead>;

/// Position of a head in the search trees of its pool set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadPosition {
    /// The head is in the tree of jobs that may use only the pools that they want most.
    pub preferred_only: bool,
    pub(super) slot: usize,
}

/// The number of a search tree within its pool set.
pub(super) const fn tree_index(part: LanePart, bound: bool) -> usize {
    2 * part as usize + bound as usize
}

/// A search tree of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreeId {
    pub(super) pool_set: PoolSetIndex,
    /// Its number within the pool set, by [`tree_index`].
    pub(super) number: usize,
}

/// A replica that is kept free for a job that needs more room than the replica has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldReplica {
    pub replica: ReplicaId,
    pub pool: PoolId,
    /// The job that the replica is kept free for.
    pub job: JobId,
}

/// The heads of one class, pool set and part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadSet {
    pub class: ClassIndex,
    pub pool_set: PoolSetIndex,
    pub part: LanePart,
}

/// The head that a search found to go next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub class: ClassIndex,
    pub pool_set: PoolSetIndex,
    pub head: LaneHead,
    /// The job's place in its lane.
    pub place: LaneOrderKey,
    /// Sequences, KV tokens and prefill tokens that the job needs.
    pub need: FitSize,
    /// Whether the class goes first because it is owed its guaranteed share.
    pub guaranteed: bool,
    /// Whether a more urgent class uses the replicas.
    pub background: bool,
    /// State of the tenant's quota.
    pub quota_state: QuotaState,
}

impl Candidate {
    /// The heads among which the candidate was found.
    pub const fn head_set(&self) -> HeadSet {
        HeadSet { class: self.class, pool_set: self.pool_set, part: self.head.part }
    }
}

/// A pool with room, and the most that one job may need there in each respect.
pub type PoolOpening = (PoolId, FitSize);

/// All pools with room, and the pool sets that contain at least one of them.
#[derive(Debug, Clone, Default)]
pub struct PoolOpenings {
    pub(super) pools: SmallVec<[PoolOpening; 4]>,
    pub(super) pool_sets: BitSet,
}

/// The room that a search assumes.
#[derive(Clone, Copy)]
pub enum RoomIn<'a> {
    /// Room everywhere, for a job of any size.
    Anywhere,
    /// Room for a job of any size whose pools satisfy the predicate.
    Matching(&'a dyn Fn(&[PoolId]) -> bool),
    /// Room in some pools only.
    Pools(OpenRoom<'a>),
}

/// Pools with room, and which heads may use them.
#[derive(Clone, Copy)]
pub struct OpenRoom<'a> {
    /// The pools with room, by whether the asking class is background.
    pub openings: &'a dyn Fn(bool) -> &'a PoolOpenings,
    /// The tier of a pool set that is wanted most just now.
    pub preferred_tier: &'a dyn Fn(PoolSetIndex) -> Option<usize>,
    /// Whether the search skips all of these heads.
    pub is_skipped: &'a dyn Fn(HeadSet) -> bool,
}

impl<'a> RoomIn<'a> {
    /// The pool sets for which there may be room; `None` when the search has to look at all of
    /// them.
    pub(super) fn pool_sets(&self, background: bool) -> Option<&'a BitSet> {
        match self {
            Self::Anywhere | Self::Matching(_) => None,
            Self::Pools(rooms) => Some(&(rooms.openings)(background).pool_sets),
        }
    }
}

impl fmt::Debug for RoomIn<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Anywhere => "Anywhere",
            Self::Matching(_) => "Matching",
            Self::Pools(_) => "Pools",
        })
    }
}

impl fmt::Debug for OpenRoom<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("OpenRoom")
    }
}

/// Inputs of the objectives of a group's pools. Unchanged inputs mean that the objectives still
/// hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectiveInputs {
    /// Classes that have jobs waiting or running, or had some within the last 60 s (`ACTIVE_FOR`).
    pub active: BitSet,
    /// See [`super::PoolGroup::delayed_classes`].
    pub delayed: BitSet,
    /// See [`super::PoolGroup::headroom`].
    pub headroom: u32,
    /// See [`super::PoolGroup::max_sequences`].
    pub max_sequences: u32,
    /// See [`Fleet::service_changes`](crate::replica::fleet::Fleet::service_changes).
    pub service_changes: u64,
}

/// A pool set with the position of a head in it.
pub(super) type IndexedHead = (PoolSetIndex, HeadPosition);

/// Positions of fresh heads.
#[derive(Debug, Clone, Default)]
pub(super) struct HeadIndex {
    /// Of each tenant.
    pub(super) tenants: NumberMap<TenantId, SmallVec<[IndexedHead; 2]>>,
    /// Of each group: the search trees in which it has heads.
    pub(super) groups: NumberMap<TenantId, SmallVec<[TreeId; 2]>>,
}
