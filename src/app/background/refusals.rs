//! Counted refusals: once a second, one log line and one usage row for each kind of refusals that were
//! too many to be written whole.

use crate::proxy::Proxy;
use crate::telemetry::event::RefusalsCounted;
use crate::telemetry::wall;
use crate::usage::row::{RowKind, UsageRow};

/// Reports the refusals that were only counted since the last call. Those without a tenant have no
/// row: otherwise, anyone who reaches a port could fill the journal.
pub(in crate::app) fn report(proxy: &Proxy) {
    let policy = proxy.telemetry.policy();
    for (kind, requests) in proxy.telemetry.take_counted_refusals() {
        RefusalsCounted { kind, requests }.emit(&proxy.telemetry);
        let (Some(journal), Some(tenant)) = (&proxy.journal, kind.tenant) else { continue };
        journal.record(UsageRow {
            requests,
            tenant: policy.tenants.name(tenant).into(),
            status: kind.status.unwrap_or_default(),
            outcome: kind.outcome.unwrap_or_default(),
            ..UsageRow::new(RowKind::Request, wall::now())
        });
    }
}
