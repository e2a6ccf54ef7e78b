//! Engines: what one kind of engine does in its own way (paths, metrics, quirks, error wordings,
//! sleep), one file each. The code is pure: text in, numbers out. `fleet` sends the requests.
//!
//! A new engine is one file, and its places here: `mod`, a variant of [`EngineKind`], `ALL` and its length,
//! and an arm in `spec`. The name in its `SPEC` is the variant in lower case.

mod gauges;
mod info;
mod llamacpp;
mod openai;
mod sglang;
mod spec;
mod tgi;
mod triton;
mod trtllm;
mod vllm;

pub mod promtext;

pub use gauges::EngineGauges;
pub use info::{InfoError, ModelInfo, ServedName};
pub use spec::{Ability, EngineAdapters, EngineSpec, InfoDocument, ReadyStatus, SleepCalls};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The software that a pool runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// vLLM's OpenAI server.
    Vllm,
    /// Hugging Face Text Generation Inference.
    Tgi,
    /// SGLang.
    Sglang,
    /// NVIDIA `trtllm-serve`.
    Trtllm,
    /// Triton with the TensorRT-LLM back end behind its OpenAI front end.
    Triton,
    /// llama.cpp's server.
    Llamacpp,
    /// Any other server that speaks the OpenAI API.
    Openai,
}

impl EngineKind {
    pub const ALL: [Self; 7] =
        [Self::Vllm, Self::Tgi, Self::Sglang, Self::Trtllm, Self::Triton, Self::Llamacpp, Self::Openai];

    pub const fn spec(self) -> &'static EngineSpec {
        match self {
            Self::Vllm => &vllm::SPEC,
            Self::Tgi => &tgi::SPEC,
            Self::Sglang => &sglang::SPEC,
            Self::Trtllm => &trtllm::SPEC,
            Self::Triton => &triton::SPEC,
            Self::Llamacpp => &llamacpp::SPEC,
            Self::Openai => &openai::SPEC,
        }
    }

    /// The name that the configuration and telemetry use.
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    pub fn can(self, ability: Ability) -> bool {
        self.spec().can(ability)
    }
}

/// Whether an error message says, in the words of any engine, that the request is longer than the
/// context window. `message` is lower case.
pub fn says_too_long(message: &str) -> bool {
    let mut wordings = EngineKind::ALL.into_iter().flat_map(|kind| kind.spec().too_long);
    wordings.any(|wording| wording.iter().all(|part| message.contains(part)))
}

/// Whether an error message says, in the words of any engine, that the engine shuts down.
/// `message` is lower case.
pub fn says_draining(message: &str) -> bool {
    let mut wordings = EngineKind::ALL.into_iter().flat_map(|kind| kind.spec().draining);
    wordings.any(|wording| message.contains(wording))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_page_without_metrics_is_not_idle() {
        for kind in EngineKind::ALL {
            assert_eq!(kind.spec().gauges("<html>\n<body>Bad gateway</body>\n"), None, "{kind:?}");
            assert_eq!(kind.spec().gauges(""), None, "{kind:?}");
        }
    }

    #[test]
    fn metrics_of_something_else_say_nothing() {
        for kind in EngineKind::ALL.into_iter().filter(|kind| *kind != EngineKind::Openai) {
            assert_eq!(kind.spec().gauges("process_open_fds 7\n"), Some(EngineGauges::default()), "{kind:?}");
        }
    }

    #[test]
    fn readiness_follows_the_engine() {
        for kind in EngineKind::ALL {
            let spec = kind.spec();
            assert!(spec.is_ready(200) && !spec.is_ready(503), "{kind:?}");
            assert_eq!(spec.is_ready(401), kind == EngineKind::Openai, "{kind:?}");
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
            for kind in EngineKind::ALL {
                let Some(gauges) = kind.spec().gauges(&text) else { continue };
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
