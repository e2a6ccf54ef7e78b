//! In-process integration tests.

mod door;
