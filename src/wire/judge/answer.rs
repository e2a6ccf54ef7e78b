//! Judges a whole answer.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::core::event::Fault;
use crate::core::job::{Tokens, Usage};
use crate::wire::api::{Api, Protocol};
use crate::wire::error::ApiError;
use crate::wire::headers;
use crate::wire::json::{Filled, Text, span_in};
use crate::wire::judge::chunk::Choices;
use crate::wire::judge::refusal::{self, EngineError};
use crate::wire::judge::typed::{TgiDetails, response_ending};
use crate::wire::judge::{Ending, usage};
use crate::wire::peek;
use crate::wire::splice::{self, Spliced, json_string};

/// The judgement on a whole answer.
#[derive(Debug, Clone)]
pub enum Answer {
    /// It is good.
    Success {
        /// What to send, the model renamed.
        body: Spliced,
        /// What it took.
        usage: Usage,
        /// Why its first choice ended; absent where the protocol does not say.
        finish_reason: Option<&'static str>,
    },
    /// The request is at fault.
    ClientError(ApiError),
    /// The engine is at fault.
    Fault {
        /// How.
        fault: Fault,
        /// What was consumed.
        usage: Usage,
    },
}

#[derive(Deserialize)]
struct Whole<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<Choices<'a>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    object: Text<'a>,
    #[serde(borrow, default)]
    status: Text<'a>,
    #[serde(borrow, default)]
    stop_reason: Text<'a>,
    #[serde(default)]
    content: Filled,
    #[serde(default)]
    output: Filled,
    #[serde(borrow)]
    generated_text: Option<&'a RawValue>,
    #[serde(borrow)]
    details: Option<TgiDetails<'a>>,
}

/// Judges an engine's whole answer. `shown_model` replaces the engine's own
/// name of the model.
#[must_use]
pub fn judge_answer(
    api: Api,
    status: StatusCode,
    headers: &HeaderMap,
    body: &Bytes,
    shown_model: Option<&str>,
) -> Answer {
    if !status.is_success() {
        let retry_after = headers::retry_after(headers);
        return refused(
            refusal::of_status(api, status.as_u16(), body, retry_after, shown_model),
            Usage::Unknown,
        );
    }
    if is_opaque(api, headers) {
        return unread(body);
    }
    let Ok(whole) = serde_json::from_slice::<Whole<'_>>(body) else {
        // `/score` and TGI may answer with an array; nothing to read in it.
        return match serde_json::from_slice::<Vec<serde::de::IgnoredAny>>(body) {
            Ok(_) if !api.generates() => unread(body),
            _ => Answer::Fault { fault: Fault::Malformed, usage: Usage::Unknown },
        };
    };
    let usage = consumed(api, headers, &whole);
    let is_flat_error = whole.object.0.as_deref() == Some("error");
    if whole.error.is_some() && api.protocol() != Protocol::Responses || is_flat_error {
        return refused(refusal::of_event(api, body, shown_model), usage);
    }
    match ending(api, &whole, usage) {
        Err(fault) => Answer::Fault { fault, usage },
        Ok(finish_reason) => {
            Answer::Success { body: renamed(body, &whole, shown_model), usage, finish_reason }
        }
    }
}

/// A good answer that says nothing that can be read.
fn unread(body: &Bytes) -> Answer {
    Answer::Success { body: body.clone().into(), usage: Usage::Unknown, finish_reason: None }
}

fn refused(error: EngineError, usage: Usage) -> Answer {
    match error {
        EngineError::Client(error) => Answer::ClientError(error),
        EngineError::Fault(Fault::ErrorEvent) => Answer::Fault { fault: Fault::ServerError, usage },
        EngineError::Fault(fault) => Answer::Fault { fault, usage },
    }
}

/// Whether the answer may be something else than JSON, and is: subtitles of a
/// transcription, raw numbers of an embedding.
fn is_opaque(api: Api, headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    match api {
        Api::Transcriptions | Api::Translations => !peek::is_json(content_type),
        Api::Embeddings | Api::Pooling => content_type.starts_with(b"application/octet-stream"),
        _ => false,
    }
}

/// Why the answer's first choice ended, where the protocol says so.
fn ending(api: Api, whole: &Whole<'_>, usage: Usage) -> Result<Option<&'static str>, Fault> {
    let did_nothing = |says: Filled| !says.0 && usage.tokens().is_some_and(|tokens| tokens.output == 0);
    let real = |ending: Option<Ending>| ending.and_then(Ending::reason).ok_or(Fault::Aborted);
    match api {
        Api::Chat | Api::Completions => {
            let choices = whole.choices.as_ref().filter(|choices| !choices.0.is_empty());
            let Some(Choices(choices)) = choices else {
                return Err(Fault::Malformed);
            };
            let reasons: Result<SmallVec<[&str; 1]>, _> =
                choices.iter().map(|choice| real(choice.ending)).collect();
            reasons.map(|reasons| reasons.first().copied())
        }
        Api::Messages => {
            let reason = real(whole.stop_reason.0.as_deref().map(Ending::of))?;
            if did_nothing(whole.content) { Err(Fault::Aborted) } else { Ok(Some(reason)) }
        }
        Api::Responses => match whole.status.0.as_deref() {
            // A background response: its end comes later, to whoever asks.
            Some("queued" | "in_progress") => Ok(None),
            status => {
                let reason = real(Some(response_ending(status)))?;
                if did_nothing(whole.output) { Err(Fault::Aborted) } else { Ok(Some(reason)) }
            }
        },
        Api::TgiGenerate | Api::TgiGenerateStream => {
            if whole.generated_text.is_none() {
                return Err(Fault::Malformed);
            }
            // Details come only when the request asks for them.
            whole.details.as_ref().map(|details| real(details.ending())).transpose()
        }
        _ => Ok(None),
    }
}

fn consumed(api: Api, headers: &HeaderMap, whole: &Whole<'_>) -> Usage {
    if !api.runs_model() {
        return Usage::Exact(Tokens::default());
    }
    if api.protocol() == Protocol::Tgi {
        return consumed_tgi(headers, whole);
    }
    whole.usage.and_then(usage::read).map_or(Usage::Unknown, Usage::Exact)
}

/// TGI counts in headers, and in the details when they were asked for.
fn consumed_tgi(headers: &HeaderMap, whole: &Whole<'_>) -> Usage {
    let header = |name: &str| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    if let (Some(input), Some(output)) = (header("x-prompt-tokens"), header("x-generated-tokens")) {
        return Usage::Exact(Tokens { input, cached: 0, output });
    }
    match whole.details.as_ref().and_then(TgiDetails::tokens) {
        Some((tokens, true)) => Usage::Exact(tokens),
        Some((tokens, false)) => Usage::Partial(tokens),
        None => Usage::Unknown,
    }
}

fn renamed(body: &Bytes, whole: &Whole<'_>, shown_model: Option<&str>) -> Spliced {
    let change = shown_model.zip(whole.model).and_then(|(shown, model)| {
        let shown = json_string(shown);
        let differs = model.get() != shown && model.get().starts_with('"');
        let span = span_in(body, model.get().as_bytes()).filter(|_| differs)?;
        Some((span, shown))
    });
    match change {
        Some((span, shown)) => splice::replace(body, span, shown),
        None => body.clone().into(),
    }
}
