//! Scenarios: experiments in the simulated world that compare designs under the
//! same traffic and engines, and report their figures.

mod case;
pub mod design;
mod fairness;
pub mod figures;
pub mod file;
mod make;
pub mod page;
pub mod plan;
pub mod report;
pub mod scale;
mod scale_row;
#[cfg(test)]
mod tests;
mod traffic;
