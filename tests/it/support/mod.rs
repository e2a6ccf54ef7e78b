//! Support of the tests: gateways, clients and servers of the tests' own.

pub(crate) mod certificates;
pub(crate) mod client;
pub(crate) mod dns;
pub(crate) mod gateway;
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod recorder;
pub(crate) mod tls_front;
