//! `penstock plan`: what demand there is, how many replicas it needs, and what
//! they cost.
//!
//! Demand is measured over all that the source has. Fleets are found by running
//! the real scheduler in the simulated world: the smallest fixed fleet that
//! keeps its promise over the busiest stretch is the maximum; the smallest for
//! each window of time says what a fleet has to be at that time; nine of ten
//! windows need at least the floor. The maximum is then put through the
//! simulator again, from other places of the source on.

pub mod demand;
pub mod fleets;
pub mod make;
pub mod measure;
pub mod report;
pub mod seen;
pub mod setting;
pub mod trials;
pub mod whatif;

#[cfg(test)]
mod tests;
