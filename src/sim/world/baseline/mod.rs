//! Baselines: the designs that Penstock is compared with. Engines under a
//! baseline serve in order of arrival.
//!
//! The designs of [`at_once`] send a request on when it arrives and differ only
//! in the choice of engine. The designs of [`held`] keep a request back while
//! every engine is at its cap and differ in the order of waiting requests. All
//! designs share the best habits of their kind: another attempt for a request
//! that failed before its first token, and five seconds without work for an
//! engine that failed a request.

pub mod at_once;
pub mod fair;
pub mod flights;
pub mod held;
pub mod prefixes;
pub mod prequal;
pub mod scorers;
pub mod shedding;
#[cfg(test)]
mod tests;
