//! Prompt of a chat: the messages and tools of a request, counted in tokens.

use serde_json::Value;

use crate::server::text::SimPrompt;
use crate::server::vllm::error::VllmError;
use crate::server::vllm::fields::JsonFields;

/// Tokens that an image or a sound counts.
const MEDIA_TOKENS: u32 = 256;

/// The prompt of a list of messages, with the tools.
pub(in crate::server::vllm) fn of_messages(
    messages: &[Value],
    fields: &JsonFields,
    model: &str,
    multimodal: bool,
) -> Result<SimPrompt, VllmError> {
    if messages.is_empty() {
        let message = "Cannot apply chat template to an empty conversation. Provide at least one message.";
        return Err(VllmError::bad(message));
    }
    let goes_on = fields.bool("continue_final_message")?;
    if goes_on && fields.get("add_generation_prompt") != Some(&Value::Bool(false)) {
        let message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
        return Err(VllmError::bad(message));
    }
    let mut prompt = SimPrompt::counted(1);
    if let Some(tools) = fields.get("tools").filter(|tools| tools.is_array()) {
        prompt.push(&tools.to_string(), 0);
    }
    for (index, message) in messages.iter().enumerate() {
        if !message.get("role").is_some_and(Value::is_string) {
            let loc = format!("body.messages.{index}.role");
            return Err(VllmError::field("string_type", &loc, "Input should be a valid string", "5"));
        }
        if goes_on && index + 1 == messages.len() {
            prompt.push_open(message.get("content").and_then(Value::as_str).unwrap_or_default());
            break;
        }
        prompt.push("", 3);
        match message.get("content") {
            Some(Value::String(text)) => prompt.push(text, 0),
            Some(Value::Array(parts)) => push_parts(&mut prompt, parts, model, multimodal)?,
            _ => {}
        }
        if let Some(calls) = message.get("tool_calls") {
            prompt.push(&calls.to_string(), 0);
        }
    }
    Ok(prompt)
}

fn push_parts(
    prompt: &mut SimPrompt,
    parts: &[Value],
    model: &str,
    multimodal: bool,
) -> Result<(), VllmError> {
    for part in parts {
        match (part.get("text").and_then(Value::as_str), part.as_str()) {
            (Some(text), _) | (None, Some(text)) => prompt.push(text, 0),
            (None, None) if multimodal => prompt.push("", MEDIA_TOKENS),
            (None, None) => return Err(VllmError::bad(format!("{model} is not a multimodal model"))),
        }
    }
    Ok(())
}
