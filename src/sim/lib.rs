//! Simulated engine: one timing model ([`engine`]) with two uses. [`server`] is
//! an HTTP server that behaves like a real engine, faults included
//! ([`faults`]); the other use is the discrete-event world.

pub mod arrivals;
pub mod chart;
pub mod engine;
pub mod faults;
pub mod rng;
pub mod server;
pub mod spread;
pub mod trace;
pub mod world;
