//! In-process integration tests.

mod client;
mod cold;
mod discovery;
mod door;
mod drain;
mod fallbacks;
mod faults;
mod fleet;
mod habits;
mod habits_calls;
mod leave;
mod names;
mod operate;
mod process;
mod reload;
mod retries;
mod rig;
mod simulate;
mod tap;
mod tokens;
