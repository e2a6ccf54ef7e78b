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
    /// Other names that clients may use for it.
    pub aliases: Vec<String>,
    /// Models that serve a request in place of this one, best first, when this
    /// one surely cannot and nothing has been answered yet; for tenants with
    /// `allow_fallback`. The lists of those models are not followed.
    pub fallbacks: Vec<String>,
    /// Models that share this one's requests, with their weights; this one may
    /// be among them. A request with a `prompt_cache_key` or `user` keeps to
    /// one model. Whoever may use all of them may use this name.
    #[serde(skip_serializing_if = "NamedEntries::is_empty")]
    pub split: NamedEntries<u32>,
    /// Another model that gets copies of some of this one's requests, to compare
    /// the two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowSection>,
    /// Context window in tokens; absent = what the engine says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_model_len: Option<u32>,
    /// Folder with the model's own `tokenizer.json` and, beside it, its
    /// `tokenizer_config.json` and `chat_template.jinja`, from this file's
    /// folder. Prompts near the context window are then counted exactly;
    /// absent = vLLM is asked, and for other engines they are estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// The tokens that images and sounds are counted as.
    pub media_tokens: MediaTokensSection,
    /// What becomes of requests that do not fit the context window.
    pub context: ContextSection,
}

/// Tokens that parts of a prompt count as that are no text; absent = the engine
/// decides whether the prompt fits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MediaTokensSection {
    /// One image.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub image: Option<u32>,
    /// One sound.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub audio: Option<u32>,
}

/// What becomes of requests that do not fit the context window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContextSection {
    /// When prompt and asked output together are too long: `clamp` lowers the
    /// output to what is left and says so in the header
    /// `x-penstock-max-tokens`; `reject` refuses the request. A prompt that is
    /// too long by itself is always refused, and so is an output where all
    /// engines are vLLM.
    pub policy: Overflow,
    /// Whether clients may have the start of their prompts cut off
    /// (`truncate_prompt_tokens`): `allow` or `refuse`.
    pub truncate: Truncation,
}

/// What becomes of prompt and output that together are too long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// The output gets what is left.
    #[default]
    Clamp,
    /// The request is refused.
    Reject,
}

/// Whether clients may have their prompts cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Truncation {
    /// Yes.
    Allow,
    /// A request that asks for it is refused.
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
    /// The model that gets them.
    pub to: String,
    /// Share of the answered requests that are copied, from 0 to 1; which ones
    /// depends on the request's id alone.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
    /// Copies that may run at once; no more are made meanwhile.
    #[schemars(range(min = 1))]
    pub max_in_flight: u32,
}

impl Default for ShadowSection {
    fn default() -> Self {
        Self { to: String::new(), share: 0.01, max_in_flight: 4 }
    }
}
