//! Gateways that share engines: what each has at replicas and what waits there, and the share of the places
//! that each may fill while jobs wait at more than one.
//!
//! The order of service decides among the tenants of one gateway. It cannot take places from another
//! gateway. So gateways tell each other their loads, and each computes the same division from all of them.
//! docs/decisions/088-fairness-over-gateways.md has the rules.

mod division;
pub mod load;
pub mod share;
