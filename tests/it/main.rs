//! In-process integration tests.

mod affinity;
mod client;
mod cold;
mod discovery;
mod door;
mod drain;
mod early;
mod fallbacks;
mod faults;
mod fleet;
mod habits;
mod habits_calls;
mod kubernetes;
mod leave;
mod limits;
mod names;
mod operate;
mod process;
mod promises;
mod reload;
mod retries;
mod rig;
mod shadows;
mod simulate;
mod sleeping;
mod tap;
