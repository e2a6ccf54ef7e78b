//! Resumable requests: requests whose answer another engine can continue. Each of their fields is
//! known to mean the same for the rest of an answer as for the whole of it.

/// The values of a field that allow a continuation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldRule {
    /// Any value: the field concerns each token by itself, or not the text at all.
    Any,
    /// Only a value that turns the field off: the field concerns the answer as a whole, or adds to
    /// its text.
    Off,
    /// Only `true`, which is also the field's default.
    On,
}

/// Rules of the fields that the parser does not read. `presence_penalty` and its like count
/// generated tokens, but the next engine takes these for prompt tokens. `repetition_penalty` counts
/// both, so any value is allowed.
const RULES: [(&str, FieldRule); 38] = [
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

/// Whether the field allows another engine to continue the answer. `value` is the field's JSON.
pub(crate) fn allows_continuation(name: &str, value: &str) -> bool {
    let rule = RULES.iter().find(|(known, _)| *known == name).map(|(_, rule)| *rule);
    match rule {
        _ if value == "null" => true,
        Some(FieldRule::Any) => true,
        Some(FieldRule::Off) => is_off(value),
        Some(FieldRule::On) => value == "true",
        None => false,
    }
}

/// Whether a value turns its field off.
pub(crate) fn is_off(value: &str) -> bool {
    matches!(value, "null" | "false" | "0" | "0.0" | "\"\"" | "[]" | "{}")
}
