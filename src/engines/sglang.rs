//! SGLang.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::engines::gauges::{EngineGauges, GaugeNames, GaugeSeries, read_gauges};
use crate::engines::info::{InfoError, ModelInfo, object, size};
use crate::engines::promtext::PromSample;
use crate::engines::spec::{Ability, EngineSpec, InfoDocument, MODELS, ReadyStatus};

/// `/ready` comes first because it is cheap. `/health` runs a generation and is slow.
pub(super) const SPEC: EngineSpec = EngineSpec {
    name: "sglang",
    metrics_path: Some("/metrics"),
    info: &[MODELS, InfoDocument { path: "/server_info", read: read_server_info }],
    ready_paths: &["/ready", "/health"],
    ready: ReadyStatus::Success,
    sleep: None,
    abilities: &[Ability::Continue, Ability::ManyChoices, Ability::ReportSlots, Ability::MetricsOnApiPort],
    default_model: None,
    too_long: &[&["longer than the model's context length"]],
    draining: &[],
    adapters: None,
    read,
};

/// Series of both spellings of a name, with a colon and with an underscore.
macro_rules! both {
    ($($name:literal),+) => {
        &[$(GaugeSeries::all(concat!("sglang:", $name)), GaugeSeries::all(concat!("sglang_", $name))),+]
    };
}

/// `generation_tokens_total` moves only when a request ends, so the counter
/// that moves with each step comes first.
const NAMES: GaugeNames = GaugeNames {
    running: both!("num_running_reqs"),
    waiting: both!("num_queue_reqs"),
    kv_usage: both!("token_usage"),
    slots: &[],
    kv_tokens: both!("max_total_num_tokens"),
    progress: both!("realtime_tokens_total", "generation_tokens_total", "generation_tokens"),
    cached_tokens: both!("cached_tokens_total", "cached_tokens"),
};

fn read(text: &str) -> Option<EngineGauges> {
    let mut seen = BTreeSet::new();
    read_gauges(text, &NAMES, |sample| is_total(sample) && take_rank(sample, &mut seen))
}

/// Whether the sample is a total. With priority scheduling the queue gauges have one row per
/// priority. The total is the row whose priority is empty.
fn is_total(sample: &PromSample<'_>) -> bool {
    sample.label("priority").is_none_or(|priority| priority.is_empty())
}

/// Takes the data-parallel rank of a sample. Returns whether the sample is the first of its rank:
/// tensor-parallel processes may repeat the gauges. Counters always pass, because they have rows of
/// other kinds (`mode`).
fn take_rank<'a>(sample: &PromSample<'a>, seen: &mut BTreeSet<(&'a str, Cow<'a, str>)>) -> bool {
    let gauges = [NAMES.running, NAMES.waiting, NAMES.kv_usage, NAMES.kv_tokens];
    if !gauges.into_iter().flatten().any(|series| series.matches(sample)) {
        return true;
    }
    seen.insert((sample.name, sample.label("dp_rank").unwrap_or_default()))
}

/// Reads the limit of running requests, summed over the data-parallel ranks. Everything else in the
/// document (start-up arguments, secrets among them) is dropped.
fn read_server_info(body: &[u8], info: &mut ModelInfo) -> Result<(), InfoError> {
    let root = object(body)?;
    let ranks = root["internal_states"].as_array().map(Vec::as_slice).unwrap_or_default();
    let sum = ranks.iter().try_fold(0_u32, |sum, rank| {
        size(&rank["effective_max_running_requests_per_dp"]).and_then(|limit| sum.checked_add(limit))
    });
    info.slots = sum.filter(|sum| *sum > 0).or_else(|| size(&root["max_running_requests"]));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::info::tests::read as read_docs;

    fn read(text: &str) -> EngineGauges {
        SPEC.gauges(text).unwrap()
    }

    #[test]
    fn reads_metrics_with_priorities_and_ranks() {
        assert_eq!(
            read(include_str!("../../tests/fixtures/engines/sglang_metrics.txt")),
            EngineGauges {
                running: Some(9),
                waiting: Some(5),
                kv_usage: Some(0.375),
                kv_tokens: Some(200_000),
                progress: Some(7600),
                cached_tokens: None,
                ..EngineGauges::default()
            }
        );
    }

    #[test]
    fn reads_names_with_an_underscore() {
        let gauges =
            read("sglang_num_running_reqs 2\nsglang_token_usage 0.1\nsglang_generation_tokens_total 9\n");
        assert_eq!((gauges.running, gauges.kv_usage, gauges.progress), (Some(2), Some(0.1), Some(9)));
    }

    #[test]
    fn reads_info() {
        let models = include_str!("../../tests/fixtures/engines/sglang_models.json");
        let server = include_str!("../../tests/fixtures/engines/sglang_server_info.json");
        let info = read_docs(&SPEC, &[models, server]);
        assert_eq!((info.max_model_len, info.slots), (Some(32768), Some(256)));
        let plain = read_docs(&SPEC, &[models, r#"{"max_running_requests":48}"#]);
        assert_eq!(plain.slots, Some(48));
        let silent = read_docs(&SPEC, &[models, r#"{"max_running_requests":null,"internal_states":[{}]}"#]);
        assert_eq!(silent.slots, None);
    }

    #[test]
    fn limits_that_overflow_are_absent_and_do_not_panic() {
        let rank = r#"{"effective_max_running_requests_per_dp":4294967295}"#;
        let text = format!(r#"{{"internal_states":[{rank},{rank}]}}"#);
        let mut info = ModelInfo::default();
        assert_eq!(read_server_info(text.as_bytes(), &mut info), Ok(()));
        assert_eq!(info.slots, None);
    }
}
