//! The bytes of the protocols: what clients ask, what engines answer, and the
//! errors between them. Pure code, without I/O; no input makes it panic.

pub mod api;
#[cfg(test)]
mod captures;
pub mod error;
pub mod headers;
pub mod ids;
mod json;
pub mod request;
pub mod response;
pub mod route;
pub mod sse;
