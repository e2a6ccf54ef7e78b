//! Work of tenants and classes at the gateways, for fair shares over all of them.

pub(super) mod batches;
pub(super) mod share;

pub use batches::{ServiceBatches, ServiceCall};
