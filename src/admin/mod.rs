//! The operators listener.
