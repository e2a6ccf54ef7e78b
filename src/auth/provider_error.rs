//! Identity provider errors.

/// Reason why a provider did not tell something. An error never contains text from the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProviderError {
    /// The HTTP client could not be built, because TLS could not be set up.
    #[error("no client for its address: are there CA certificates on this machine?")]
    NoClient,
    /// The provider could not be connected, or sent no whole answer in time.
    #[error("no whole answer from it")]
    Unreachable,
    /// The provider answered with a status other than 200.
    #[error("status {0}")]
    Status(u16),
    /// The answer is longer than 1 MiB.
    #[error("its answer is longer than 1 MiB")]
    TooLarge,
    /// The answer is not JSON, or lacks the expected fields.
    #[error("its answer is not what was asked for")]
    NotUnderstood,
    /// The discovery document names another issuer.
    #[error("its discovery document names another issuer")]
    OtherIssuer,
    /// The discovery document lacks this address, or gives one that is no plain URL.
    #[error("its discovery document has no usable `{0}`")]
    NoAddress(&'static str),
    /// The discovery document gives this address without https.
    #[error("its discovery document has a `{0}` without https")]
    PlainHttp(&'static str),
    /// The key set contains no key that can be used.
    #[error("it has no key that can be used")]
    NoKeys,
}
