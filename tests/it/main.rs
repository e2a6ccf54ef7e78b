//! In-process integration tests.

mod door;
mod faults;
mod fleet;
mod harness;
