//! The code that `proto/externalscaler.proto` stands for.
#![expect(unreachable_pub, clippy::pedantic, reason = "generated; its comments are in the contract")]

include!("../../proto/generated/server.rs");

/// What reflection tells of the contract.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!("../../proto/generated/externalscaler.bin");
