//! Engines that fail: before the first token nobody sees it, after it nobody
//! is told that all went well.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod after;
mod before;
mod continued;
mod ends;
mod leaks;
mod poison;
mod reply;
mod setup;
pub(crate) mod silence;
mod table;
mod views;
mod waiting;
