//! Generated code of `externalscaler.proto` (KEDA's contract) and `gateways.proto`.
#![expect(unreachable_pub, clippy::pedantic, reason = "generated; its comments are in the contract")]

include!("generated/server.rs");

/// Descriptors of the contract, for gRPC reflection.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!("generated/externalscaler.bin");

/// Messages between gateways.
pub(super) mod gateways {
    include!("generated/gateways.rs");
}
