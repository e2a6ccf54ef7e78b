//! Support of the tests: gateways, clients and servers of the tests' own.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) mod certificates;
pub(crate) mod client;
pub(crate) mod dns;
pub(crate) mod gateway;
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod provider;
pub(crate) mod recorder;
pub(crate) mod redis;
pub(crate) mod tls_front;

/// A port that is free and stays so: the system gives ports of this range to nobody who does not ask
/// for one by number.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    loop {
        let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let port = 10_000 + u16::try_from(number).expect("below 20,000");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
