//! Request tests: one request and its answer, as clients and engines see it.

pub(crate) mod affinity;
pub(crate) mod answers;
pub(crate) mod clients;
pub(crate) mod differential;
pub(crate) mod early_heads;
pub(crate) mod events;
pub(crate) mod fallbacks;
pub(crate) mod hostile;
pub(crate) mod leaving;
pub(crate) mod listener;
pub(crate) mod shadows;
pub(crate) mod slow_clients;
pub(crate) mod summary;
pub(crate) mod superseding;
pub(crate) mod tokens;
