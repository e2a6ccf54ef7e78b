//! What replicas say of themselves: their metrics, the models they serve,
//! and whether they are there. It reports and decides nothing.

pub mod engine;
pub mod promtext;
