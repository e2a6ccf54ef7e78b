//! Load generator, instant engine and small measuring tools for Penstock.
//!
//! Every part is a library module with a thin command on top, so that tests
//! can run an engine and a load against it in one process.

pub mod abandon;
pub mod bench_proxy;
pub mod chaos;
mod child;
pub mod client;
pub mod closed;
pub mod compare;
pub mod core_bench;
mod cores;
pub mod count_bench;
pub mod engine;
pub mod engines;
pub mod key_bench;
pub mod meter;
pub mod no_harm;
pub mod overload;
pub mod pace;
pub mod process;
pub mod proxy;
pub mod replay;
pub mod report;
pub mod run;
pub mod scaler;
pub mod signal;
pub mod soak;
pub mod sse;
pub mod streams;
pub mod target;
mod template;
