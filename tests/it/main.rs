//! In-process integration tests.

mod access;
mod faults;
mod limits;
mod operate;
mod request;
mod scale;
mod support;
