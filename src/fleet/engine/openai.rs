//! Any other server that speaks the OpenAI API. Nothing is known of its
//! metrics; its model list is read when it has one.

use crate::fleet::engine::{Adapter, MODELS, Ready};

pub(super) const ADAPTER: Adapter = Adapter {
    metrics_path: None,
    info: &[MODELS],
    ready_paths: &["/v1/models"],
    ready: Ready::Answers,
    sleep: None,
    names_bind: true,
    adapters: None,
    read: |_| None,
};
