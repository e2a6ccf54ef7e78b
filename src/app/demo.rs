//! `penstock demo`: a gateway and a simulated fleet in one process.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::app::gateway::Gateway;
use crate::app::keys::fresh_key;
use crate::app::{load, signals};
use crate::cli::DemoArgs;
use crate::config::keys::NewKey;
use crate::sim::server::{SimHandle, SimOptions, SimServer};

/// The fleet: name of the pool, profile, replicas, sequences each.
const POOLS: [(&str, &str, usize, u32); 2] = [("h100", "h100-8b", 2, 64), ("l4", "l4-8b", 1, 16)];

/// Tenants: name, weight, classes (the first is the default).
const TENANTS: [(&str, f64, &[&str]); 3] = [
    ("chat-team", 3.0, &["interactive", "standard"]),
    ("search-team", 2.0, &["standard", "interactive", "batch"]),
    ("data-team", 1.0, &["batch", "standard"]),
];

/// The public model that every tenant may use.
pub(super) const MODEL: &str = "llama-3-8b";

/// A tenant of the demo and its key.
#[derive(Debug)]
pub(super) struct DemoTenant {
    pub(super) name: &'static str,
    pub(super) classes: &'static [&'static str],
    pub(super) key: NewKey,
}

/// Runs until Ctrl-C or SIGTERM, then drains.
///
/// # Errors
/// An address is taken, or the configuration cannot be written.
pub(super) async fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let fleet = start_fleet().await?;
    let tenants: Vec<DemoTenant> = TENANTS
        .iter()
        .map(|(name, _, classes)| DemoTenant { name, classes, key: fresh_key() })
        .collect();
    let folder = std::env::temp_dir().join(format!("penstock-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let path = folder.join("penstock.yaml");
    std::fs::write(&path, config(args, &fleet, &tenants)).with_context(|| format!("write {}", path.display()))?;

    let gateway = Gateway::start(&path).await?;
    println!("{}", greeting(&gateway, &tenants, &path));
    let traffic = args.load.then(|| load::start(gateway.data_address(), &tenants));

    let reason = signals::shutdown().await;
    println!("\n{reason}: draining; a second signal stops at once");
    drop(traffic);
    gateway.drain().await;
    for engine in fleet {
        engine.stop().await;
    }
    std::fs::remove_dir_all(&folder).ok();
    Ok(())
}
