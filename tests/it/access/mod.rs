//! Access tests: credentials at each listener.

pub(crate) mod guardrails;
pub(crate) mod keys;
pub(crate) mod oidc;
pub(crate) mod operators;
pub(crate) mod tls;
