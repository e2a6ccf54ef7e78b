//! Guardrail checks: a prompt before its request is queued, an answer before its client gets it. A
//! check holds no place in the queue and none at an engine.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::config::settings::Settings;
use crate::config::settings::guardrails::{GuardrailRule, GuardrailSettings};
use crate::core::limits::LimitSubject;
use crate::core::model::event::Event;
use crate::protocol::error::ApiError;
use crate::protocol::request::edit::EditedBody;
use crate::proxy::Proxy;
use crate::proxy::attempt::EngineAnswer;
use crate::proxy::request::InferenceRequest;
use crate::proxy::summary::RequestRecord;
use crate::proxy::upstream::guardrails::GuardrailVerdict;
use crate::telemetry::summary::{GuardrailCheck, GuardrailOutcome, GuardrailStage};

const NULL: &[u8] = b"null";

/// What the service is told, beside the request and the answer.
#[derive(Debug, Serialize)]
struct GuardrailQuestion<'a> {
    stage: &'static str,
    request_id: &'a str,
    tenant: &'a str,
    key_id: Option<&'a str>,
    class: &'a str,
    model: &'a str,
    api: &'static str,
    stream: bool,
}

/// A rule that applies to a request, and the settings of the service that is asked.
#[derive(Debug, Clone, Copy)]
struct AppliedRule<'a> {
    guardrails: &'a GuardrailSettings,
    rule: GuardrailRule,
}

/// Has the prompt checked, if its tenant and class have prompts checked. The time of the check is no
/// time in the queue. A request that the policy or a limit refuses now is not checked; its ticket is
/// kept. A retry of a live request is checked in any case: that request may still hold what it needs.
///
/// # Errors
/// The prompt was denied, or there is no verdict and the rule refuses then.
pub(in crate::proxy) async fn check_prompt(
    proxy: &Proxy,
    settings: &Settings,
    request: &mut InferenceRequest,
    record: &mut RequestRecord,
    repeats_live: bool,
) -> Result<(), ApiError> {
    if request.entry.is_checked {
        return Ok(());
    }
    if let Some(applied) = rule_of(settings, request).filter(|applied| applied.rule.prompts) {
        if !repeats_live {
            let prefix = request.prefix(&proxy.prefixes);
            request.entry.refused =
                proxy.dispatcher.admit_if_refused(request.job(false), prefix, &settings.policy);
            if request.entry.refused.is_some() {
                return Ok(());
            }
        }
        let since = record.clock.now();
        let parts = [asked(request), Bytes::from_static(NULL)];
        let is_too_large = parts[0].len() as u64 > applied.guardrails.max_bytes;
        let question = (!is_too_large).then_some(parts);
        check(proxy, settings, applied, request, record, GuardrailStage::Prompt, question).await?;
        let took = record.clock.now().since(since);
        request.arrived += took;
        request.deadline = (request.deadline + took).min(request.client_deadline);
    }
    request.entry.is_checked = true;
    Ok(())
}

/// Has the answer checked, if it is no stream and its tenant and class have answers checked.
///
/// # Errors
/// The answer was denied, or there is no verdict and the rule refuses then.
pub(in crate::proxy) async fn check_answer(
    proxy: &Proxy,
    settings: &Settings,
    request: &InferenceRequest,
    answer: &EngineAnswer,
    record: &mut RequestRecord,
) -> Result<(), ApiError> {
    let EngineAnswer::Whole { body, .. } = answer else { return Ok(()) };
    let generates = request.parsed.api.generates();
    let applied = rule_of(settings, request).filter(|applied| applied.rule.answers && generates);
    let Some(applied) = applied else { return Ok(()) };
    let most = applied.guardrails.max_bytes;
    let question = (body.len() <= most).then(|| {
        let answer = as_json(body.to_bytes());
        let room = most.saturating_sub(answer.len() as u64);
        let asked = asked(request);
        [if asked.len() as u64 <= room { asked } else { Bytes::from_static(NULL) }, answer]
    });
    record.hold_answer();
    check(proxy, settings, applied, request, record, GuardrailStage::Answer, question).await?;
    record.release_answer();
    Ok(())
}

fn rule_of<'a>(settings: &'a Settings, request: &InferenceRequest) -> Option<AppliedRule<'a>> {
    let guardrails = settings.edge.guardrails.as_deref()?;
    let rule = *guardrails.rules.get(&(request.tenant, request.class))?;
    Some(AppliedRule { guardrails, rule })
}

/// Asks the service and records its verdict. A denied prompt counts in the limits per minute, so that
/// nobody has the service work for free. `parts` are the request and the answer as JSON; `None`
/// if they are too long.
async fn check(
    proxy: &Proxy,
    settings: &Settings,
    applied: AppliedRule<'_>,
    request: &InferenceRequest,
    record: &mut RequestRecord,
    stage: GuardrailStage,
    parts: Option<[Bytes; 2]>,
) -> Result<(), ApiError> {
    let AppliedRule { guardrails, rule } = applied;
    let since = record.clock.now();
    let result = match parts {
        None => Err(GuardrailOutcome::TooLarge),
        Some([body, answer]) => {
            let pieces = [
                Bytes::from(opening(settings, request, record, stage)),
                body,
                Bytes::from_static(b",\"answer\":"),
                answer,
                Bytes::from_static(b"}"),
            ];
            let (server, id) = (proxy.guardrails.server(guardrails), &record.request_id);
            let question = pieces.into_iter().collect::<EditedBody>();
            server.ask(guardrails, &settings.edge.upstream, request.tenant, id, question).await
        }
    };
    let (outcome, verdict) = match result {
        Ok(verdict) if verdict.is_allowed => (GuardrailOutcome::Allowed, verdict),
        Ok(verdict) => (GuardrailOutcome::Denied, verdict),
        Err(outcome) => (outcome, GuardrailVerdict::default()),
    };
    let GuardrailVerdict { message, reason, .. } = verdict;
    let passed = match outcome {
        GuardrailOutcome::Allowed => true,
        GuardrailOutcome::Denied => false,
        _ => rule.fails_open,
    };
    let took = record.clock.now().since(since);
    record.record_guardrail(GuardrailCheck { stage, outcome, reason, passed, took });
    if (stage, outcome) == (GuardrailStage::Prompt, GuardrailOutcome::Denied) {
        let subject = LimitSubject { tenant: request.tenant, key: request.key, model: request.model() };
        proxy.dispatcher.event(Event::PromptDenied { subject, tokens: request.tokens.prompt });
    }
    match outcome {
        _ if passed => Ok(()),
        GuardrailOutcome::Denied => Err(ApiError::guardrail_denied(stage.name(), message)),
        GuardrailOutcome::TooLarge => Err(ApiError::guardrail_too_large(stage.name(), guardrails.max_bytes)),
        _ => Err(ApiError::guardrail_unavailable(stage.name())),
    }
}

/// The question up to the place of the request's body.
fn opening(
    settings: &Settings,
    request: &InferenceRequest,
    record: &RequestRecord,
    stage: GuardrailStage,
) -> String {
    let policy = &settings.policy;
    let question = GuardrailQuestion {
        stage: stage.name(),
        request_id: record.request_id.to_str().unwrap_or_default(),
        tenant: policy.tenants.name(request.tenant),
        key_id: record.caller.identity.as_ref().and_then(|identity| identity.key_id.as_deref()),
        class: policy.classes.name(request.class),
        model: policy.models.name(request.model()),
        api: request.parsed.api.upstream_path(),
        stream: request.parsed.stream,
    };
    let mut text = serde_json::to_string(&question).unwrap_or_default();
    text.pop();
    text + ",\"request\":"
}

/// The request as JSON: its body, or the texts of a form's prompt. The form's file, which is audio, is
/// left out.
fn asked(request: &InferenceRequest) -> Bytes {
    let body = &request.body.bytes;
    if request.parsed.api.is_multipart() {
        form_prompt(request.parsed.prompt_pieces(body))
    } else {
        body.clone()
    }
}

fn form_prompt<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Bytes {
    #[derive(Serialize)]
    struct FormPrompt<'a> {
        prompt: Vec<Cow<'a, str>>,
    }
    let prompt = FormPrompt { prompt: pieces.map(String::from_utf8_lossy).collect() };
    serde_json::to_vec(&prompt).unwrap_or_else(|_| NULL.to_vec()).into()
}

/// The answer as it is if it is JSON, else as a JSON string.
fn as_json(answer: Bytes) -> Bytes {
    if serde_json::from_slice::<&RawValue>(&answer).is_ok() {
        return answer;
    }
    let text = String::from_utf8_lossy(&answer);
    serde_json::to_vec(&text).unwrap_or_else(|_| NULL.to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_of_a_form_is_sent_as_json() {
        assert_eq!(
            form_prompt([&b"say \"so\""[..], b"\xff"].into_iter()),
            r#"{"prompt":["say \"so\"","�"]}"#
        );
        assert_eq!(form_prompt(std::iter::empty()), r#"{"prompt":[]}"#);
    }

    #[test]
    fn answers_are_sent_as_json() {
        for (answer, sent) in [
            (r#"{"choices":[]}"#, r#"{"choices":[]}"#),
            ("plain \"text\"", r#""plain \"text\"""#),
            (r#"{"cut"#, r#""{\"cut""#),
        ] {
            assert_eq!(as_json(Bytes::from_static(answer.as_bytes())), sent);
        }
    }
}
