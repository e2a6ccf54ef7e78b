//! In-process integration tests.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod faults;
mod limits;
mod operate;
mod request;
mod scale;
mod support;
