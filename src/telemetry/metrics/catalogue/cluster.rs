//! Metrics of the section "Several gateways".

use crate::telemetry::metrics::catalogue::row::gauge;

section! {
    CLUSTER_STORE_UP = gauge(
        "penstock_cluster_store_up",
        "1 while the store of `cluster` answers, else 0: the gateway then goes on with its last leases of limits.",
        &[],
    );

    CLUSTER_LEASES_OVER = gauge(
        "penstock_cluster_leases_over",
        "1 while leases have ended (`cluster.outage`), else 0.",
        &[],
    );

    CLUSTER_GATEWAYS = gauge(
        "penstock_cluster_gateways",
        "Gateways that share limits, this one included, as last heard.",
        &[],
    );
}
