//! Telemetry errors at the start.

/// Error of setting up telemetry.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Spans are sent from a tokio runtime, and none is running.
    #[error("telemetry.otlp_endpoint: traces need a running tokio runtime")]
    NoRuntime,
    /// The address of the OTLP collector cannot be used.
    #[error("telemetry.otlp_endpoint: {0}; expected http://host:port of an OTLP gRPC collector")]
    Endpoint(String),
}
