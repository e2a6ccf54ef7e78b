//! In-process integration tests.

mod client;
mod drain;
mod fleet;
mod habits;
mod habits_calls;
mod harness;
mod leave;
mod reload;
mod tap;
