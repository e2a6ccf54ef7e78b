//! What work costs: replicas' time by who used it, and its price.

pub mod meter;
