//! Request fields: the fields of a JSON request that the gateway reads, and the shapes of their
//! values.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::protocol::json_scan::{InvalidJson, scan_object};
use crate::protocol::request::steering::{self, SteeringField};
use crate::protocol::request::{media, resumable};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestField {
    Model,
    Stream,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    MinTokens,
    Parameters,
    N,
    BestOf,
    ServiceTier,
    StreamOptions,
    User,
    PromptCacheKey,
    Priority,
    CacheSalt,
    ContinueFinalMessage,
    AddGenerationPrompt,
    TruncatePromptTokens,
    Messages,
    Prompt,
    Input,
    Inputs,
    System,
    Instructions,
    Tools,
    Functions,
    Query,
    Documents,
    Text1,
    Text2,
    Data1,
    Data2,
    Queries,
    Items,
}

impl RequestField {
    pub(crate) const ALL: [(Self, &'static str); 34] = [
        (Self::Model, "model"),
        (Self::Stream, "stream"),
        (Self::MaxTokens, "max_tokens"),
        (Self::MaxCompletionTokens, "max_completion_tokens"),
        (Self::MaxOutputTokens, "max_output_tokens"),
        (Self::MinTokens, "min_tokens"),
        (Self::Parameters, "parameters"),
        (Self::N, "n"),
        (Self::BestOf, "best_of"),
        (Self::ServiceTier, "service_tier"),
        (Self::StreamOptions, "stream_options"),
        (Self::User, "user"),
        (Self::PromptCacheKey, "prompt_cache_key"),
        (Self::Priority, "priority"),
        (Self::CacheSalt, "cache_salt"),
        (Self::ContinueFinalMessage, "continue_final_message"),
        (Self::AddGenerationPrompt, "add_generation_prompt"),
        (Self::TruncatePromptTokens, "truncate_prompt_tokens"),
        (Self::Messages, "messages"),
        (Self::Prompt, "prompt"),
        (Self::Input, "input"),
        (Self::Inputs, "inputs"),
        (Self::System, "system"),
        (Self::Instructions, "instructions"),
        (Self::Tools, "tools"),
        (Self::Functions, "functions"),
        (Self::Query, "query"),
        (Self::Documents, "documents"),
        (Self::Text1, "text_1"),
        (Self::Text2, "text_2"),
        (Self::Data1, "data_1"),
        (Self::Data2, "data_2"),
        (Self::Queries, "queries"),
        (Self::Items, "items"),
    ];
    pub(crate) const FIRST_OF_PROMPT: usize = Self::Messages as usize;
    /// Fields that hold one prompt per entry when their value is an array.
    pub(crate) const BATCHES: [Self; 7] =
        [Self::Prompt, Self::Input, Self::Documents, Self::Text2, Self::Data2, Self::Items, Self::Inputs];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(field, _)| *field)
    }

    pub(crate) const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

pub(crate) struct RequestFields<'a> {
    /// The JSON of each field's value.
    pub(crate) values: [Option<&'a str>; RequestField::ALL.len()],
    pub(crate) twice: Option<RequestField>,
    pub(crate) is_empty: bool,
    /// Whether one of the fields that the parser does not read forbids a continuation.
    pub(crate) forbids_continuation: bool,
    /// The first field that is not taken from clients.
    pub(crate) steering: Option<SteeringField>,
    /// Whether a field inside a value may be one with media.
    pub(crate) may_have_media: bool,
}

impl<'a> RequestFields<'a> {
    /// The fields of a JSON object, the body of a call.
    pub(crate) fn scan(api: Api, text: &'a str) -> Result<Self, InvalidJson> {
        let mut fields = Self {
            values: [None; RequestField::ALL.len()],
            twice: None,
            is_empty: true,
            forbids_continuation: false,
            steering: None,
            may_have_media: false,
        };
        let mut may_have_media = false;
        let inner = |name| may_have_media |= media::may_name_media(name);
        scan_object(text, |name, value| fields.note(api, &name, value), inner)?;
        fields.may_have_media = may_have_media;
        Ok(fields)
    }

    fn note(&mut self, api: Api, name: &str, value: &'a str) {
        self.is_empty = false;
        let Some(field) = RequestField::named(name) else {
            self.steering = self.steering.or_else(|| steering::refusal(api, name, value));
            self.forbids_continuation |= !resumable::allows_continuation(name, value);
            return;
        };
        if self.values[field as usize].replace(value).is_some() {
            self.twice.get_or_insert(field);
        }
    }
}

#[derive(serde::Deserialize)]
pub(crate) struct Parameters<'a> {
    #[serde(borrow)]
    pub(crate) max_new_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) best_of: Option<&'a RawValue>,
}

pub(crate) struct StreamOptions<'a> {
    pub(crate) include_usage: Option<&'a RawValue>,
    pub(crate) continuous_usage_stats: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for StreamOptions<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OptionsVisitor;
        impl<'de> Visitor<'de> for OptionsVisitor {
            type Value = StreamOptions<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut options = StreamOptions { include_usage: None, continuous_usage_stats: None };
                while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                    let value: &RawValue = map.next_value()?;
                    let slot = match &*key {
                        "include_usage" => &mut options.include_usage,
                        "continuous_usage_stats" => &mut options.continuous_usage_stats,
                        _ => continue,
                    };
                    if slot.replace(value).is_some() {
                        return Err(A::Error::custom("an option is given twice"));
                    }
                }
                Ok(options)
            }
        }
        deserializer.deserialize_map(OptionsVisitor)
    }
}

/// A count. A negative number means "no limit" to some engines and an error to others. The gateway
/// takes it as absent and leaves it to the engine.
pub(crate) fn count(json: Option<&str>, field: &'static str) -> Result<Option<u64>, ApiError> {
    let Some(text) = json.filter(|text| *text != "null") else {
        return Ok(None);
    };
    if let Ok(number) = text.parse() {
        return Ok(Some(number));
    }
    match text.parse::<f64>() {
        Ok(number) if number < 0.0 => Ok(None),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
        Ok(number) if number.fract() == 0.0 => Ok(Some(number as u64)),
        _ => Err(ApiError::invalid_field(field, "must be a whole number.")),
    }
}

pub(crate) fn at_least_one(count: Option<u64>) -> u32 {
    u32::try_from(count.unwrap_or(1).max(1)).unwrap_or(u32::MAX)
}

/// The number of prompts in a value: the entries of an array, unless they are the token ids of one
/// prompt.
pub(crate) fn batch_length(text: &str) -> u32 {
    let is_tokens =
        |rest: &str| rest.trim_ascii_start().starts_with(|c: char| c == '-' || c.is_ascii_digit());
    if text.strip_prefix('[').is_none_or(is_tokens) {
        return 1;
    }
    let entries = serde_json::from_str::<Vec<IgnoredAny>>(text).map_or(1, |entries| entries.len());
    at_least_one(u64::try_from(entries).ok())
}
