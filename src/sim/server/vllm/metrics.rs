//! Metrics page `/metrics` with vLLM's names and labels.

use std::fmt::Write;

use http::Response;

use crate::engine::BLOCK_TOKENS;
use crate::faults::FaultKind;
use crate::server::core::MetricsView;
use crate::server::http::body::SimBody;
use crate::server::http::call::ServerCall;
use crate::server::http::reply;
use crate::server::stats::{Histogram, Stats};

const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

pub(super) fn answer(call: &ServerCall) -> Response<SimBody> {
    let sim = &call.sim;
    let now = sim.now();
    let frozen = sim.faults.state(now, |kind| matches!(kind, FaultKind::FrozenMetrics).then_some(()));
    if frozen.is_some()
        && let Some(text) = sim.last_metrics.lock().clone()
    {
        return reply::typed(200, CONTENT_TYPE, text);
    }
    let mut view = sim.work.lock().view();
    apply_lying_metrics(call, &mut view);
    let mut page = MetricsPage { out: String::with_capacity(8 << 10), model: sim.options.model() };
    page.gauges(&view);
    page.counters(&view);
    {
        let work = sim.work.lock();
        page.outcomes(&work.stats);
        page.histograms(&work.stats);
    }
    page.info(&view);
    page.adapters(call);
    let text = without_missing(call, page.out);
    if frozen.is_some() {
        *sim.last_metrics.lock() = Some(text.clone());
    }
    reply::typed(200, CONTENT_TYPE, text)
}

/// Replaces the gauges by those of a `lying_metrics` fault.
fn apply_lying_metrics(call: &ServerCall, view: &mut MetricsView) {
    let lie = call.sim.faults.state(call.sim.now(), |kind| match kind {
        FaultKind::LyingMetrics { running, waiting, kv_usage } => Some((*running, *waiting, *kv_usage)),
        _ => None,
    });
    let Some((running, waiting, kv_usage)) = lie else { return };
    let gauges = &mut view.gauges;
    gauges.running = running.unwrap_or(gauges.running);
    gauges.waiting = waiting.unwrap_or(gauges.waiting);
    if let Some(usage) = kv_usage {
        gauges.blocks_used = (usage * gauges.blocks_total as f64) as u64;
    }
}

/// Drops the series that a `missing_metrics` fault names.
pub(crate) fn without_missing(call: &ServerCall, text: String) -> String {
    let missing = call.sim.faults.state(call.sim.now(), |kind| match kind {
        FaultKind::MissingMetrics { names } => Some(names.clone()),
        _ => None,
    });
    let Some(names) = missing else { return text };
    let gone = |line: &str| {
        let name = line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ");
        let name = name.split(['{', ' ']).next().unwrap_or_default();
        names.is_empty() || names.iter().any(|missing| missing == name)
    };
    text.lines().filter(|line| !gone(line)).flat_map(|line| [line, "\n"]).collect()
}

struct MetricsPage<'a> {
    out: String,
    model: &'a str,
}

impl MetricsPage<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.out, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}\n");
    }

    /// One sample; `labels` sorts before `model_name` as in the real page.
    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let model = self.model;
        let _ = writeln!(self.out, "vllm:{name}{{engine=\"0\",{labels}model_name=\"{model}\"}} {value:?}");
    }

    /// One sample whose extra label sorts after `model_name`.
    fn tagged(&mut self, name: &str, label: &str, value: f64) {
        let model = self.model;
        let _ = writeln!(self.out, "vllm:{name}{{engine=\"0\",model_name=\"{model}\",{label}}} {value:?}");
    }

    fn gauges(&mut self, view: &MetricsView) {
        let gauges = view.gauges;
        self.head("num_requests_running", "gauge", "Number of requests in model execution batches.");
        self.sample("num_requests_running", "", gauges.running as f64);
        self.head("num_requests_waiting", "gauge", "Number of requests waiting to be processed.");
        self.sample("num_requests_waiting", "", gauges.waiting as f64);
        self.head("num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.");
        self.tagged("num_requests_waiting_by_reason", "reason=\"capacity\"", gauges.waiting as f64);
        self.tagged("num_requests_waiting_by_reason", "reason=\"deferred\"", 0.0);
        self.head("engine_sleep_state", "gauge", "Engine sleep state.");
        for (state, on) in
            [("awake", !view.asleep), ("weights_offloaded", view.asleep), ("discard_all", false)]
        {
            self.tagged("engine_sleep_state", &format!("sleep_state=\"{state}\""), f64::from(u8::from(on)));
        }
        self.head("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.");
        let usage = gauges.blocks_used as f64 / gauges.blocks_total.max(1) as f64;
        self.sample("kv_cache_usage_perc", "", usage);
    }

    fn counters(&mut self, view: &MetricsView) {
        let counters = view.counters;
        let rows = [
            ("prefix_cache_queries_total", counters.prompt_tokens, "Prefix cache queries, in tokens."),
            ("prefix_cache_hits_total", counters.cached_tokens, "Prefix cache hits, in tokens."),
            ("num_preemptions_total", counters.preemptions, "Cumulative number of preemptions."),
            ("prompt_tokens_total", counters.prompt_tokens, "Number of prefill tokens processed."),
            ("prompt_tokens_cached_total", counters.cached_tokens, "Number of cached prompt tokens."),
            ("generation_tokens_total", counters.generated_tokens, "Number of generation tokens processed."),
        ];
        for (name, value, help) in rows {
            self.head(name, "counter", help);
            self.sample(name, "", value as f64);
        }
        self.head("prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.");
        let computed = counters.prompt_tokens - counters.cached_tokens;
        for (source, value) in [("local_compute", computed), ("local_cache_hit", counters.cached_tokens)] {
            self.tagged("prompt_tokens_by_source_total", &format!("source=\"{source}\""), value as f64);
        }
    }

    fn outcomes(&mut self, stats: &Stats) {
        self.head("request_success_total", "counter", "Count of successfully processed requests.");
        let rows = [
            ("stop", stats.stopped),
            ("length", stats.length),
            ("abort", stats.aborted),
            ("error", 0),
            ("repetition", 0),
        ];
        for (reason, value) in rows {
            self.sample("request_success_total", &format!("finished_reason=\"{reason}\","), value as f64);
        }
        self.head("admission_rejections_total", "counter", "Requests refused at admission.");
        let model = self.model;
        for (reason, value) in [("max_num_queued_reqs", stats.rejected), ("max_num_queued_tokens", 0)] {
            let _ = writeln!(
                self.out,
                "vllm:admission_rejections_total{{model_name=\"{model}\",reason=\"{reason}\"}} {:?}",
                value as f64
            );
        }
    }

    fn histograms(&mut self, stats: &Stats) {
        let rows = [
            ("request_prompt_tokens", &stats.prompt_tokens),
            ("request_generation_tokens", &stats.generated_tokens),
            ("time_to_first_token_seconds", &stats.ttft),
            ("inter_token_latency_seconds", &stats.itl),
            ("request_time_per_output_token_seconds", &stats.per_token),
            ("e2e_request_latency_seconds", &stats.e2e),
            ("request_queue_time_seconds", &stats.queue),
            ("request_inference_time_seconds", &stats.inference),
            ("request_prefill_time_seconds", &stats.prefill),
            ("request_decode_time_seconds", &stats.decode),
        ];
        for (name, histogram) in rows {
            self.histogram(name, histogram);
        }
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) {
        self.head(name, "histogram", "Histogram.");
        let mut below = 0;
        let edges = histogram.edges.iter().map(|edge| format!("{edge:?}")).chain(["+Inf".to_owned()]);
        for (edge, count) in edges.zip(&histogram.counts) {
            below += count;
            self.sample(&format!("{name}_bucket"), &format!("le=\"{edge}\","), below as f64);
        }
        self.sample(&format!("{name}_count"), "", below as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum);
    }

    /// Adapter gauges; none before the first request with an adapter, as in the
    /// real page.
    fn adapters(&mut self, call: &ServerCall) {
        let options = &call.sim.options;
        let (loads, running, waiting) = {
            let engine = &call.sim.work.lock().engine;
            (engine.counters().adapter_loads, engine.running_adapters(), engine.waiting_adapters())
        };
        if loads == 0 && waiting.is_empty() {
            return;
        }
        let names = |ids: &[u32]| {
            let names = ids.iter().filter_map(|id| options.loras.get(*id as usize)).map(String::as_str);
            names.collect::<Vec<_>>().join(",")
        };
        self.head("lora_requests_info", "gauge", "Running stats on lora requests.");
        let _ = writeln!(
            self.out,
            "vllm:lora_requests_info{{max_lora=\"{}\",running_lora_adapters=\"{}\",waiting_lora_adapters=\"{}\"}} {:?}",
            options.engine.max_loras.max(1),
            names(&running),
            names(&waiting),
            call.sim.unix() as f64,
        );
    }

    fn info(&mut self, view: &MetricsView) {
        self.head("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
        let blocks = view.gauges.blocks_total;
        let tokens = blocks * u64::from(BLOCK_TOKENS);
        let _ = writeln!(
            self.out,
            "vllm:cache_config_info{{block_size=\"{BLOCK_TOKENS}\",cache_dtype=\"auto\",\
             enable_prefix_caching=\"True\",engine=\"0\",kv_cache_size_tokens=\"{tokens}\",\
             num_gpu_blocks=\"{blocks}\"}} 1.0"
        );
    }
}
