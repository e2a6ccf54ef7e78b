//! Engine adapters: the paths of each kind of engine, and how its answers read. The adapters are
//! pure: text in, numbers out. `fleet::scrape` sends the requests.

mod gauges;
mod info;
mod llamacpp;
mod openai;
mod sglang;
mod tgi;
mod triton;
mod trtllm;
mod vllm;

pub use gauges::EngineGauges;
pub use info::{InfoError, ModelInfo, ServedName};

use crate::config::settings::EngineKind;

/// State of the LoRA adapters at an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineAdapters {
    /// Adapters that the engine computes with at once, at least 1.
    pub slots: Option<u32>,
    /// Engine names of the adapters that run requests now.
    pub running: Vec<String>,
}

/// Adapter for one kind of engine.
#[derive(Debug)]
pub struct EngineSpec {
    /// Path of the Prometheus text; `None` = none is known.
    pub metrics_path: Option<&'static str>,
    /// Documents about the engine and its models.
    pub info: &'static [InfoDocument],
    /// Readiness paths, tried in order until one does not answer 404.
    pub ready_paths: &'static [&'static str],
    pub ready: ReadyStatus,
    /// Calls that put the engine to sleep and wake it; `None` = the engine cannot sleep.
    pub sleep: Option<SleepCalls>,
    /// Whether the engine refuses requests for names that it does not list. If not, a name missing
    /// from its list has no meaning.
    pub lists_all_names: bool,
    /// Reads the state of LoRA adapters from a metrics answer.
    pub adapters: Option<fn(&str) -> Option<EngineAdapters>>,
    read: fn(&str) -> Option<EngineGauges>,
}

impl EngineSpec {
    /// Reads a metrics answer; `None` when it has no sample. A metric that is missing or invalid is
    /// `None`, never 0.
    #[must_use]
    pub fn gauges(&self, text: &str) -> Option<EngineGauges> {
        (self.read)(text)
    }

    /// Whether `status` of a readiness path means ready.
    #[must_use]
    pub fn is_ready(&self, status: u16) -> bool {
        match self.ready {
            ReadyStatus::Success => (200..300).contains(&status),
            ReadyStatus::NotServerError => status < 500,
        }
    }
}

/// Statuses of a readiness path that mean ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadyStatus {
    /// 2xx.
    Success,
    /// Any answer but 5xx. A bare TCP connection is not enough: the kernel
    /// accepts it for a process that hangs.
    NotServerError,
}

/// Calls that put an engine to sleep and wake it: POST requests without a body.
#[derive(Debug)]
pub struct SleepCalls {
    /// Path that puts the engine to sleep.
    pub sleep: &'static str,
    /// Path that wakes the engine.
    pub wake: &'static str,
    /// Path that tells whether the engine sleeps.
    pub state: &'static str,
    /// Reads the answer of `state`: whether the engine sleeps.
    pub read: fn(&[u8]) -> Option<bool>,
}

/// A document about the engine and its models.
#[derive(Debug)]
pub struct InfoDocument {
    /// Path of the document.
    pub path: &'static str,
    /// Reads the document into the model info.
    ///
    /// # Errors
    /// The body is not the expected document.
    pub read: fn(&[u8], &mut ModelInfo) -> Result<(), InfoError>,
}

/// `/v1/models`, which every engine here has.
const MODELS: InfoDocument = InfoDocument { path: "/v1/models", read: info::read_models };

#[must_use]
pub fn adapter(kind: EngineKind) -> &'static EngineSpec {
    match kind {
        EngineKind::Vllm => &vllm::ADAPTER,
        EngineKind::Tgi => &tgi::ADAPTER,
        EngineKind::Sglang => &sglang::ADAPTER,
        EngineKind::Trtllm => &trtllm::ADAPTER,
        EngineKind::Triton => &triton::ADAPTER,
        EngineKind::Llamacpp => &llamacpp::ADAPTER,
        EngineKind::Openai => &openai::ADAPTER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [EngineKind; 7] = [
        EngineKind::Vllm,
        EngineKind::Tgi,
        EngineKind::Sglang,
        EngineKind::Trtllm,
        EngineKind::Triton,
        EngineKind::Llamacpp,
        EngineKind::Openai,
    ];

    #[test]
    fn a_page_without_metrics_is_not_idle() {
        for kind in KINDS {
            assert_eq!(adapter(kind).gauges("<html>\n<body>Bad gateway</body>\n"), None, "{kind:?}");
            assert_eq!(adapter(kind).gauges(""), None, "{kind:?}");
        }
    }

    #[test]
    fn metrics_of_something_else_say_nothing() {
        for kind in KINDS.into_iter().filter(|kind| *kind != EngineKind::Openai) {
            assert_eq!(
                adapter(kind).gauges("process_open_fds 7\n"),
                Some(EngineGauges::default()),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn readiness_follows_the_engine() {
        for kind in KINDS {
            let adapter = adapter(kind);
            assert!(adapter.is_ready(200) && !adapter.is_ready(503), "{kind:?}");
            assert_eq!(adapter.is_ready(401), kind == EngineKind::Openai, "{kind:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_sane_gauges(
            rows in proptest::collection::vec((0..NAMES.len(), any::<f64>()), 0..20),
            labels in "(|\\{engine=\"[01]\"\\}|\\{request_type=\"(max|waiting)\"\\})",
        ) {
            let text: String =
                rows.iter().map(|(name, value)| format!("{}{labels} {value}\n", NAMES[*name])).collect();
            for kind in KINDS {
                let Some(gauges) = adapter(kind).gauges(&text) else { continue };
                prop_assert!(gauges.kv_usage.is_none_or(|usage| (0.0..=1.0).contains(&usage)));
                prop_assert!(gauges.slots != Some(0) && gauges.kv_tokens != Some(0));
            }
        }
    }

    const NAMES: [&str; 10] = [
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
        "tgi_queue_size",
        "sglang:token_usage",
        "sglang:max_total_num_tokens",
        "trtllm_kv_cache_utilization",
        "trtllm_max_num_active_requests",
        "nv_trt_llm_request_metrics",
        "llamacpp:kv_cache_usage_ratio",
    ];
}
