//! Core: every decision of the gateway. The core is synchronous, deterministic and pure: time and
//! events are passed in, actions with their reasons come out. The core does no I/O, and has no
//! clock, environment, log, thread or randomness of its own.
//!
//! * [`model`]: types that all of the core shares: ids, time, policy, jobs, events, reasons, snapshots;
//! * [`queue`]: lanes of waiting jobs, the order of service, fairness, quotas, the retry budget;
//! * [`placement`]: the pools that may serve a job, and which tier of them it goes to now;
//! * [`replica`]: ledger, speed, limits, health and caches of replicas;
//! * [`limits`]: what tenants, keys and models may use;
//! * [`billing`]: the time of replicas, shared among jobs, and its price;
//! * [`autoscale`]: the observer that finds how many replicas each pool needs;
//! * [`scheduler`]: joins these; its page says which module has which rule.

pub mod autoscale;
pub mod billing;
pub mod limits;
pub mod model;
pub mod placement;
pub mod queue;
pub mod replica;
pub mod scheduler;
