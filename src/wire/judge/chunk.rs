//! Events and answers with `choices`: chat, completions, transcriptions.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::wire::json::{Filled, Text};
use crate::wire::judge::{ChoiceNews, Ending, News, usage};

#[derive(serde::Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    choices: Option<Choices>,
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
        choices: chunk.choices.map(|choices| choices.0).unwrap_or_default(),
        usage: chunk.usage.and_then(usage::read),
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
pub(crate) struct Choices(pub(crate) SmallVec<[ChoiceNews; 1]>);

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoicesVisitor;
        impl<'de> Visitor<'de> for ChoicesVisitor {
            type Value = Choices;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of choices")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Choices, A::Error> {
                let mut choices = SmallVec::new();
                while let Some(Choice(news)) = seq.next_element()? {
                    choices.push(news);
                }
                Ok(Choices(choices))
            }
        }
        deserializer.deserialize_seq(ChoicesVisitor)
    }
}

struct Choice(ChoiceNews);

impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoiceVisitor;
        impl<'de> Visitor<'de> for ChoiceVisitor {
            type Value = Choice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a choice")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Choice, A::Error> {
                let mut news = ChoiceNews::default();
                while let Some(Text(key)) = map.next_key()? {
                    match key.as_deref() {
                        Some("index") => news.index = map.next_value()?,
                        Some("finish_reason") => {
                            let Text(reason) = map.next_value()?;
                            news.ending = reason.map(|reason| Ending::of(&reason));
                        }
                        Some("delta" | "message") => {
                            let delta = map.next_value::<Option<Delta>>()?.unwrap_or_default();
                            news.role |= delta.role;
                            news.output |= delta.output;
                        }
                        Some("text" | "logprobs" | "token_ids") => {
                            news.output |= map.next_value::<Filled>()?.0;
                        }
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(Choice(news))
            }
        }
        deserializer.deserialize_map(ChoiceVisitor)
    }
}

/// The delta of a chat: a role, and output under any other name (content,
/// reasoning, tool calls, a refusal, ...).
#[derive(Default)]
struct Delta {
    role: bool,
    output: bool,
}

impl<'de> Deserialize<'de> for Delta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DeltaVisitor;
        impl<'de> Visitor<'de> for DeltaVisitor {
            type Value = Delta;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a delta")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Delta, A::Error> {
                let mut delta = Delta::default();
                while let Some(Text(key)) = map.next_key()? {
                    let Filled(filled) = map.next_value()?;
                    let slot =
                        if key.as_deref() == Some("role") { &mut delta.role } else { &mut delta.output };
                    *slot |= filled;
                }
                Ok(delta)
            }
        }
        deserializer.deserialize_map(DeltaVisitor)
    }
}
