//! Access tests: credentials at each listener.

pub(crate) mod engine_tls;
pub(crate) mod guardrails;
pub(crate) mod ids_and_addresses;
pub(crate) mod key_files;
pub(crate) mod keys;
pub(crate) mod me;
pub(crate) mod me_page;
pub(crate) mod oidc;
pub(crate) mod operator_oidc;
pub(crate) mod operators;
pub(crate) mod tls;
