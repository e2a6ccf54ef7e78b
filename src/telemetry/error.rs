//! Telemetry errors at the start.

/// Error of setting up telemetry.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Spans are sent from a tokio runtime, and none is running.
    #[error("telemetry.otlp.endpoint: traces need a running tokio runtime")]
    NoRuntime,
    /// The address of the OTLP collector cannot be used. The first part names its key or variable.
    #[error("{0}: {1}; expected http://host:port or https://host:port of an OTLP collector")]
    Endpoint(&'static str, String),
    /// An environment variable has a value that cannot be used.
    #[error("{name}: {problem}; correct the variable or unset it")]
    Variable { name: &'static str, problem: String },
    /// The exporter cannot be built.
    #[error("telemetry.otlp: {0}")]
    Exporter(String),
}

impl TelemetryError {
    pub(super) fn variable(name: &'static str, problem: String) -> Self {
        Self::Variable { name, problem }
    }
}
