//! Typed events: readers for the protocols that name each event's type (Anthropic's Messages,
//! OpenAI's Responses), and for TGI's own stream.

use serde::Deserialize;
use serde_json::value::RawValue;
use smallvec::smallvec;

use crate::core::model::job::TokenCounts;
use crate::protocol::json::{JsonText, NonEmpty};
use crate::protocol::response::{ChoiceEnding, ParsedChoice, ParsedEvent, usage};

const NOTHING: ParsedChoice<'static> =
    ParsedChoice { index: 0, role: false, output: false, text: None, has_other_output: false, ending: None };
const ROLE: ParsedChoice<'static> = ParsedChoice { role: true, ..NOTHING };

const fn output(output: bool) -> ParsedChoice<'static> {
    ParsedChoice { output, has_other_output: output, ..NOTHING }
}

const fn ending(ending: Option<ChoiceEnding>) -> ParsedChoice<'static> {
    ParsedChoice { ending, ..NOTHING }
}

#[derive(Deserialize)]
struct MessagesEvent<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: JsonText<'a>,
    #[serde(borrow)]
    message: Option<MessagesStart<'a>>,
    #[serde(borrow)]
    delta: Option<MessagesDelta<'a>>,
    #[serde(borrow)]
    content_block: Option<MessagesBlock<'a>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct MessagesStart<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct MessagesDelta<'a> {
    #[serde(default)]
    text: NonEmpty,
    #[serde(default)]
    thinking: NonEmpty,
    #[serde(default)]
    partial_json: NonEmpty,
    #[serde(borrow, default)]
    stop_reason: JsonText<'a>,
}

#[derive(Deserialize)]
struct MessagesBlock<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: JsonText<'a>,
}

/// Reads one event of Anthropic's Messages; absent when the data is not such an event.
pub(crate) fn read_messages(data: &[u8]) -> Option<ParsedEvent<'_>> {
    let event: MessagesEvent<'_> = serde_json::from_slice(data).ok()?;
    let mut news = ParsedEvent { usage: event.usage.and_then(usage::read), ..ParsedEvent::default() };
    match event.kind.0.as_deref()? {
        "message_start" => {
            news.choices = smallvec![ROLE];
            if let Some(message) = event.message {
                news.model = message.model;
                news.usage = message.usage.and_then(usage::read);
            }
        }
        "content_block_start" => {
            // The start of a tool call's block is already output.
            let kind = event.content_block.and_then(|block| block.kind.0);
            news.choices = smallvec![output(kind.is_some_and(|kind| kind.ends_with("tool_use")))];
        }
        "content_block_delta" => {
            let says = |delta: MessagesDelta<'_>| delta.text.0 || delta.thinking.0 || delta.partial_json.0;
            news.choices = smallvec![output(event.delta.is_some_and(says))];
        }
        "message_delta" => {
            let reason = event.delta.and_then(|delta| delta.stop_reason.0);
            news.choices = smallvec![ending(reason.map(|reason| ChoiceEnding::of(&reason)))];
        }
        "message_stop" => news.end = true,
        "ping" => news.is_keep_alive = true,
        "error" => news.error = true,
        _ => {}
    }
    Some(news)
}

#[derive(Deserialize)]
struct ResponsesEvent<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: JsonText<'a>,
    #[serde(borrow)]
    response: Option<ResponseObject<'a>>,
    #[serde(default)]
    delta: NonEmpty,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ResponseObject<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: JsonText<'a>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

/// Reads one event of OpenAI's Responses; absent when the data is not such an event.
pub(crate) fn read_responses(data: &[u8]) -> Option<ParsedEvent<'_>> {
    let event: ResponsesEvent<'_> = serde_json::from_slice(data).ok()?;
    let mut news = ParsedEvent { error: event.error.is_some(), ..ParsedEvent::default() };
    let mut status = None;
    if let Some(response) = event.response {
        news.model = response.model;
        news.usage = response.usage.and_then(usage::read);
        status = response.status.0;
    }
    match event.kind.0.as_deref() {
        Some("response.created" | "response.queued" | "response.in_progress") => {
            news.choices = smallvec![ROLE];
        }
        Some("response.completed" | "response.incomplete") => {
            news.choices = smallvec![ending(Some(response_ending(status.as_deref())))];
            news.end = true;
        }
        Some("response.failed" | "error") => news.error = true,
        Some(kind) if kind.ends_with(".delta") => news.choices = smallvec![output(event.delta.0)],
        Some(_) => {}
        None => return if news.error { Some(news) } else { None },
    }
    Some(news)
}

pub(crate) fn response_ending(status: Option<&str>) -> ChoiceEnding {
    match status {
        Some(status @ ("completed" | "incomplete")) => ChoiceEnding::of(status),
        _ => ChoiceEnding::Aborted,
    }
}

#[derive(Deserialize)]
struct TgiEvent<'a> {
    #[serde(borrow)]
    token: Option<TgiToken<'a>>,
    #[serde(borrow)]
    generated_text: Option<&'a RawValue>,
    #[serde(borrow)]
    details: Option<TgiDetails<'a>>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct TgiToken<'a> {
    #[serde(default)]
    text: NonEmpty,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

/// The details that TGI adds to the end of an answer.
#[derive(Deserialize)]
pub(crate) struct TgiDetails<'a> {
    #[serde(borrow, default)]
    finish_reason: JsonText<'a>,
    generated_tokens: Option<u64>,
    input_length: Option<u64>,
}

impl TgiDetails<'_> {
    pub(crate) fn ending(&self) -> Option<ChoiceEnding> {
        self.finish_reason.0.as_deref().map(ChoiceEnding::of)
    }

    /// The token counts, and whether they are exact: they are only when the input's length is among
    /// them.
    pub(crate) fn tokens(&self) -> Option<(TokenCounts, bool)> {
        let output = self.generated_tokens?;
        let input = self.input_length;
        Some((TokenCounts { input: input.unwrap_or(0), cached: None, output }, input.is_some()))
    }
}

/// Reads one event of TGI's own stream; absent when the data is not such an event.
pub(crate) fn read_tgi(data: &[u8]) -> Option<ParsedEvent<'_>> {
    let event: TgiEvent<'_> = serde_json::from_slice(data).ok()?;
    let says = event.token.is_some_and(|token| token.text.0 || token.id.is_some());
    let mut news = ParsedEvent {
        error: event.error.is_some(),
        choices: smallvec![output(says)],
        ..ParsedEvent::default()
    };
    let details = event.details.filter(|_| event.generated_text.is_some());
    if let Some(details) = details {
        news.choices[0].ending = details.ending();
        news.usage = details.tokens().filter(|(_, exact)| *exact).map(|(tokens, _)| tokens);
        news.end = true;
    }
    Some(news)
}
