//! Parsed request: what the gateway needs from a request's body.

use std::ops::Range;

use smallvec::SmallVec;

use crate::protocol::api::{Api, Dialect};
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;

/// Where in a stream the client asked for usage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamUsage {
    /// In an event of its own at the end (`include_usage`).
    pub at_end: bool,
    /// In every event (`continuous_usage_stats`).
    pub in_each_event: bool,
}

/// The fields about the engine's prefix cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheFields {
    /// `prompt_cache_key`, which names requests that share a prefix.
    pub key: Option<String>,
    /// `cache_salt`: only requests with the same salt share the cache.
    pub salt: Option<String>,
}

/// The prompt in the body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptSpans {
    /// The values that make up the prompt: JSON, or the text field of a form. Images inside them
    /// count as bytes. A form's file is not among them.
    pub values: SmallVec<[Range<usize>; 4]>,
    /// Whether a field inside a value may be one with media.
    pub may_have_media: bool,
}

/// A parsed request body. All ranges are byte ranges of that body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedRequest {
    pub api: Api,
    /// The requested model; absent when the field is absent, null or empty.
    pub model: Option<String>,
    /// Whether the client asks for a stream.
    pub stream: bool,
    /// The largest output limit in the request, in tokens per choice.
    pub max_output_tokens: Option<u64>,
    /// The limit in tokens to which the gateway lowers the output, so that prompt and output fit
    /// the context window.
    pub lowered: Option<u64>,
    /// The number of tokens to which the client wants its prompt cut. A negative number means as
    /// many as fit.
    pub truncate: Option<i64>,
    /// The number of choices for each prompt (`n`), at least 1.
    pub n: u32,
    /// The number of sequences that the engine runs for each prompt (`best_of`), at least `n`.
    pub best_of: u32,
    /// The number of prompts in the body (a batch of completions, of texts to embed, ...), at least
    /// 1.
    pub prompts: u32,
    /// `service_tier`, as the client sent it.
    pub service_tier: Option<String>,
    pub stream_usage: StreamUsage,
    /// `user`, the client's own name for its end user.
    pub user: Option<String>,
    /// Which requests share the engine's prefix cache.
    pub cache: CacheFields,
    pub prompt: PromptSpans,
    /// Whether another engine can continue the answer after a part of it.
    pub is_resumable: bool,
    pub(crate) spans: EditSpans,
}

/// The byte ranges that edits replace, and the positions where they insert.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct EditSpans {
    pub(crate) form: BodyForm,
    pub(crate) model: Option<Range<usize>>,
    pub(crate) stream_options: Option<Range<usize>>,
    pub(crate) include_usage: Option<Range<usize>>,
    pub(crate) priority: Option<Range<usize>>,
    pub(crate) cache_salt: Option<Range<usize>>,
    /// The text that the answer follows: the array of messages, or the prompt.
    pub(crate) context: Option<Range<usize>>,
    pub(crate) continue_final: Option<Range<usize>>,
    pub(crate) generation_prompt: Option<Range<usize>>,
    /// Limits on the output of a choice.
    pub(crate) limits: SmallVec<[OutputLimit; 1]>,
    /// The position for a new field: just after the opening brace, or before the first part of a
    /// form.
    pub(crate) insert_at: usize,
    /// Whether the object has no field.
    pub(crate) is_empty: bool,
    /// The bytes of tools and documents. Templates may write these with more white space.
    pub(crate) tool_bytes: usize,
    /// The position for a new field of the `stream_options` object.
    pub(crate) options_insert_at: Option<usize>,
    pub(crate) options_empty: bool,
}

/// A limit on the output of a choice, in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputLimit {
    pub(crate) span: Range<usize>,
    pub(crate) tokens: u64,
    /// The least value that engines accept, in tokens.
    pub(crate) min_tokens: u64,
}

/// The format of the body.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum BodyForm {
    #[default]
    Json,
    /// `multipart/form-data` with this boundary.
    Multipart { boundary: String },
}

impl ParsedRequest {
    /// The number of sequences that the request runs at an engine.
    pub fn sequences(&self) -> u32 {
        self.prompts.saturating_mul(self.best_of)
    }

    /// The error of a request for more than `most` sequences, the number that the model's largest
    /// replica runs at once. The error names the field that asks for them.
    pub fn too_many_sequences(&self, most: u32) -> ApiError {
        let Self { prompts, best_of, n, api, .. } = self;
        let (field, asked, left) = if *best_of == 1 || *prompts > most {
            (api.prompt_field(), prompts, most / (*best_of).max(1))
        } else if best_of > n && api.dialect() == Dialect::Tgi {
            ("parameters.best_of", best_of, most / (*prompts).max(1))
        } else if best_of > n {
            ("best_of", best_of, most / (*prompts).max(1))
        } else {
            ("n", n, most / (*prompts).max(1))
        };
        let all = if *prompts > 1 && *best_of > 1 {
            format!(", for {prompts} prompts with {best_of} each")
        } else {
            String::new()
        };
        let text = format!(
            "`{field}` asks for {asked} answers at once{all}; the largest replica of this model takes {most}. \
             Ask for at most {} here.",
            left.max(1)
        );
        ApiError::new(ErrorKind::InvalidRequest, text).with_param(field)
    }

    /// The number of choices in the answer, over all prompts.
    pub fn choices(&self) -> u32 {
        self.prompts.saturating_mul(self.n)
    }

    /// The number of bytes of messages, prompt, input, tools and the like.
    pub fn prompt_bytes(&self) -> u64 {
        self.prompt.values.iter().map(|span| span.len() as u64).sum()
    }

    /// The pieces of `body` that make up the prompt, in the order of `prompt.values`. `body` must be the
    /// one that was parsed.
    pub fn prompt_pieces<'a>(&'a self, body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.prompt.values.iter().filter_map(|span| body.get(span.clone()))
    }

    /// The most output tokens after which the request still has a token to generate.
    pub fn max_partial_tokens(&self) -> u64 {
        let limits = self.spans.limits.iter().filter(|limit| limit.min_tokens > 0);
        limits
            .map(|limit| limit.tokens)
            .chain(self.lowered)
            .min()
            .map_or(u64::MAX, |last| last.saturating_sub(1))
    }

    /// The number of bytes of tools and documents.
    pub const fn tool_bytes(&self) -> u64 {
        self.spans.tool_bytes as u64
    }

    /// The name of the field that limits the output, as the client wrote it.
    pub fn output_field(&self, body: &[u8]) -> &'static str {
        let limits = self.spans.limits.iter().filter(|limit| limit.min_tokens > 0);
        let longest = limits.max_by_key(|limit| limit.tokens);
        let before = longest.and_then(|limit| body.get(..limit.span.start)).unwrap_or_default();
        let name = before.trim_ascii_end().strip_suffix(b":").unwrap_or_default().trim_ascii_end();
        if name.ends_with(b"\"max_completion_tokens\"") { "max_completion_tokens" } else { "max_tokens" }
    }

    pub(crate) fn empty(api: Api) -> Self {
        Self {
            api,
            model: None,
            stream: false,
            max_output_tokens: None,
            lowered: None,
            truncate: None,
            n: 1,
            best_of: 1,
            prompts: 1,
            service_tier: None,
            stream_usage: StreamUsage::default(),
            user: None,
            cache: CacheFields::default(),
            prompt: PromptSpans::default(),
            is_resumable: false,
            spans: EditSpans::default(),
        }
    }
}
