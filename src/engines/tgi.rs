//! Hugging Face Text Generation Inference.

use crate::engines::gauges::{EngineGauges, GaugeNames, GaugeSeries, read_gauges};
use crate::engines::info::{InfoError, ModelInfo, ServedName, object, size};
use crate::engines::spec::{Ability, EngineSpec, InfoDocument, ReadyStatus};

/// TGI's list does not bind: its own name is `tgi`, and a name that is not listed may be an
/// adapter.
pub(super) const SPEC: EngineSpec = EngineSpec {
    name: "tgi",
    metrics_path: Some("/metrics"),
    info: &[InfoDocument { path: "/info", read: read_info }],
    ready_paths: &["/health"],
    ready: ReadyStatus::Success,
    sleep: None,
    abilities: &[Ability::ReportSlots, Ability::MetricsOnApiPort],
    default_model: Some("tgi"),
    too_long: &[&["tokens + `max_new_tokens` must be <="], &["must have less than", "tokens. given"]],
    draining: &[],
    adapters: None,
    read,
};

const NAMES: GaugeNames = GaugeNames {
    running: &[GaugeSeries::all("tgi_batch_current_size")],
    waiting: &[GaugeSeries::all("tgi_queue_size")],
    kv_usage: &[],
    slots: &[],
    kv_tokens: &[],
    progress: &[
        GaugeSeries::all("tgi_batch_inference_count"),
        GaugeSeries::all("tgi_batch_inference_count_total"),
    ],
    cached_tokens: &[],
};

fn read(text: &str) -> Option<EngineGauges> {
    read_gauges(text, &NAMES, |_| true)
}

/// Reads `max_total_tokens` as the context window, and `max_concurrent_requests` as the slots.
/// Beyond that number TGI answers 429.
fn read_info(body: &[u8], info: &mut ModelInfo) -> Result<(), InfoError> {
    let root = object(body)?;
    let name = root["model_id"].as_str().ok_or(InfoError)?;
    info.max_model_len = size(&root["max_total_tokens"]);
    info.slots = size(&root["max_concurrent_requests"]);
    info.names = vec![ServedName { name: name.to_owned(), max_model_len: info.max_model_len }];
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::info::tests::read as read_docs;

    #[test]
    fn reads_metrics() {
        let gauges = SPEC.gauges(include_str!("../../tests/fixtures/engines/tgi_metrics.txt"));
        let expected = EngineGauges {
            running: Some(17),
            waiting: Some(3),
            progress: Some(1204),
            ..EngineGauges::default()
        };
        assert_eq!(gauges, Some(expected));
    }

    #[test]
    fn a_server_that_never_ran_a_batch_does_not_say() {
        let gauges = SPEC.gauges("tgi_queue_size 0\n").unwrap();
        assert_eq!((gauges.waiting, gauges.running, gauges.progress), (Some(0), None, None));
    }

    #[test]
    fn reads_info() {
        let info = read_docs(&SPEC, &[include_str!("../../tests/fixtures/engines/tgi_info.json")]);
        assert_eq!((info.max_model_len, info.slots), (Some(4096), Some(128)));
        assert_eq!(info.names[0].name, "example/chat-7b");
        assert_eq!(read_info(b"{}", &mut ModelInfo::default()), Err(InfoError));
    }
}
