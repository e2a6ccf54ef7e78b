//! HTTP parts that both dialects use: the request, its connection and job, and response bodies.

pub(super) mod body;
pub(super) mod call;
pub(super) mod conn;
pub(super) mod job;
pub(super) mod json;
pub(super) mod reply;
