//! vLLM's OpenAI server.
//!
//! Checked against recordings of 0.32; older metric names are accepted too. `/load` is not used:
//! without `--enable-server-load-tracking` it always answers 0, which looks the same as an idle
//! engine.

use crate::engines::gauges::{EngineGauges, GaugeNames, GaugeSeries, exact_count, read_gauges};
use crate::engines::promtext::{PromSample, samples};
use crate::engines::spec::{Ability, EngineAdapters, EngineSpec, MODELS, ReadyStatus, SleepCalls};

pub(super) const SPEC: EngineSpec = EngineSpec {
    name: "vllm",
    metrics_path: Some("/metrics"),
    info: &[MODELS],
    ready_paths: &["/health"],
    ready: ReadyStatus::Success,
    sleep: Some(SLEEP),
    abilities: &[
        Ability::Continue,
        Ability::Priority,
        Ability::CacheSalt,
        Ability::Tokenize,
        Ability::CheckMaxTokens,
        Ability::ManyChoices,
        Ability::ListAllNames,
        Ability::MetricsOnApiPort,
    ],
    default_model: None,
    too_long: &[
        &["maximum context length", "tokens"],
        &["cannot be greater than max_model_len"],
        &["longer than the maximum model length"],
        &["longer than the maximum", "model length"],
    ],
    // Busy has no wordings: it goes by the status, alike for all engines (`fault_of` in
    // `src/protocol/response/engine_error.rs`).
    draining: &["cannot schedule new futures after shutdown"],
    adapters: Some(read_adapters),
    read,
};

/// Sleep at level 1 keeps the weights in the host's memory. vLLM has the paths only in development
/// mode.
const SLEEP: SleepCalls =
    SleepCalls { sleep: "/sleep?level=1", wake: "/wake_up", state: "/is_sleeping", read: read_state };

fn read_state(body: &[u8]) -> Option<bool> {
    let state: serde_json::Value = serde_json::from_slice(body).ok()?;
    state.get("is_sleeping")?.as_bool()
}

const NAMES: GaugeNames = GaugeNames {
    running: &[GaugeSeries::all("vllm:num_requests_running")],
    waiting: &[GaugeSeries::all("vllm:num_requests_waiting")],
    kv_usage: &[GaugeSeries::all("vllm:kv_cache_usage_perc"), GaugeSeries::all("vllm:gpu_cache_usage_perc")],
    slots: &[],
    kv_tokens: &[],
    progress: &[GaugeSeries::all("vllm:generation_tokens_total"), GaugeSeries::all("vllm:generation_tokens")],
    cached_tokens: &[
        GaugeSeries::all("vllm:prompt_tokens_cached_total"),
        GaugeSeries::all("vllm:prefix_cache_hits_total"),
        GaugeSeries::all("vllm:prefix_cache_hits"),
        GaugeSeries::all("vllm:gpu_prefix_cache_hits_total"),
    ],
};

fn read(text: &str) -> Option<EngineGauges> {
    let mut caches = CacheSizes::default();
    let mut sleep = SleepSeries::default();
    let gauges = read_gauges(text, &NAMES, |sample| {
        match sample.name {
            "vllm:cache_config_info" => caches.add(sample),
            "vllm:engine_sleep_state" => sleep.add(sample),
            _ => {}
        }
        true
    })?;
    Some(EngineGauges { kv_tokens: caches.tokens(), asleep: sleep.asleep(), ..gauges })
}

/// Reads the newest row of `lora_requests_info`. A row's value is the time of its writing, and old
/// rows stay. There is no row before the first request with an adapter.
fn read_adapters(text: &str) -> Option<EngineAdapters> {
    let rows = samples(text).filter(|sample| sample.name == "vllm:lora_requests_info");
    let newest = rows.max_by(|one, two| one.value.total_cmp(&two.value))?;
    let label = |name| newest.label(name);
    let slots = label("max_lora").and_then(|slots| slots.parse().ok()).filter(|slots| *slots > 0);
    let running = label("running_lora_adapters").unwrap_or_default();
    let names = running.split(',').map(str::trim).filter(|name| !name.is_empty());
    Some(EngineAdapters { slots, running: names.map(str::to_owned).collect() })
}

/// Sum of the KV cache sizes, from one row per data-parallel rank.
#[derive(Default)]
struct CacheSizes {
    total: u64,
    unknown: bool,
}

impl CacheSizes {
    fn add(&mut self, sample: &PromSample<'_>) {
        match cache_tokens(sample) {
            Some(tokens) => self.total = self.total.saturating_add(tokens),
            None => self.unknown = true,
        }
    }

    fn tokens(&self) -> Option<u64> {
        (self.total > 0 && !self.unknown).then_some(self.total)
    }
}

/// Size of a KV cache in tokens: vLLM's own count where there is one, else blocks × tokens per
/// block. vLLM's own count includes layers that keep fewer tokens.
fn cache_tokens(sample: &PromSample<'_>) -> Option<u64> {
    let number = |label| sample.label(label)?.parse().ok().and_then(exact_count).filter(|number| *number > 0);
    number("kv_cache_size_tokens").or_else(|| number("num_gpu_blocks")?.checked_mul(number("block_size")?))
}

/// Rows of `engine_sleep_state`. The row of the engine's present state has the value 1.
#[derive(Default)]
struct SleepSeries {
    awake: bool,
    other: bool,
}

impl SleepSeries {
    fn add(&mut self, sample: &PromSample<'_>) {
        if sample.value < 0.5 {
            return;
        }
        match sample.label("sleep_state").as_deref() {
            Some("awake") => self.awake = true,
            Some(_) => self.other = true,
            None => {}
        }
    }

    fn asleep(&self) -> Option<bool> {
        (self.awake || self.other).then_some(self.other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::info::tests::{body, read as read_info};

    macro_rules! fixture {
        ($path:literal) => {
            body(include_str!(concat!("../../tests/fixtures/vllm/", $path, ".http")))
        };
    }

    fn read(text: &str) -> EngineGauges {
        SPEC.gauges(text).unwrap()
    }

    #[test]
    fn reads_an_idle_server() {
        assert_eq!(
            read(fixture!("metrics/idle_fresh")),
            EngineGauges {
                running: Some(0),
                waiting: Some(0),
                kv_usage: Some(0.0),
                slots: None,
                kv_tokens: Some(2_097_152),
                progress: Some(0),
                cached_tokens: Some(0),
                asleep: Some(false),
            }
        );
    }

    #[test]
    fn reads_load_and_a_full_cache() {
        let loaded = read(fixture!("metrics/under_load_admission"));
        assert_eq!((loaded.running, loaded.waiting, loaded.progress), (Some(4), Some(6), Some(876)));
        let full = read(fixture!("metrics/under_kv_pressure"));
        assert_eq!((full.running, full.waiting), (Some(2), Some(2)));
        assert_eq!(full.kv_usage, Some(0.739_130_434_782_608_6));
    }

    #[test]
    fn reads_the_merged_view_of_two_api_servers() {
        let gauges = read(fixture!("metrics/two_api_servers"));
        assert_eq!((gauges.running, gauges.progress, gauges.asleep), (Some(0), Some(18), Some(false)));
    }

    #[test]
    fn the_newest_row_says_which_adapters_run() {
        let row = |running, waiting, at| {
            format!(
                "vllm:lora_requests_info{{max_lora=\"2\",running_lora_adapters=\"{running}\",\
                 waiting_lora_adapters=\"{waiting}\"}} {at}\n"
            )
        };
        let text = row("sql,chat", "law", "1.7951626e+09") + &row("", "", "1.7951625e+09");
        let names = vec!["sql".to_owned(), "chat".to_owned()];
        assert_eq!(read_adapters(&text), Some(EngineAdapters { slots: Some(2), running: names }));
        assert_eq!(
            read_adapters(&row("", "", "1")),
            Some(EngineAdapters { slots: Some(2), running: Vec::new() })
        );
        assert_eq!(read_adapters("vllm:num_requests_running 0\n"), None);
        let odd = "vllm:lora_requests_info{max_lora=\"0\"} 1\n";
        assert_eq!(read_adapters(odd), Some(EngineAdapters::default()));
    }

    #[test]
    fn sees_that_it_sleeps() {
        assert_eq!(read(fixture!("metrics/asleep")).asleep, Some(true));
        assert_eq!(read("vllm:num_requests_running 0\n").asleep, None);
    }

    #[test]
    fn a_cut_exposition_says_nothing() {
        assert_eq!(read(fixture!("metrics/openmetrics_accept")), EngineGauges::default());
    }

    #[test]
    fn adds_up_data_parallel_ranks() {
        let row = |rank, running, usage, blocks| {
            format!(
                "vllm:num_requests_running{{engine=\"{rank}\"}} {running}\n\
                 vllm:kv_cache_usage_perc{{engine=\"{rank}\"}} {usage}\n\
                 vllm:cache_config_info{{engine=\"{rank}\",block_size=\"16\",num_gpu_blocks=\"{blocks}\"}} 1\n"
            )
        };
        let both = read(&(row(0, 3, 0.5, "100") + &row(1, 4, 0.25, "100")));
        assert_eq!((both.running, both.kv_usage, both.kv_tokens), (Some(7), Some(0.375), Some(3200)));
        let half_known = read(&(row(0, 3, 0.5, "100") + &row(1, 4, 0.25, "None")));
        assert_eq!(half_known.kv_tokens, None);
    }

    #[test]
    fn reads_older_names() {
        let gauges = read("vllm:gpu_cache_usage_perc 0.5\nvllm:generation_tokens 12\n");
        assert_eq!((gauges.kv_usage, gauges.progress), (Some(0.5), Some(12)));
    }

    #[test]
    fn reads_its_models_with_aliases_and_adapters() {
        let info = read_info(&SPEC, &[fixture!("meta/models")]);
        let names: Vec<&str> = info.names.iter().map(|served| served.name.as_str()).collect();
        assert_eq!((names, info.max_model_len), (vec!["tiny", "tiny-alias"], Some(2048)));
        let lora = read_info(&SPEC, &[fixture!("lora/models")]);
        assert_eq!((lora.names.len(), lora.window("ad1")), (3, Some(2048)));
    }
}
