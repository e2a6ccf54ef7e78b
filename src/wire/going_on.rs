//! Which requests another engine can go on with after a part of the answer:
//! those whose every field is known to mean the same for the rest of an answer
//! as for the whole of it.

/// What a field may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
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
const RULES: [(&str, Rule); 40] = [
    ("temperature", Rule::Any),
    ("top_p", Rule::Any),
    ("top_k", Rule::Any),
    ("min_p", Rule::Any),
    ("seed", Rule::Any),
    ("ignore_eos", Rule::Any),
    ("repetition_penalty", Rule::Any),
    ("logit_bias", Rule::Any),
    ("allowed_token_ids", Rule::Any),
    ("stop", Rule::Any),
    ("stop_token_ids", Rule::Any),
    ("bad_words", Rule::Any),
    ("metadata", Rule::Any),
    ("store", Rule::Any),
    ("safety_identifier", Rule::Any),
    ("chat_template_kwargs", Rule::Any),
    ("cache_salt", Rule::Any),
    ("request_id", Rule::Any),
    ("tool_choice", Rule::Any),
    ("parallel_tool_calls", Rule::Any),
    ("top_logprobs", Rule::Any),
    ("reasoning_effort", Rule::Any),
    ("verbosity", Rule::Any),
    ("spaces_between_special_tokens", Rule::On),
    ("skip_special_tokens", Rule::On),
    ("add_special_tokens", Rule::On),
    ("logprobs", Rule::Off),
    ("prompt_logprobs", Rule::Off),
    ("return_token_ids", Rule::Off),
    ("return_tokens_as_token_ids", Rule::Off),
    ("echo", Rule::Off),
    ("use_beam_search", Rule::Off),
    ("presence_penalty", Rule::Off),
    ("frequency_penalty", Rule::Off),
    ("include_stop_str_in_output", Rule::Off),
    ("response_format", Rule::Off),
    ("modalities", Rule::Off),
    ("audio", Rule::Off),
    ("suffix", Rule::Off),
    ("function_call", Rule::Off),
];

/// Whether the field leaves the answer one that another engine can go on with.
/// `value` is its JSON.
pub(crate) fn allows(name: &str, value: &str) -> bool {
    let rule = RULES.iter().find(|(known, _)| *known == name).map(|(_, rule)| *rule);
    match rule {
        _ if value == "null" => true,
        Some(Rule::Any) => true,
        Some(Rule::Off) => is_off(value),
        Some(Rule::On) => value == "true",
        None => false,
    }
}

/// Whether a value asks for nothing.
pub(crate) fn is_off(value: &str) -> bool {
    matches!(value, "null" | "false" | "0" | "0.0" | "\"\"" | "[]" | "{}")
}
