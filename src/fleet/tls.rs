//! The process-wide TLS provider.

/// Makes aws-lc the provider of every TLS client that chooses none. A
/// provider that is already there stays.
pub fn install_provider() {
    let already_there = rustls::crypto::aws_lc_rs::default_provider().install_default().is_err();
    if already_there {
        tracing::debug!("a TLS provider was installed before");
    }
}
