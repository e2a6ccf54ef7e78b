//! Metrics of the section "Access and connections".

use crate::telemetry::metrics::catalogue::row::{ZeroSeries, codes, counter, gauge, label};

section! {
    AUTH_FAILURES = counter(
        "penstock_auth_failures_total",
        "Requests with no valid key, by reason.",
        &[codes("reason", || vec![
            "missing", "malformed", "unknown", "mismatch", "expired", "throttled", "certificate_unknown",
            "token_malformed", "token_too_long", "token_issuer", "token_audience", "token_algorithm",
            "token_critical", "token_key_unknown", "token_signature", "token_expired", "token_not_yet",
            "token_not_mapped", "token_nameless", "token_keys_unavailable",
        ])],
        ZeroSeries::Codes,
    );

    LINES_KEPT_BACK = counter(
        "penstock_log_lines_kept_back_total",
        "Refused requests that were counted and not logged, since there were too many of their kind in a second.",
        &[],
        ZeroSeries::Codes,
    );

    CONNECTIONS_REFUSED = counter(
        "penstock_connections_refused_total",
        "Connections turned away, by reason.",
        &[codes("reason", || vec![
            "address", "place_needed", "proxy_header", "request_line", "version", "target", "connect",
            "host_missing", "host_repeated", "host_invalid", "host_mismatch", "header_name",
            "space_before_colon", "folding", "control_byte", "bare_lf", "length_invalid", "length_repeated",
            "length_and_encoding", "encoding", "head_too_large", "too_many_fields", "chunk_size",
            "chunk_extension", "chunk_end", "trailer", "head_timeout", "body_timeout", "body_cut_short",
            "stream_resets",
        ])],
        ZeroSeries::Codes,
    );

    OPEN_CONNECTIONS = gauge("penstock_open_connections", "Open client connections.", &[]);

    ANSWERS_CUT_OFF = counter(
        "penstock_answers_cut_off_total",
        "Answers that were cut off because their clients took them too slowly.",
        &[],
        ZeroSeries::Codes,
    );

    HANDSHAKES_FAILED = counter(
        "penstock_tls_handshakes_failed_total",
        "Connections lost in the TLS handshake, by listener and reason.",
        &[
            codes("listener", || vec!["clients", "admin", "scale"]),
            codes("reason", || vec!["timeout", "certificate", "not_tls", "given_up", "protocol", "closed"]),
        ],
        ZeroSeries::Codes,
    );

    CERTIFICATE_ENDS = gauge(
        "penstock_tls_certificate_ends_timestamp_seconds",
        "Unix time at which the listener's certificate ends.",
        &[label("listener")],
    );

    ISSUER_FAILURES = counter(
        "penstock_issuer_failures_total",
        "Times an identity provider's keys could not be fetched.",
        &[],
        ZeroSeries::Codes,
    );

    ADMIN_REFUSALS = counter(
        "penstock_admin_refusals_total",
        "Requests refused at the operators' port, by reason.",
        &[codes("reason", || vec![
            "missing", "wrong", "expired", "certificate", "role", "host", "site", "throttled",
        ])],
        ZeroSeries::Codes,
    );

    KEYS = gauge(
        "penstock_keys",
        "API keys of tenants by state: active, expiring (active, and ends within 14 days), expired.",
        &[label("state")],
    );

    KEY_NEXT_EXPIRY = gauge(
        "penstock_key_next_expiry_timestamp_seconds",
        "Unix time at which the next API key ends; 0 = none of those in force ends.",
        &[],
    );

    KEY_FILE_PROBLEMS = gauge(
        "penstock_key_file_problems",
        "Files of `auth.keys_dir` that are broken, or some of whose keys are left out; at most 20 are counted.",
        &[],
    );
}
