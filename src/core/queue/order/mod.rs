//! Dispatch order of a pool group: its classes, and the heads of all their lanes.

mod class_order;
mod head_index;
mod head_tree;
mod heads;
mod pool_group;
mod search;

pub use self::heads::{
    Candidate, HeadEntry, HeadKey, HeadPosition, HeadSet, HeldReplica, LaneHead, ObjectiveInputs, OpenRoom,
    PoolOpening, PoolOpenings, RoomIn,
};
pub use self::pool_group::{PoolGroup, UrgentClasses};
