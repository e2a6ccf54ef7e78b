//! Generated code of `proto/externalscaler.proto` and `proto/gateways.proto`.
#![expect(unreachable_pub, clippy::pedantic, reason = "generated; its comments are in the contract")]

include!("../../proto/generated/server.rs");

/// Descriptors of the contract, for gRPC reflection.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!("../../proto/generated/externalscaler.bin");

/// Messages between gateways.
pub(super) mod gateways {
    include!("../../proto/generated/gateways.rs");
}
