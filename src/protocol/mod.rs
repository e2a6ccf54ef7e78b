//! Protocols: the bytes of client requests, engine answers and the errors between them. The code is
//! pure, without I/O; no input makes it panic.

pub mod api;
#[cfg(test)]
mod captures;
pub mod error;
pub mod headers;
pub mod http1;
pub mod ids;
mod json;
mod json_scan;
pub mod private_name;
pub mod request;
pub mod response;
pub mod route;
pub mod sse;
