//! In-process integration tests.

mod client;
mod door;
mod drain;
mod faults;
mod fleet;
mod habits;
mod habits_calls;
mod leave;
mod operate;
mod process;
mod reload;
mod retries;
mod rig;
mod simulate;
mod tap;
