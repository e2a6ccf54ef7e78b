//! Fault tests: before the first token no client notices a failure, and after it no client takes a
//! broken answer for a whole one.

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
