//! In-process integration tests.

mod client;
mod drain;
mod fleet;
mod habits;
mod habits_calls;
mod rig;
mod leave;
mod reload;
mod tap;
