//! In-process integration tests.

mod fleet;
