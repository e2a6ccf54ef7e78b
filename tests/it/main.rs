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
mod keys;
mod leave;
mod names;
mod oidc;
mod operate;
mod operators;
mod pki;
mod process;
mod reload;
mod retries;
mod rig;
mod simulate;
mod tap;
mod tls;
