//! Any other server that speaks the OpenAI API. Its metrics are not read, because their names are
//! not known. Its model list is read when there is one.

use crate::fleet::engine::{EngineSpec, MODELS, ReadyStatus};

pub(super) const ADAPTER: EngineSpec = EngineSpec {
    metrics_path: None,
    info: &[MODELS],
    ready_paths: &["/v1/models"],
    ready: ReadyStatus::NotServerError,
    sleep: None,
    lists_all_names: true,
    adapters: None,
    read: |_| None,
};
