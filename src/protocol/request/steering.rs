//! Steering fields: fields of a request's body by which a client could steer an engine past the
//! gateway, reach what other clients left there, or hide from the gateway what the engine reads. A
//! request with one of them is refused.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::protocol::api::{Api, Dialect};

const PAST_THE_GATEWAY: &str = "is not taken from clients: it steers the engine. Leave it out.";
const NO_BACKGROUND: &str =
    "must be false: an answer is sent when it is ready, and cannot be fetched here later. Leave it out.";
const NO_STORE: &str = "is not supported: the engine that has the earlier response may not be the next one. \
                        Send the whole conversation in `input`.";
const NO_SESSION: &str = "is not taken from clients: it goes on from what an engine keeps of another request. \
                          Send the whole prompt.";
/// By this name an engine finds a request again, to end it or to hold its response.
const OWN_ID: &str = "is not taken from clients: it names the request inside the engine. Send the header \
                      `x-request-id`, or leave it out.";
const OWN_CACHE: &str =
    "is not taken from clients: it names a part of the engine's prefix cache. Send `cache_salt`.";
const OWN_METRICS: &str = "is not taken from clients: it makes series of the engine's metrics. Leave it out.";
/// The rights of a key name models, and an adapter is one.
const ADAPTER: &str = "is not taken from clients: an adapter is asked for by its name in `model`.";
/// Such a prompt is not counted, and the rules of media do not see it. Guardrails get numbers at best.
const UNREAD_PROMPT: &str = "is not taken from clients: the gateway reads prompts in `messages`, `prompt`, `input` \
                             and `inputs`. Send one of these.";
const UNREAD_OUTPUT_LIMIT: &str = "is not supported: the gateway reads `max_tokens`. Send that.";
const UNREAD_CHOICES: &str = "is not supported: the gateway reads `n`. Send that.";

/// The steering fields, and what a client is told about each.
const FIELDS: [(&str, &str); 35] = [
    ("kv_transfer_params", PAST_THE_GATEWAY),
    ("ec_transfer_params", PAST_THE_GATEWAY),
    ("disaggregated_params", PAST_THE_GATEWAY),
    ("bootstrap_host", PAST_THE_GATEWAY),
    ("bootstrap_port", PAST_THE_GATEWAY),
    ("bootstrap_room", PAST_THE_GATEWAY),
    ("data_parallel_rank", PAST_THE_GATEWAY),
    ("routed_dp_rank", PAST_THE_GATEWAY),
    ("disagg_prefill_dp_rank", PAST_THE_GATEWAY),
    ("id_slot", PAST_THE_GATEWAY),
    ("conversation_params", PAST_THE_GATEWAY),
    ("agent_hierarchy", PAST_THE_GATEWAY),
    ("custom_logit_processor", PAST_THE_GATEWAY),
    ("ngram_corpus_id", PAST_THE_GATEWAY),
    ("background", NO_BACKGROUND),
    ("previous_response_id", NO_STORE),
    ("session_params", NO_SESSION),
    ("request_id", OWN_ID),
    ("rid", OWN_ID),
    ("extra_key", OWN_CACHE),
    ("custom_labels", OWN_METRICS),
    ("lora_path", ADAPTER),
    ("lora_request", ADAPTER),
    ("lora", ADAPTER),
    ("adapter_id", ADAPTER),
    ("input_ids", UNREAD_PROMPT),
    ("prompt_token_ids", UNREAD_PROMPT),
    ("prompt_token_ids_b64", UNREAD_PROMPT),
    ("prompt_embeds", UNREAD_PROMPT),
    ("input_embeds", UNREAD_PROMPT),
    ("image_data", UNREAD_PROMPT),
    ("video_data", UNREAD_PROMPT),
    ("audio_data", UNREAD_PROMPT),
    ("n_predict", UNREAD_OUTPUT_LIMIT),
    ("n_cmpl", UNREAD_CHOICES),
];

/// Fields of calls in TGI's dialect. SGLang has a call of its own at the same path, whose prompt and
/// limits have these names.
const FIELDS_OF_TGI_CALLS: [(&str, &str); 2] =
    [("text", UNREAD_PROMPT), ("sampling_params", UNREAD_OUTPUT_LIMIT)];

/// Fields whose objects vLLM and TGI read as if their fields were the request's own.
const NESTING: [&str; 2] = ["vllm_xargs", "parameters"];

/// A steering field that a client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SteeringField {
    pub(crate) name: &'static str,
    /// What the client is told about it.
    pub(crate) advice: &'static str,
}

/// The steering field of this name; for a field of [`NESTING`], the first one inside. `None` if the field steers nothing, or `value`, its JSON, turns it off.
pub(crate) fn refusal(api: Api, name: &str, value: &str) -> Option<SteeringField> {
    if NESTING.contains(&name) {
        let inner: BTreeMap<String, &RawValue> = serde_json::from_str(value).ok()?;
        return inner.iter().find_map(|(name, value)| own_refusal(api, name, value.get()));
    }
    own_refusal(api, name, value)
}

fn own_refusal(api: Api, name: &str, value: &str) -> Option<SteeringField> {
    let of_call: &'static [(&'static str, &'static str)] =
        if api.dialect() == Dialect::Tgi { &FIELDS_OF_TGI_CALLS } else { &[] };
    let (name, advice) = *FIELDS.iter().chain(of_call).find(|(known, _)| *known == name)?;
    let is_off = value == "null" || value == "false";
    (!is_off).then_some(SteeringField { name, advice })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_refused_unless_it_is_off() {
        for (name, advice) in FIELDS {
            for value in ["\"x\"", "0", "true", "{}", "[1]"] {
                assert_eq!(
                    refusal(Api::Chat, name, value),
                    Some(SteeringField { name, advice }),
                    "{name}: {value}"
                );
            }
            for value in ["null", "false"] {
                assert_eq!(refusal(Api::Chat, name, value), None, "{name}: {value}");
            }
        }
    }

    #[test]
    fn no_field_is_named_twice() {
        let mut names: Vec<_> = FIELDS.iter().chain(&FIELDS_OF_TGI_CALLS).map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FIELDS.len() + FIELDS_OF_TGI_CALLS.len());
    }

    #[test]
    fn a_field_inside_an_object_that_engines_unpack_is_found() {
        let found = |name, value| refusal(Api::Chat, name, value).map(|field| field.name);
        let xargs = r#"{"ngram_size":30,"kv_tr\u0061nsfer_params":"x"}"#;
        assert_eq!(found("vllm_xargs", xargs), Some("kv_transfer_params"));
        assert_eq!(found("parameters", r#"{"top_p":0.5,"adapter_id":"other"}"#), Some("adapter_id"));
        assert_eq!(found("vllm_xargs", r#"{"ngram_size":30,"rid":null}"#), None);
        assert_eq!(found("vllm_xargs", "7"), None, "the engine refuses it");
        assert_eq!(found("metadata", xargs), None);
    }

    #[test]
    fn the_names_of_sglang_s_own_call_are_refused_only_where_it_is() {
        for name in ["text", "sampling_params"] {
            assert!(refusal(Api::TgiGenerate, name, "{}").is_some(), "{name}");
            assert!(refusal(Api::TgiGenerateStream, name, "{}").is_some(), "{name}");
            assert!(refusal(Api::Responses, name, "{}").is_none(), "{name}");
        }
    }
}
