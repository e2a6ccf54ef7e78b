//! Puts the scale signal together: from the gate to the board, from the board
//! to KEDA and to the admin port.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::app::hooks;
use crate::app::start::StartError;
use crate::config::settings::Settings;
use crate::core::need::Need;
use crate::proxy::handler::Proxy;
use crate::scale::{self, Board, Feed, ScaleHandle, ScaleListener};
use crate::telemetry::event::HandshakeFailed;
use crate::tls::{Handshakes, Names};

/// The gate as the board sees it.
struct FromGate(Arc<Proxy>);

impl Feed for FromGate {
    fn needs(&self) -> Vec<(String, Need)> {
        let needs = self.0.gate.needs();
        let policy = &self.0.settings.load().policy;
        let named = needs.into_iter().filter(|need| policy.pools.get(need.pool).is_some());
        named.map(|need| (policy.pools.name(need.pool).to_owned(), need)).collect()
    }

    fn expect_arrival(&self) {
        self.0.gate.expect_arrival();
    }

    fn arrival(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.0.gate.next_arrival())
    }
}

/// Starts the scaler.
///
/// # Errors
/// Its address cannot be had.
pub(super) fn start(
    now: &Settings,
    proxy: &Arc<Proxy>,
    board: Arc<Board>,
) -> Result<ScaleHandle, StartError> {
    let listener = now.scale.listen.map(|address| {
        let (door, rules, telemetry) =
            (&now.startup.door, Arc::clone(&proxy.settings), proxy.telemetry.clone());
        ScaleListener {
            address,
            tls: hooks::scale_tls(&proxy.settings),
            handshakes: Handshakes::new(door.max_handshakes, door.handshake_timeout),
            allows: Box::new(move |names| is_allowed(&rules.load(), names)),
            failed: Box::new(move |reason| HandshakeFailed { listener: "scale", reason }.emit(&telemetry)),
        }
    });
    let address = listener.as_ref().map(|listener| listener.address);
    scale::start(board, Arc::new(FromGate(Arc::clone(proxy))), listener).map_err(|problem| match address {
        Some(address) => StartError::Scale { address, problem },
        None => StartError::ScaleThread(problem),
    })
}

fn is_allowed(settings: &Settings, names: Option<&Names>) -> bool {
    let Some(allowed) = &settings.scale.names else { return true };
    names.is_some_and(|names| names.iter().any(|name| allowed.contains(name)))
}
