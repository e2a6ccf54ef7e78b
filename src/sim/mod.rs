//! The simulated engine: one timing model ([`engine`]) with two uses, an HTTP
//! server that behaves like a real engine ([`server`]), faults included
//! ([`faults`]), and the discrete-event world.

pub mod arrivals;
pub mod chart;
pub mod engine;
pub mod faults;
pub mod no_harm;
pub mod plan;
pub mod rng;
pub mod scenario;
pub mod server;
pub mod spread;
pub mod trace;
pub mod world;
