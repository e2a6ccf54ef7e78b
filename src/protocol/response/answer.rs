//! Answer classifier: judges answers that are not streams.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::core::model::event::EngineFault;
use crate::core::model::job::{JobUsage, TokenCounts};
use crate::protocol::api::{Api, Protocol};
use crate::protocol::error::ApiError;
use crate::protocol::headers;
use crate::protocol::json::{JsonText, NonEmpty, span_in};
use crate::protocol::request::edit::{self, EditedBody, json_string};
use crate::protocol::request::parse;
use crate::protocol::response::engine_error::{self, EngineError};
use crate::protocol::response::typed_events::{TgiDetails, response_ending};
use crate::protocol::response::{ChoiceEnding, usage};

/// The verdict on a whole answer.
#[derive(Debug, Clone)]
pub enum AnswerVerdict {
    /// The answer is good.
    Success {
        /// The body to send, with the model renamed.
        body: EditedBody,
        /// The tokens that the answer took.
        usage: JobUsage,
        /// The reason why the first choice ended; absent where the protocol does not give it.
        finish_reason: Option<&'static str>,
    },
    /// The request is at fault.
    ClientError(ApiError),
    /// The engine is at fault.
    Fault {
        fault: EngineFault,
        /// The tokens that the engine spent.
        usage: JobUsage,
    },
}

/// What a choice of a whole answer says of its end.
#[derive(Deserialize)]
struct AnswerChoice<'a> {
    #[serde(borrow, default)]
    finish_reason: JsonText<'a>,
}

impl AnswerChoice<'_> {
    fn ending(&self) -> Option<ChoiceEnding> {
        self.finish_reason.0.as_deref().map(ChoiceEnding::of)
    }
}

#[derive(Deserialize)]
struct WholeAnswer<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<SmallVec<[AnswerChoice<'a>; 1]>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    object: JsonText<'a>,
    #[serde(borrow, default)]
    status: JsonText<'a>,
    #[serde(borrow, default)]
    stop_reason: JsonText<'a>,
    #[serde(default)]
    content: NonEmpty,
    #[serde(default)]
    output: NonEmpty,
    #[serde(borrow)]
    generated_text: Option<&'a RawValue>,
    #[serde(borrow)]
    details: Option<TgiDetails<'a>>,
}

/// Classifies an engine's whole answer. `shown_model` replaces the engine's own name of the model.
pub fn classify_answer(
    api: Api,
    status: StatusCode,
    headers: &HeaderMap,
    body: &Bytes,
    shown_model: Option<&str>,
) -> AnswerVerdict {
    if !status.is_success() {
        let retry_after = headers::retry_after(headers);
        return refused(
            engine_error::classify_status(api, status.as_u16(), body, retry_after, shown_model),
            JobUsage::Unknown,
        );
    }
    if is_opaque(api, headers) {
        return opaque_success(body);
    }
    let Ok(whole) = serde_json::from_slice::<WholeAnswer<'_>>(body) else {
        // `/score` and TGI may answer with an array, in which nothing needs to be read.
        return match serde_json::from_slice::<Vec<serde::de::IgnoredAny>>(body) {
            Ok(_) if !api.generates() => opaque_success(body),
            _ => AnswerVerdict::Fault { fault: EngineFault::Malformed, usage: JobUsage::Unknown },
        };
    };
    let usage = consumed(api, headers, &whole);
    let is_flat_error = whole.object.0.as_deref() == Some("error");
    if whole.error.is_some() && api.protocol() != Protocol::Responses || is_flat_error {
        return refused(engine_error::classify_event(api, body, shown_model), usage);
    }
    match ending(api, &whole, usage) {
        Err(fault) => AnswerVerdict::Fault { fault, usage },
        Ok(finish_reason) => {
            AnswerVerdict::Success { body: renamed(body, &whole, shown_model), usage, finish_reason }
        }
    }
}

/// The verdict on a good answer whose body cannot be read.
fn opaque_success(body: &Bytes) -> AnswerVerdict {
    AnswerVerdict::Success { body: body.clone().into(), usage: JobUsage::Unknown, finish_reason: None }
}

fn refused(error: EngineError, usage: JobUsage) -> AnswerVerdict {
    match error {
        EngineError::Client(error) => AnswerVerdict::ClientError(error),
        EngineError::Fault(EngineFault::ErrorEvent) => {
            AnswerVerdict::Fault { fault: EngineFault::ServerError, usage }
        }
        EngineError::Fault(fault) => AnswerVerdict::Fault { fault, usage },
    }
}

/// Whether the answer is in a format other than JSON, as some calls allow: subtitles of a
/// transcription, raw numbers of an embedding.
fn is_opaque(api: Api, headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    match api {
        Api::Transcriptions | Api::Translations => !parse::is_json(content_type),
        Api::Embeddings | Api::Pooling => content_type.starts_with(b"application/octet-stream"),
        _ => false,
    }
}

/// The reason why the first choice ended, where the protocol gives it.
fn ending(api: Api, whole: &WholeAnswer<'_>, usage: JobUsage) -> Result<Option<&'static str>, EngineFault> {
    let did_nothing = |says: NonEmpty| !says.0 && usage.tokens().is_some_and(|tokens| tokens.output == 0);
    let real =
        |ending: Option<ChoiceEnding>| ending.and_then(ChoiceEnding::reason).ok_or(EngineFault::Aborted);
    match api {
        Api::Chat | Api::Completions => {
            let Some(choices) = whole.choices.as_ref().filter(|choices| !choices.is_empty()) else {
                return Err(EngineFault::Malformed);
            };
            let reasons: Result<SmallVec<[&str; 1]>, _> =
                choices.iter().map(|choice| real(choice.ending())).collect();
            reasons.map(|reasons| reasons.first().copied())
        }
        Api::Messages => {
            let reason = real(whole.stop_reason.0.as_deref().map(ChoiceEnding::of))?;
            if did_nothing(whole.content) { Err(EngineFault::Aborted) } else { Ok(Some(reason)) }
        }
        Api::Responses => match whole.status.0.as_deref() {
            // A background response ends later; clients ask for it by its id.
            Some("queued" | "in_progress") => Ok(None),
            status => {
                let reason = real(Some(response_ending(status)))?;
                if did_nothing(whole.output) { Err(EngineFault::Aborted) } else { Ok(Some(reason)) }
            }
        },
        Api::TgiGenerate | Api::TgiGenerateStream => {
            if whole.generated_text.is_none() {
                return Err(EngineFault::Malformed);
            }
            // Details come only when the request asks for them.
            whole.details.as_ref().map(|details| real(details.ending())).transpose()
        }
        _ => Ok(None),
    }
}

fn consumed(api: Api, headers: &HeaderMap, whole: &WholeAnswer<'_>) -> JobUsage {
    if !api.runs_model() {
        return JobUsage::Exact(TokenCounts::default());
    }
    if api.protocol() == Protocol::Tgi {
        return consumed_tgi(headers, whole);
    }
    whole.usage.and_then(usage::read).map_or(JobUsage::Unknown, JobUsage::Exact)
}

/// The usage of a TGI answer: from the headers, else from the details, which come only when the
/// request asks for them.
fn consumed_tgi(headers: &HeaderMap, whole: &WholeAnswer<'_>) -> JobUsage {
    let header = |name: &str| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    if let (Some(input), Some(output)) = (header("x-prompt-tokens"), header("x-generated-tokens")) {
        return JobUsage::Exact(TokenCounts { input, cached: None, output });
    }
    match whole.details.as_ref().and_then(TgiDetails::tokens) {
        Some((tokens, true)) => JobUsage::Exact(tokens),
        Some((tokens, false)) => JobUsage::Partial(tokens),
        None => JobUsage::Unknown,
    }
}

fn renamed(body: &Bytes, whole: &WholeAnswer<'_>, shown_model: Option<&str>) -> EditedBody {
    let change = shown_model.zip(whole.model).and_then(|(shown, model)| {
        let shown = json_string(shown);
        let differs = model.get() != shown && model.get().starts_with('"');
        let span = span_in(body, model.get().as_bytes()).filter(|_| differs)?;
        Some((span, shown))
    });
    match change {
        Some((span, shown)) => edit::replace(body, span, shown),
        None => body.clone().into(),
    }
}
