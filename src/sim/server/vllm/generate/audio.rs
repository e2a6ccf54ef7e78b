//! Audio routes `/v1/audio/transcriptions` and `/v1/audio/translations`: a
//! small fake that reads the form and answers with words in proportion to the
//! length of the sound.

use std::collections::VecDeque;
use std::convert::Infallible;

use bytes::Bytes;
use serde_json::Value;

use crate::server::feed::{FeedEnd, Progress};
use crate::server::http::body::{Render, SimBody};
use crate::server::http::call::ServerCall;
use crate::server::http::job::ClientJob;
use crate::server::http::json::ordered;
use crate::server::http::reply::{self, HandlerAnswer};
use crate::server::text::SimPrompt;
use crate::server::vllm::error::{self, VllmError};
use crate::server::vllm::fields::JsonFields;
use crate::server::vllm::generate::params::{self, Params};
use crate::server::vllm::generate::session::{self, DONE, GenerationSession, SSE};

/// Bytes per second of 16-bit samples at 16 kHz.
const BYTES_PER_SECOND: usize = 32_000;
/// Encoder tokens per second of sound.
const TOKENS_PER_SECOND: u32 = 50;
/// Words per second of sound.
const WORDS_PER_SECOND: u32 = 3;

pub(in crate::server::vllm) async fn answer(mut call: ServerCall) -> HandlerAnswer {
    let form = match read(&call).await {
        Ok(form) => form,
        Err(error) => return Ok(error.respond(&call.path)),
    };
    let seconds = form.sound.div_ceil(BYTES_PER_SECOND).max(1);
    let text_format = form.fields.get("response_format").and_then(Value::as_str) == Some("text");
    let (session, mut job) = match start(&mut call, &form, seconds) {
        Ok(started) => started,
        Err(error) => return Ok(error.respond(&call.path)),
    };
    if session.params.stream {
        let render = Box::new(SpeechStream { session, sent: 0, object: form.object });
        return Ok(reply::events(SSE, SimBody::stream(job, render, None)));
    }
    let (progress, act) = job.complete().await;
    if let Some(FeedEnd::Failed(failure)) = &progress.end {
        return Ok(VllmError::from(failure.clone()).respond(&call.path));
    }
    let text = session.plans[0].text(0, progress.choices[0].tokens);
    let (kind, body) = match text_format {
        true => ("text/plain; charset=utf-8", text),
        false => {
            let usage = ordered!({"type": "duration", "seconds": seconds});
            ("application/json", ordered!({"text": text, "usage": usage}).to_string())
        }
    };
    Ok(reply::deliver(job, act, reply::typed(200, kind, ""), body.into()))
}

struct AudioForm {
    fields: JsonFields,
    /// Length of the sound, in bytes.
    sound: usize,
    object: &'static str,
}

async fn read(call: &ServerCall) -> Result<AudioForm, VllmError> {
    let missing = || VllmError::field("missing", "body.file", "Field required", "None");
    let content_type = call.header("content-type").unwrap_or_default();
    let boundary = multer::parse_boundary(content_type).map_err(|_| missing())?;
    let body = futures_util::stream::iter([Ok::<_, Infallible>(call.body.clone())]);
    let mut form = multer::Multipart::new(body, boundary);
    let broken = |_| VllmError::bad("There was an error parsing the body");
    let (mut fields, mut sound) = (serde_json::Map::new(), None);
    while let Some(field) = form.next_field().await.map_err(broken)? {
        let name = field.name().unwrap_or_default().to_owned();
        if name == "file" {
            sound = Some(field.bytes().await.map_err(broken)?.len());
        } else {
            let text = field.text().await.map_err(broken)?;
            let value = match text.as_str() {
                "true" | "True" => Value::Bool(true),
                "false" | "False" => Value::Bool(false),
                _ => Value::String(text),
            };
            fields.insert(name, value);
        }
    }
    let object =
        if call.path.ends_with("translations") { "translation.chunk" } else { "transcription.chunk" };
    Ok(AudioForm { fields: JsonFields(fields), sound: sound.ok_or_else(missing)?, object })
}

fn start(
    call: &mut ServerCall,
    form: &AudioForm,
    seconds: usize,
) -> Result<(GenerationSession, ClientJob), VllmError> {
    let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
    let mut params = Params { stream: form.fields.bool("stream")?, n: 1, ..Params::default() };
    params.model = params::model(&form.fields, &call.sim.options)?;
    let params = params.with_exact_output(i64::from(seconds.saturating_mul(WORDS_PER_SECOND)));
    let mut prompt = SimPrompt::counted(seconds.saturating_mul(TOKENS_PER_SECOND));
    prompt.push(form.fields.string("prompt")?.unwrap_or_default(), 4);
    let prefix = if form.object == "translation.chunk" { "trsl-" } else { "trsc-" };
    let id = session::answer_id(call, prefix, None);
    session::start(call, id, params, vec![prompt])
}

struct SpeechStream {
    session: GenerationSession,
    sent: u32,
    object: &'static str,
}

impl SpeechStream {
    fn event(&self, text: &str, reason: Option<&str>) -> Bytes {
        let session = &self.session;
        let data = ordered!({
            "id": &*session.id, "object": self.object, "created": session.created,
            "model": session.params.model,
            "choices": [ordered!({"delta": ordered!({"content": text}), "finish_reason": reason, "stop_reason": ()})]
        });
        format!("data: {data}\n\n").into()
    }
}

impl Render for SpeechStream {
    fn render(&mut self, progress: &Progress, out: &mut VecDeque<Bytes>) {
        let choice = progress.choices[0];
        if choice.tokens > self.sent {
            let text = self.session.plans[0].text(self.sent, choice.tokens);
            self.sent = choice.tokens;
            out.push_back(self.event(&text, choice.done.then_some("stop")));
        }
        match &progress.end {
            None => return,
            Some(FeedEnd::Failed(failure)) => out.push_back(error::event(failure).into()),
            Some(FeedEnd::Aborted) if self.sent > 0 => out.push_back(self.event("", Some("abort"))),
            Some(_) => {}
        }
        out.push_back(Bytes::from_static(DONE));
    }
}
