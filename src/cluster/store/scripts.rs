//! The scripts that run in the store.

/// The line of a script that stands for the store's time in milliseconds.
const NOW: &str = "--NOW";
const STORE_TIME: &str = "local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)";

/// The script of leases. Its line `--NOW` is to be replaced by one that sets `now`.
pub const LEASES: &str = include_str!("../leases/leases.lua");
/// The script of the gateways; likewise.
pub const MEMBERS: &str = include_str!("../members.lua");
/// The script of overrides; likewise.
pub const OVERRIDES: &str = include_str!("../overrides.lua");
/// The script of demand reports; likewise.
pub const DEMAND: &str = include_str!("../demand/demand.lua");
/// The script of the work of tenants and classes; likewise.
pub const SERVICE: &str = include_str!("../service/service.lua");
/// The script of the loads of gateways; likewise.
pub const LOAD: &str = include_str!("../load/load.lua");
/// The script of messages between gateways; likewise.
pub const MESSAGES: &str = include_str!("../messages/messages.lua");

/// A script with the hash by which the store knows it.
#[derive(Debug)]
pub(in crate::cluster) struct StoreScript {
    pub(super) text: String,
    pub(super) sha: String,
    /// Whether the store has refused the last call, and operators know it.
    pub(super) is_refused: bool,
}

impl StoreScript {
    pub(in crate::cluster) fn new(text: &str) -> Self {
        let text = text.replace(NOW, STORE_TIME);
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha, is_refused: false }
    }
}
