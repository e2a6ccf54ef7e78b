//! Kubernetes object: what a watch reads of any kind.

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Metadata that every object has.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectMetadata {
    pub(super) name: String,
    pub(super) resource_version: String,
}

/// Kubernetes object that can be listed and watched.
pub(super) trait KubeObject: DeserializeOwned {
    /// Error text for an answer that is no list of these objects.
    const NO_LIST: &'static str;

    fn metadata(&self) -> &ObjectMetadata;
}
