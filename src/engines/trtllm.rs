//! NVIDIA `trtllm-serve`.

use crate::engines::gauges::{EngineGauges, GaugeNames, GaugeSeries, exact_count, read_gauges};
use crate::engines::spec::{Ability, EngineSpec, MODELS, ReadyStatus};

/// `/metrics` is not used: it answers JSON, and reading it takes the numbers away from the next
/// reader.
pub(super) const SPEC: EngineSpec = EngineSpec {
    name: "trtllm",
    metrics_path: Some("/prometheus/metrics"),
    info: &[MODELS],
    ready_paths: &["/health"],
    ready: ReadyStatus::Success,
    sleep: None,
    abilities: &[
        Ability::ManyChoices,
        Ability::ListAllNames,
        Ability::ReportSlots,
        Ability::MetricsOnApiPort,
    ],
    default_model: None,
    too_long: &[
        &["exceed", "max_seq_len"],
        &["exceed", "max_input_len"],
        &["exceed", "maximum input length"],
    ],
    draining: &[],
    adapters: None,
    read,
};

const NAMES: GaugeNames = GaugeNames {
    running: &[GaugeSeries::all("trtllm_num_requests_running")],
    waiting: &[GaugeSeries::all("trtllm_num_requests_waiting")],
    kv_usage: &[GaugeSeries::all("trtllm_kv_cache_utilization")],
    slots: &[GaugeSeries::all("trtllm_max_num_active_requests")],
    kv_tokens: &[],
    progress: &[
        GaugeSeries::all("trtllm_generation_tokens_total"),
        GaugeSeries::all("trtllm_generation_tokens"),
    ],
    cached_tokens: &[],
};

fn read(text: &str) -> Option<EngineGauges> {
    let (mut blocks, mut per_block) = (None, None);
    let gauges = read_gauges(text, &NAMES, |sample| {
        match sample.name {
            "trtllm_kv_cache_max_blocks" => blocks = exact_count(sample.value),
            "trtllm_kv_cache_tokens_per_block" => per_block = exact_count(sample.value),
            _ => {}
        }
        true
    })?;
    let tokens = blocks.zip(per_block).and_then(|(blocks, per_block)| blocks.checked_mul(per_block));
    Some(EngineGauges { kv_tokens: tokens.filter(|tokens| *tokens > 0), ..gauges })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_metrics() {
        assert_eq!(
            SPEC.gauges(include_str!("../../tests/fixtures/engines/trtllm_metrics.txt")),
            Some(EngineGauges {
                running: Some(12),
                waiting: Some(2),
                kv_usage: Some(0.4375),
                slots: Some(64),
                kv_tokens: Some(204_800),
                progress: Some(90_210),
                cached_tokens: None,
                asleep: None,
            })
        );
    }

    #[test]
    fn before_its_first_step_sizes_are_unknown() {
        let gauges = SPEC
            .gauges("trtllm_max_num_active_requests 0\ntrtllm_kv_cache_max_blocks 0\ntrtllm_kv_cache_tokens_per_block 32\n")
            .unwrap();
        assert_eq!((gauges.slots, gauges.kv_tokens), (None, None));
    }
}
