//! The bytes of the protocols: what clients ask, what engines answer, and the
//! errors between them. Pure code, without I/O; no input makes it panic.

pub mod api;
#[cfg(test)]
mod captures;
pub mod catalogue;
pub mod error;
mod fields;
mod going_on;
pub mod headers;
mod json;
pub mod judge;
pub mod limits;
mod multipart;
pub mod peek;
pub mod prefix;
pub mod random;
pub mod request_id;
pub mod route;
pub mod splice;
pub mod sse;
