//! Section `models`, as written.

pub(in crate::config) mod check;
pub(in crate::config) mod checked;
pub(in crate::config) mod counting;
pub(in crate::config) mod fallbacks;
pub(in crate::config) mod shadows;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::syntax::named::NamedEntries;

/// A public model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSection {
    /// Other names by which clients may ask for the model.
    pub aliases: Vec<String>,
    /// Models that serve a request in place of this one, best first, when this model surely cannot
    /// and nothing has been answered yet. Only requests of tenants with `allow_fallback` fall back.
    /// The fallbacks of a fallback are not used.
    pub fallbacks: Vec<String>,
    /// Models that share the requests for this name, each with its weight; this model may be among
    /// them. Requests with the same `prompt_cache_key` or `user` keep to one model. A client may
    /// use the name if the client may use all of the models.
    #[serde(skip_serializing_if = "NamedEntries::is_empty")]
    pub split: NamedEntries<u32>,
    /// Another model that gets copies of some requests for this model, to compare the two models.
    /// The gateway discards the answers to copies. Absent = no copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowSection>,
    /// Context window of the model in tokens. Absent = what the engines report.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_model_len: Option<u32>,
    /// Path of a folder with the model's own `tokenizer.json` and, beside it,
    /// `tokenizer_config.json` and `chat_template.jinja`, from the configuration file's folder. The
    /// gateway then counts prompts near the context window exactly. Absent = vLLM is asked for the
    /// count, and for other engines the gateway estimates the count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Tokens that images and sounds in a prompt count as, where the gateway counts the prompt.
    pub media_tokens: MediaTokensSection,
    /// What happens to requests that do not fit the context window of the model.
    pub context: ContextSection,
}

/// Tokens that parts of a prompt count as that are no text; absent = the engine
/// decides whether the prompt fits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MediaTokensSection {
    /// Tokens that one image counts as. Absent = the engine decides whether a prompt with images
    /// fits the context window.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub image: Option<u32>,
    /// Tokens that one sound counts as. Absent = the engine decides whether a prompt with sounds
    /// fits the context window.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub audio: Option<u32>,
}

/// What becomes of requests that do not fit the context window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContextSection {
    /// What happens when a prompt and the requested output together are longer than the context
    /// window: `clamp` or `reject`. A prompt that is too long alone is always refused. Where all
    /// engines of the model are vLLM, a requested output that is too long alone is refused, too.
    pub policy: Overflow,
    /// Whether a request may have the start of its prompt cut off (`truncate_prompt_tokens`):
    /// `allow` or `refuse`.
    pub truncate: Truncation,
}

/// What becomes of prompt and output that together are too long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// The gateway lowers the output to what is left of the context window, and says so in the
    /// header `x-penstock-max-tokens`.
    #[default]
    Clamp,
    /// The request is refused.
    Reject,
}

/// Whether clients may have their prompts cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Truncation {
    /// The engine cuts the prompt as the request asks.
    Allow,
    /// A request with `truncate_prompt_tokens` is refused.
    #[default]
    Refuse,
}

/// Copies of requests whose answers are read and thrown away. They take only
/// room that nobody else needs, and are booked under the tenant and the class
/// `shadow`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::shadow)]
pub struct ShadowSection {
    /// Model that gets the copies of requests.
    pub to: String,
    /// Share of the answered requests that are copied, from 0 to 1. The request's id alone decides
    /// whether a request is copied.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
    /// Copies that may run at once. While this number runs, no further copy is made.
    #[schemars(range(min = 1))]
    pub max_in_flight: u32,
}

impl Default for ShadowSection {
    fn default() -> Self {
        Self { to: String::new(), share: 0.01, max_in_flight: 4 }
    }
}
