//! llama.cpp's server. The server has metrics only with `--metrics`.

use crate::engines::gauges::{EngineGauges, GaugeNames, GaugeSeries, read_gauges};
use crate::engines::info::{InfoError, ModelInfo, object, size};
use crate::engines::spec::{Ability, EngineSpec, InfoDocument, MODELS, ReadyStatus};

pub(super) const SPEC: EngineSpec = EngineSpec {
    name: "llamacpp",
    metrics_path: Some("/metrics"),
    info: &[MODELS, InfoDocument { path: "/props", read: read_props }],
    ready_paths: &["/health"],
    ready: ReadyStatus::Success,
    sleep: None,
    abilities: &[Ability::ReportSlots, Ability::MetricsOnApiPort],
    default_model: None,
    too_long: &[&["exceeds the available context size"]],
    draining: &[],
    adapters: None,
    read,
};

/// `tokens_predicted_total` moves only when a request ends, so the number of decode steps comes
/// first. New builds have no gauge of the KV cache.
const NAMES: GaugeNames = GaugeNames {
    running: &[GaugeSeries::all("llamacpp:requests_processing")],
    waiting: &[GaugeSeries::all("llamacpp:requests_deferred")],
    kv_usage: &[GaugeSeries::all("llamacpp:kv_cache_usage_ratio")],
    slots: &[],
    kv_tokens: &[],
    progress: &[
        GaugeSeries::all("llamacpp:n_decode_total"),
        GaugeSeries::all("llamacpp:tokens_predicted_total"),
    ],
    cached_tokens: &[],
};

fn read(text: &str) -> Option<EngineGauges> {
    read_gauges(text, &NAMES, |_| true)
}

/// Reads the context window of one slot, and the number of slots. The document is read after the
/// model list, whose entries have no window here.
fn read_props(body: &[u8], info: &mut ModelInfo) -> Result<(), InfoError> {
    let root = object(body)?;
    let of_slot = size(&root["default_generation_settings"]["n_ctx"]);
    info.max_model_len = of_slot.or_else(|| size(&root["n_ctx"]));
    info.slots = size(&root["total_slots"]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::info::tests::read as read_docs;

    #[test]
    fn reads_metrics() {
        let gauges = SPEC.gauges(include_str!("../../tests/fixtures/engines/llamacpp_metrics.txt"));
        let expected = EngineGauges {
            running: Some(2),
            waiting: Some(1),
            progress: Some(531),
            ..EngineGauges::default()
        };
        assert_eq!(gauges, Some(expected));
    }

    #[test]
    fn reads_older_names() {
        let gauges =
            SPEC.gauges("llamacpp:kv_cache_usage_ratio 0.25\nllamacpp:tokens_predicted_total 7\n").unwrap();
        assert_eq!((gauges.kv_usage, gauges.progress), (Some(0.25), Some(7)));
    }

    #[test]
    fn reads_info() {
        let models = include_str!("../../tests/fixtures/engines/llamacpp_models.json");
        let props = include_str!("../../tests/fixtures/engines/llamacpp_props.json");
        let info = read_docs(&SPEC, &[models, props]);
        assert_eq!((info.window("chat-8b.gguf"), info.slots), (Some(8192), Some(4)));
        let flat = read_docs(&SPEC, &[models, r#"{"n_ctx":512}"#]);
        assert_eq!((flat.max_model_len, flat.slots), (Some(512), None));
    }
}
