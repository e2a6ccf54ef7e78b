//! Discrete-event world: arrivals, routers and simulated engines in virtual
//! time. The [`Scheduler`](penstock_core::scheduler::Scheduler) that runs in the
//! gateway is one router of the world. The baselines that it is compared with
//! are the others.

pub mod arrival;
pub mod autoscale;
pub mod baseline;
mod engines;
mod event;
mod exchange;
pub mod gateway;
pub mod record;
#[cfg(test)]
mod replay;
pub mod replica;
pub mod router;
pub mod run;
pub mod setup;
#[cfg(test)]
mod shared_fairness;
pub mod sharing;
#[cfg(test)]
mod tests;
