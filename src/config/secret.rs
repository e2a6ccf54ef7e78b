//! Secrets that are named in the file and read from elsewhere.

use std::fmt;
use std::sync::Arc;

/// A secret's value. `Debug` and `Display` never show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a value.
    #[must_use]
    pub fn new(value: &str) -> Self {
        Self(value.into())
    }

    /// The value itself, to be sent and never to be logged.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
