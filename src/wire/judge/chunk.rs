//! Events and answers with `choices`: chat, completions, transcriptions.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::wire::json::{Filled, Text};
use crate::wire::judge::{ChoiceNews, Ending, News, usage};

#[derive(serde::Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    created: Option<&'a RawValue>,
    #[serde(borrow)]
    system_fingerprint: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<Choices<'a>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Reads one event; absent when it is no JSON object.
pub(crate) fn read(data: &[u8]) -> Option<News<'_>> {
    let chunk: Chunk<'_> = serde_json::from_slice(data).ok()?;
    let error = chunk.error.is_some() || chunk.choices.is_none() && is_flat_error(data);
    Some(News {
        model: chunk.model,
        head: [chunk.id, chunk.created, chunk.system_fingerprint],
        choices: chunk.choices.map(|choices| choices.0).unwrap_or_default(),
        usage: chunk.usage.and_then(usage::read),
        raw_usage: chunk.usage,
        error,
        ..News::default()
    })
}

/// Whether it is an error without the `error` member around it.
fn is_flat_error(data: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Object<'a> {
        #[serde(borrow, default)]
        object: Text<'a>,
    }
    serde_json::from_slice(data).is_ok_and(|object: Object<'_>| object.object.0.as_deref() == Some("error"))
}

/// What the choices say, in their order.
pub(crate) struct Choices<'a>(pub(crate) SmallVec<[ChoiceNews<'a>; 1]>);

impl<'de: 'a, 'a> Deserialize<'de> for Choices<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoicesVisitor<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for ChoicesVisitor<'a> {
            type Value = Choices<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of choices")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Choices<'a>, A::Error> {
                let mut choices = SmallVec::new();
                while let Some(Choice(news)) = seq.next_element()? {
                    choices.push(news);
                }
                Ok(Choices(choices))
            }
        }
        deserializer.deserialize_seq(ChoicesVisitor(PhantomData))
    }
}

struct Choice<'a>(ChoiceNews<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Choice<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoiceVisitor;
        impl<'de> Visitor<'de> for ChoiceVisitor {
            type Value = Choice<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a choice")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Choice<'de>, A::Error> {
                let mut news = ChoiceNews::default();
                while let Some(Text(key)) = map.next_key()? {
                    match key.as_deref() {
                        Some("index") => news.index = map.next_value()?,
                        Some("finish_reason") => {
                            let Text(reason) = map.next_value()?;
                            news.ending = reason.map(|reason| Ending::of(&reason));
                        }
                        Some("delta" | "message") => {
                            let delta = map.next_value::<Option<Delta<'_>>>()?.unwrap_or_default();
                            news.role |= delta.role;
                            news.more |= delta.more;
                            news.text = news.text.or(delta.text);
                        }
                        Some("text") => {
                            let (text, more) = text(map.next_value()?);
                            (news.text, news.more) = (text, news.more | more);
                        }
                        Some("logprobs" | "token_ids") => news.more |= map.next_value::<Filled>()?.0,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                news.output = news.more || news.text.is_some();
                Ok(Choice(news))
            }
        }
        deserializer.deserialize_map(ChoiceVisitor)
    }
}

/// The value as a text that says something, and whether it is another value
/// that does.
fn text(raw: &RawValue) -> (Option<&RawValue>, bool) {
    match raw.get() {
        "null" | "\"\"" | "[]" | "{}" => (None, false),
        string if string.starts_with('"') => (Some(raw), false),
        _ => (None, true),
    }
}

/// The delta of a chat: a role, its text, and output under any other name
/// (reasoning, tool calls, a refusal, ...).
#[derive(Default)]
struct Delta<'a> {
    role: bool,
    text: Option<&'a RawValue>,
    more: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Delta<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DeltaVisitor;
        impl<'de> Visitor<'de> for DeltaVisitor {
            type Value = Delta<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a delta")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Delta<'de>, A::Error> {
                let mut delta = Delta::default();
                while let Some(Text(key)) = map.next_key()? {
                    match key.as_deref() {
                        Some("role") => delta.role |= map.next_value::<Filled>()?.0,
                        Some("content") => {
                            let (text, more) = text(map.next_value()?);
                            (delta.text, delta.more) = (text, delta.more | more);
                        }
                        _ => delta.more |= map.next_value::<Filled>()?.0,
                    }
                }
                Ok(delta)
            }
        }
        deserializer.deserialize_map(DeltaVisitor)
    }
}
