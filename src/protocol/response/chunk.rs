//! Chunks: reader of events and answers with `choices` (chat, completions, transcriptions).

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::protocol::json::{JsonText, NonEmpty};
use crate::protocol::response::{ChoiceEnding, ParsedChoice, ParsedEvent, usage};

#[derive(serde::Deserialize)]
struct ChatChunk<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    created: Option<&'a RawValue>,
    #[serde(borrow)]
    system_fingerprint: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<SmallVec<[ParsedChoice<'a>; 1]>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Reads one event; absent when the data is not a JSON object of this form.
pub(crate) fn read(data: &[u8]) -> Option<ParsedEvent<'_>> {
    let chunk: ChatChunk<'_> = serde_json::from_slice(data).ok()?;
    let error = chunk.error.is_some() || chunk.choices.is_none() && is_flat_error(data);
    Some(ParsedEvent {
        model: chunk.model,
        metadata: [chunk.id, chunk.created, chunk.system_fingerprint],
        choices: chunk.choices.unwrap_or_default(),
        usage: chunk.usage.and_then(usage::read),
        raw_usage: chunk.usage,
        error,
        ..ParsedEvent::default()
    })
}

/// Whether the data is an error without the `error` member around it.
fn is_flat_error(data: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Object<'a> {
        #[serde(borrow, default)]
        object: JsonText<'a>,
    }
    serde_json::from_slice(data).is_ok_and(|object: Object<'_>| object.object.0.as_deref() == Some("error"))
}

impl<'de: 'a, 'a> Deserialize<'de> for ParsedChoice<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoiceVisitor;
        impl<'de> Visitor<'de> for ChoiceVisitor {
            type Value = ParsedChoice<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a choice")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ParsedChoice<'de>, A::Error> {
                let mut news = ParsedChoice::default();
                while let Some(JsonText(key)) = map.next_key()? {
                    match key.as_deref() {
                        Some("index") => news.index = map.next_value()?,
                        Some("finish_reason") => {
                            let JsonText(reason) = map.next_value()?;
                            news.ending = reason.map(|reason| ChoiceEnding::of(&reason));
                        }
                        Some("delta" | "message") => {
                            let delta = map.next_value::<Option<ChunkDelta<'_>>>()?.unwrap_or_default();
                            news.role |= delta.role;
                            news.has_other_output |= delta.has_other_output;
                            news.text = news.text.or(delta.text);
                        }
                        Some("text") => {
                            let (text, more) = text(map.next_value()?);
                            (news.text, news.has_other_output) = (text, news.has_other_output | more);
                        }
                        Some("logprobs" | "token_ids") => {
                            news.has_other_output |= map.next_value::<NonEmpty>()?.0;
                        }
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                news.output = news.has_other_output || news.text.is_some();
                Ok(news)
            }
        }
        deserializer.deserialize_map(ChoiceVisitor)
    }
}

/// Splits a value: its text when it is a string that is not empty, and whether it is another value
/// with content.
fn text(raw: &RawValue) -> (Option<&RawValue>, bool) {
    match raw.get() {
        "null" | "\"\"" | "[]" | "{}" => (None, false),
        string if string.starts_with('"') => (Some(raw), false),
        _ => (None, true),
    }
}

/// The delta of a chat: its role, its text, and whether it has output under any other name
/// (reasoning, tool calls, a refusal, ...).
#[derive(Default)]
struct ChunkDelta<'a> {
    role: bool,
    text: Option<&'a RawValue>,
    has_other_output: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for ChunkDelta<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChunkDeltaVisitor;
        impl<'de> Visitor<'de> for ChunkDeltaVisitor {
            type Value = ChunkDelta<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a delta")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ChunkDelta<'de>, A::Error> {
                let mut delta = ChunkDelta::default();
                while let Some(JsonText(key)) = map.next_key()? {
                    match key.as_deref() {
                        Some("role") => delta.role |= map.next_value::<NonEmpty>()?.0,
                        Some("content") => {
                            let (text, more) = text(map.next_value()?);
                            (delta.text, delta.has_other_output) = (text, delta.has_other_output | more);
                        }
                        _ => delta.has_other_output |= map.next_value::<NonEmpty>()?.0,
                    }
                }
                Ok(delta)
            }
        }
        deserializer.deserialize_map(ChunkDeltaVisitor)
    }
}
