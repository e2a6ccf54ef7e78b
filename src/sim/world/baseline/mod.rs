//! The designs that Penstock is compared with. The engines under them serve in
//! order of arrival.
//!
//! Those of [`at_once`] send a request on when it comes and differ only in
//! where to; those of [`held`] keep it back while every engine is at its cap
//! and differ in whose turn is next. All of them get what the best of their
//! kind have in common: another try for a request that failed before its first
//! token, and five seconds without work for an engine that failed one.

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
