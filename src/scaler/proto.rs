//! Generated code of `proto/externalscaler.proto` and `proto/gateways.proto`.
#![expect(unreachable_pub, clippy::pedantic, reason = "generated; its comments are in the contract")]

include!("../../proto/generated/server.rs");

/// What reflection tells of the contract.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!("../../proto/generated/externalscaler.bin");

/// What gateways tell each other.
pub(super) mod gateways {
    include!("../../proto/generated/gateways.rs");
}
