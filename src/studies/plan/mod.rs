//! `penstock plan`: the demand, the replicas that the demand needs, and their
//! cost.
//!
//! Demand is measured over the whole source. Fleets are found by running the
//! real scheduler in the simulated world. The maximum is the smallest fixed
//! fleet that meets the objectives over the busiest stretch. The smallest fleet
//! of each window gives the replicas needed over time; nine of ten windows need
//! at least the floor. The maximum is then simulated again, starting from other
//! places of the source.

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
