//! Experiments in the simulated world: which designs, under which traffic, on
//! which engines, and what came of it.

pub mod design;
pub mod figures;
pub mod file;
mod make;
pub mod page;
pub mod plan;
pub mod report;
pub mod scale;
#[cfg(test)]
mod tests;
mod traffic;
