//! In-process integration tests.

mod door;
mod fleet;
