//! KEDA's external scaler, call by call, with a plain gRPC client.

mod contract;
mod double;
mod manifests;
mod overload;
mod peers;
mod push;
mod setup;
mod store;
mod twin;
