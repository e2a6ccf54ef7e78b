//! HTTP layer of the simulated engine: connections, bodies and routes.

pub(super) mod body;
pub(super) mod conn;
pub(super) mod json;
pub(super) mod listen;
pub(super) mod reply;
pub(super) mod route;
