//! Resumable requests: those that another engine can continue after a part of the answer, since
//! each of their fields is known to mean the same for the rest of an answer as for the whole of
//! it.

/// What a field may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldRule {
    /// Anything: it concerns each token by itself, or not the text at all.
    Any,
    /// Only that it is off: it concerns the answer as a whole, or adds to its
    /// text.
    Off,
    /// Only true, which is also its default.
    On,
}

/// The fields that are not read otherwise. `presence_penalty` and its like
/// count what was generated, which the next engine takes for prompt; what
/// `repetition_penalty` counts is in both.
const RULES: [(&str, FieldRule); 40] = [
    ("temperature", FieldRule::Any),
    ("top_p", FieldRule::Any),
    ("top_k", FieldRule::Any),
    ("min_p", FieldRule::Any),
    ("seed", FieldRule::Any),
    ("ignore_eos", FieldRule::Any),
    ("repetition_penalty", FieldRule::Any),
    ("logit_bias", FieldRule::Any),
    ("allowed_token_ids", FieldRule::Any),
    ("stop", FieldRule::Any),
    ("stop_token_ids", FieldRule::Any),
    ("bad_words", FieldRule::Any),
    ("metadata", FieldRule::Any),
    ("store", FieldRule::Any),
    ("safety_identifier", FieldRule::Any),
    ("chat_template_kwargs", FieldRule::Any),
    ("cache_salt", FieldRule::Any),
    ("request_id", FieldRule::Any),
    ("tool_choice", FieldRule::Any),
    ("parallel_tool_calls", FieldRule::Any),
    ("top_logprobs", FieldRule::Any),
    ("reasoning_effort", FieldRule::Any),
    ("verbosity", FieldRule::Any),
    ("spaces_between_special_tokens", FieldRule::On),
    ("skip_special_tokens", FieldRule::On),
    ("add_special_tokens", FieldRule::On),
    ("logprobs", FieldRule::Off),
    ("prompt_logprobs", FieldRule::Off),
    ("return_token_ids", FieldRule::Off),
    ("return_tokens_as_token_ids", FieldRule::Off),
    ("echo", FieldRule::Off),
    ("use_beam_search", FieldRule::Off),
    ("presence_penalty", FieldRule::Off),
    ("frequency_penalty", FieldRule::Off),
    ("include_stop_str_in_output", FieldRule::Off),
    ("response_format", FieldRule::Off),
    ("modalities", FieldRule::Off),
    ("audio", FieldRule::Off),
    ("suffix", FieldRule::Off),
    ("function_call", FieldRule::Off),
];

/// Whether the field leaves the answer one that another engine can go on with.
/// `value` is its JSON.
pub(crate) fn allows(name: &str, value: &str) -> bool {
    let rule = RULES.iter().find(|(known, _)| *known == name).map(|(_, rule)| *rule);
    match rule {
        _ if value == "null" => true,
        Some(FieldRule::Any) => true,
        Some(FieldRule::Off) => is_off(value),
        Some(FieldRule::On) => value == "true",
        None => false,
    }
}

/// Whether a value asks for nothing.
pub(crate) fn is_off(value: &str) -> bool {
    matches!(value, "null" | "false" | "0" | "0.0" | "\"\"" | "[]" | "{}")
}
