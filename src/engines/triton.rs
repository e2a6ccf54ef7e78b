//! Triton with the TensorRT-LLM back end, behind its OpenAI front end.

use crate::engines::gauges::{EngineGauges, GaugeNames, GaugeSeries, exact_count, read_gauges};
use crate::engines::spec::{Ability, EngineSpec, MODELS, ReadyStatus};

const REQUESTS: &str = "nv_trt_llm_request_metrics";
const BLOCKS: &str = "nv_trt_llm_kv_cache_block_metrics";
const BLOCK_KIND: &str = "kv_cache_block_type";

/// No counter of Triton is a sign of progress: the counters move when requests end, not while they
/// run. `/v2/health/ready` exists when the KServe front end shares the port; the OpenAI front end
/// has `/health/ready`.
pub(super) const SPEC: EngineSpec = EngineSpec {
    name: "triton",
    metrics_path: Some("/metrics"),
    info: &[MODELS],
    ready_paths: &["/v2/health/ready", "/health/ready"],
    ready: ReadyStatus::Success,
    sleep: None,
    abilities: &[Ability::ManyChoices, Ability::ListAllNames, Ability::ReportSlots],
    default_model: None,
    too_long: &[],
    draining: &[],
    adapters: None,
    read,
};

const NAMES: GaugeNames = GaugeNames {
    running: &[GaugeSeries::only(REQUESTS, "request_type", "scheduled")],
    waiting: &[GaugeSeries::only(REQUESTS, "request_type", "waiting")],
    kv_usage: &[GaugeSeries::only(BLOCKS, BLOCK_KIND, "fraction")],
    slots: &[GaugeSeries::only(REQUESTS, "request_type", "max")],
    kv_tokens: &[],
    progress: &[],
    cached_tokens: &[],
};

/// Reads the gauges. The cache size is known only when one model reports it: rows of several models
/// do not say which blocks belong to which model.
fn read(text: &str) -> Option<EngineGauges> {
    let (mut blocks, mut per_block) = (Vec::new(), Vec::new());
    let gauges = read_gauges(text, &NAMES, |sample| {
        if sample.name == BLOCKS {
            match sample.label(BLOCK_KIND).as_deref() {
                Some("max") => blocks.push(sample.value),
                Some("tokens_per") => per_block.push(sample.value),
                _ => {}
            }
        }
        true
    })?;
    let tokens = match (&blocks[..], &per_block[..]) {
        ([blocks], [per_block]) => exact_count(blocks * per_block).filter(|tokens| *tokens > 0),
        _ => None,
    };
    Some(EngineGauges { kv_tokens: tokens, ..gauges })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../../tests/fixtures/engines/triton_metrics.txt");

    #[test]
    fn reads_metrics() {
        assert_eq!(
            SPEC.gauges(TEXT),
            Some(EngineGauges {
                running: Some(8),
                waiting: Some(4),
                kv_usage: Some(0.125),
                slots: Some(512),
                kv_tokens: Some(399_296),
                progress: None,
                cached_tokens: None,
                asleep: None,
            })
        );
    }

    #[test]
    fn two_models_have_no_common_cache_size() {
        let other = TEXT.replace("model=\"tensorrt_llm\"", "model=\"draft\"");
        let gauges = SPEC.gauges(&(TEXT.to_owned() + &other)).unwrap();
        assert_eq!((gauges.running, gauges.kv_tokens), (Some(16), None));
    }
}
