//! Key watch: counts the keys in force, and warns about those that end soon and about broken key
//! files.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, interval};

use crate::config::settings::identity::Auth;
use crate::proxy::Proxy;
use crate::telemetry::event::KeysCounted;
use crate::telemetry::wall;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(60);
/// Time after which the same is said again.
const REPEAT: Duration = Duration::from_secs(24 * 3600);

/// Counts the keys every [`INTERVAL`], until dropped.
pub(in crate::app) async fn watch(proxy: Arc<Proxy>) {
    let mut said = (KeysCounted::default(), Instant::now());
    let mut every = interval(INTERVAL);
    loop {
        every.tick().await;
        let counted = count(&proxy);
        let same = (&said.0.expiring, &said.0.problems) == (&counted.expiring, &counted.problems);
        let is_news = !same || said.1.elapsed() >= REPEAT;
        counted.emit(is_news, &proxy.telemetry);
        if is_news {
            said = (counted, Instant::now());
        }
    }
}

/// Counts the keys of the settings in force.
pub(in crate::app) fn count(proxy: &Proxy) -> KeysCounted {
    let settings = proxy.settings.load();
    match &settings.edge.auth {
        Auth::Off(_) => KeysCounted::default(),
        Auth::Known(known) => {
            let problems = known.key_folder.as_ref().map_or(&[][..], |folder| &folder.problems);
            KeysCounted::of(known.keys.iter().map(|(id, key)| (id, key.expires)), problems, wall::now())
        }
    }
}
