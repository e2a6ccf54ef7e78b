//! The heads of lanes, and what is asked of their order.

use std::fmt;

use smallvec::SmallVec;

use crate::core::bits::Bits;
use crate::core::board::{Board, Entry, Rank, Size};
use crate::core::ids::{JobId, PoolId, ReplicaId};
use crate::core::queue::{LaneKey, Part, Place};
use crate::core::quota::Standing;

/// Order within a class and line: who has less than its guarantee first, then
/// the least counter, then by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeadKey {
    /// How the tenant stands to its quota.
    pub standing: Standing,
    /// The tenant's virtual counter; 0 for returned jobs, which have paid.
    pub counter: u128,
    /// The job's place in its lane.
    pub place: Place,
    /// The counter again. A floor of keys has the least one here, whoever has
    /// it, for the tenants to come.
    pub(super) least: u128,
}

impl HeadKey {
    /// The key of a head.
    #[must_use]
    pub const fn new(standing: Standing, counter: u128, place: Place) -> Self {
        Self { standing, counter, place, least: counter }
    }
}

impl Rank for HeadKey {
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
pub struct Head {
    /// The job.
    pub job: JobId,
    /// Its lane.
    pub lane: LaneKey,
    /// Its part of the lane.
    pub part: Part,
}

/// A head with its place on a board.
pub type HeadEntry = Entry<HeadKey, Head>;

/// Where a head stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Among those that look only at the pools that they want most.
    pub bound: bool,
    pub(super) slot: usize,
}

/// The number of a board within its line.
pub(super) const fn board(part: Part, bound: bool) -> usize {
    2 * part as usize + bound as usize
}

/// A replica that is kept free for a job that needs more room than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
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
    /// Its line.
    pub line: usize,
    /// Its head.
    pub head: Head,
    /// Its place in its lane.
    pub place: Place,
    /// What it needs.
    pub need: Size,
    /// Whether its class goes first because it is owed its share.
    pub guaranteed: bool,
    /// Whether a more urgent class uses the replicas.
    pub guest: bool,
    /// How its tenant stands to its quota.
    pub standing: Standing,
}

/// A pool that can take something, and the most that it can in each respect.
pub type Opening = (PoolId, Size);

/// All of these, and the lines that reach one of them at least.
#[derive(Debug, Clone, Default)]
pub struct Openings {
    pub(super) pools: SmallVec<[Opening; 4]>,
    pub(super) lines: Bits,
}

/// Where there is room.
#[derive(Clone, Copy)]
pub enum Room<'a> {
    /// Anywhere, for anything.
    Anywhere,
    /// For anything whose pools are such.
    Where(&'a dyn Fn(&[PoolId]) -> bool),
    /// In some pools only.
    In(Rooms<'a>),
}

/// Where there is room, and for whom.
#[derive(Clone, Copy)]
pub struct Rooms<'a> {
    /// The pools, by whether a guest asks.
    pub openings: &'a dyn Fn(bool) -> &'a Openings,
    /// The tier of a line's pools that is wanted most just now.
    pub wanted: &'a dyn Fn(usize) -> Option<usize>,
    /// Whether nobody of this class, line and part is to be looked at.
    pub closed: &'a dyn Fn((usize, usize, Part)) -> bool,
}

impl<'a> Room<'a> {
    /// The lines for which there may be room, where not all have to be looked at.
    pub(super) fn lines(&self, guest: bool) -> Option<&'a Bits> {
        match self {
            Self::Anywhere | Self::Where(_) => None,
            Self::In(rooms) => Some(&(rooms.openings)(guest).lines),
        }
    }
}

impl fmt::Debug for Room<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Anywhere => "Anywhere",
            Self::Where(_) => "Where",
            Self::In(_) => "In",
        })
    }
}

impl fmt::Debug for Rooms<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Rooms")
    }
}

/// What the promises of a group's pools depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promised {
    /// The classes that wait, run or did so a moment ago.
    pub active: Bits,
    /// See [`super::Group::reserve`].
    pub reserve: u32,
    /// See [`super::Group::widest`].
    pub widest: u32,
    /// See [`Fleet::turns`](crate::core::fleet::Fleet::turns).
    pub turns: u64,
}

/// What waits in one class for one set of pools.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    /// By part, and by whether they are bound.
    pub(super) boards: [Board<HeadKey, Head>; 4],
    pub(super) waiting: u64,
    /// The largest counter with which a tenant was served here.
    pub(super) served: u128,
    /// The tier of pools that the last job went to.
    pub(super) tier: Option<usize>,
}
