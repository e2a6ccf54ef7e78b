//! Identifiers of requests, and the random bytes that they are made of.

pub mod random;
pub mod request_id;
