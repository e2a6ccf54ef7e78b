//! Any other server that speaks the OpenAI API. Its metrics are not read, because their names are
//! not known. Its model list is read when there is one.

use crate::engines::spec::{Ability, EngineSpec, MODELS, ReadyStatus};

pub(super) const SPEC: EngineSpec = EngineSpec {
    name: "openai",
    metrics_path: None,
    info: &[MODELS],
    ready_paths: &["/v1/models"],
    ready: ReadyStatus::NotServerError,
    sleep: None,
    abilities: &[Ability::ManyChoices, Ability::ListAllNames, Ability::MetricsOnApiPort],
    default_model: None,
    too_long: &[],
    draining: &["shutting down", "is draining"],
    adapters: None,
    read: |_| None,
};
