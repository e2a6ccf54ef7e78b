//! NVIDIA `trtllm-serve`.

use crate::fleet::engine::gauges::{Gauges, Names, Series, gather, whole};
use crate::fleet::engine::{Adapter, MODELS, Ready};

/// `/metrics` is another thing there: JSON, and reading it takes the numbers
/// away from the next reader.
pub(super) const ADAPTER: Adapter = Adapter {
    metrics_path: Some("/prometheus/metrics"),
    info: &[MODELS],
    ready_paths: &["/health"],
    ready: Ready::Success,
    sleep: None,
    names_bind: true,
    adapters: None,
    read,
};

const NAMES: Names = Names {
    running: &[Series::all("trtllm_num_requests_running")],
    waiting: &[Series::all("trtllm_num_requests_waiting")],
    kv_usage: &[Series::all("trtllm_kv_cache_utilization")],
    slots: &[Series::all("trtllm_max_num_active_requests")],
    kv_tokens: &[],
    progress: &[Series::all("trtllm_generation_tokens_total"), Series::all("trtllm_generation_tokens")],
};

fn read(text: &str) -> Option<Gauges> {
    let (mut blocks, mut per_block) = (None, None);
    let gauges = gather(text, &NAMES, |sample| {
        match sample.name {
            "trtllm_kv_cache_max_blocks" => blocks = whole(sample.value),
            "trtllm_kv_cache_tokens_per_block" => per_block = whole(sample.value),
            _ => {}
        }
        true
    })?;
    let tokens = blocks.zip(per_block).and_then(|(blocks, per_block)| blocks.checked_mul(per_block));
    Some(Gauges { kv_tokens: tokens.filter(|tokens| *tokens > 0), ..gauges })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_metrics() {
        assert_eq!(
            ADAPTER.gauges(include_str!("../../../tests/fixtures/engines/trtllm_metrics.txt")),
            Some(Gauges {
                running: Some(12),
                waiting: Some(2),
                kv_usage: Some(0.4375),
                slots: Some(64),
                kv_tokens: Some(204_800),
                progress: Some(90_210),
                asleep: None,
            })
        );
    }

    #[test]
    fn before_its_first_step_sizes_are_unknown() {
        let gauges = ADAPTER
            .gauges("trtllm_max_num_active_requests 0\ntrtllm_kv_cache_max_blocks 0\ntrtllm_kv_cache_tokens_per_block 32\n")
            .unwrap();
        assert_eq!((gauges.slots, gauges.kv_tokens), (None, None));
    }
}
