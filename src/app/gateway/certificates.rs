//! Certificates of the three listeners.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::config::settings::Settings;
use crate::config::settings::identity::{ListenerTls, Listeners};
use crate::telemetry::Telemetry;
use crate::telemetry::event::CertificateLoaded;
use crate::tls::CertificateSource;

/// Source of one listener's certificate, from the settings in force.
pub(in crate::app) fn certificate_source(
    settings: &Arc<ArcSwap<Settings>>,
    listener: fn(&Listeners) -> &Option<ListenerTls>,
) -> CertificateSource {
    let settings = Arc::clone(settings);
    Arc::new(move || listener(&settings.load().listeners).as_ref().map(|tls| Arc::clone(&tls.config)))
}

/// Reports the listeners whose certificate differs from before.
pub(in crate::app) fn certificates_loaded(before: &Listeners, after: &Listeners, telemetry: &Telemetry) {
    let pairs = [
        ("clients", &before.clients, &after.clients),
        ("admin", &before.admin, &after.admin),
        ("scale", &before.scale, &after.scale),
    ];
    for (listener, before, after) in pairs {
        if let Some(tls) = after.as_ref().filter(|_| before != after) {
            CertificateLoaded { listener, ends: tls.ends }.emit(telemetry);
        }
    }
}
