//! Replays of a record. [`exact`]: a new scheduler gets the recorded events and must decide what was
//! decided. [`what_if`]: the recorded requests go to a simulated fleet that is fitted to the recorded
//! one (`fit`), under another policy. Both give a `history` that `report` turns into figures.

pub mod exact;
mod fit;
pub mod history;
mod policies;
pub mod report;
mod router;
#[cfg(test)]
mod tests;
pub mod what_if;
