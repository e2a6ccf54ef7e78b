//! Chat prompt: the variables that engines give to a model's chat template for a chat request. The
//! conversion follows vLLM 0.32; SGLang does the same.

use std::collections::BTreeMap;

use minijinja::value::{Value, ValueKind};
use serde::Deserialize;

/// The fields of a chat request that its prompt is made of.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChatPrompt {
    messages: Vec<BTreeMap<String, Value>>,
    tools: Option<Vec<ChatTool>>,
    documents: Option<Value>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    add_special_tokens: Option<bool>,
    reasoning_effort: Option<Value>,
    chat_template: Option<Value>,
    chat_template_kwargs: Option<BTreeMap<String, Value>>,
}

#[derive(Debug, Deserialize)]
struct ChatTool {
    #[serde(default)]
    r#type: Option<String>,
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    description: Option<Value>,
    #[serde(default)]
    parameters: Option<Value>,
    #[serde(default)]
    strict: Option<bool>,
    #[serde(default)]
    defer_loading: Option<bool>,
}

/// The number of parts of a prompt that are not text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Media {
    pub(super) images: u64,
    pub(super) sounds: u64,
}

/// The variables of the template, and how to treat the text that it renders.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) variables: Vec<(String, Value)>,
    pub(super) media: Media,
    /// The text that the answer continues, when the request continues its last message.
    pub(super) continued_text: Option<String>,
    pub(super) adds_special: bool,
}

/// The mark behind the text to continue, by which the text is found in the rendering.
pub(super) const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

type ChatMessage = Vec<(String, Value)>;

impl ChatPrompt {
    /// Whether the request has tools.
    pub(super) const fn has_tools(&self) -> bool {
        self.tools.is_some()
    }

    /// The conversation for a template that takes content as parts (`takes_parts`) or as text.
    ///
    /// # Errors
    /// The reason why the template would get something else than from an engine.
    pub(super) fn conversation(
        self,
        takes_parts: bool,
        knows_developers: bool,
        special: &[(String, String)],
    ) -> Result<Conversation, &'static str> {
        if self.chat_template.is_some_and(|own| !own.is_none()) {
            return Err("it brings its own chat template");
        }
        let mut media = Media::default();
        let mut messages = Vec::with_capacity(self.messages.len());
        for message in self.messages {
            messages.push(convert(&message, takes_parts, &mut media)?);
        }
        if !knows_developers && messages.iter().any(|message| role(message) == "developer") {
            messages = without_developers(messages);
        }
        let goes_on = self.continue_final_message.unwrap_or(false);
        let goes_on_from = if goes_on { Some(mark_continued_text(&mut messages)?) } else { None };
        let tools = self.tools.map(|tools| tools.into_iter().map(tool).collect::<Vec<_>>());
        let mut variables: BTreeMap<String, Value> =
            special.iter().map(|(name, text)| (name.clone(), text.into())).collect();
        let own = self.chat_template_kwargs.unwrap_or_default();
        if let Some(effort) = self.reasoning_effort.filter(|effort| !effort.is_none()) {
            if !own.contains_key("enable_thinking") {
                variables.insert("enable_thinking".to_owned(), (effort.as_str() != Some("none")).into());
            }
            variables.insert("reasoning_effort".to_owned(), effort);
        }
        variables.extend(own.into_iter().filter(|(name, _)| name != "tokenize" && name != "chat_template"));
        let generation = self.add_generation_prompt.unwrap_or(true);
        variables.insert("add_generation_prompt".to_owned(), generation.into());
        variables.insert("documents".to_owned(), self.documents.unwrap_or_else(|| ().into()));
        variables.insert("tools".to_owned(), tools.map_or_else(|| ().into(), Value::from));
        let messages: Vec<Value> = messages.into_iter().map(Value::from_pairs).collect();
        variables.insert("messages".to_owned(), messages.into());
        Ok(Conversation {
            variables: variables.into_iter().collect(),
            media,
            continued_text: goes_on_from,
            adds_special: self.add_special_tokens.unwrap_or(false),
        })
    }
}

fn role(message: &ChatMessage) -> &str {
    field(message, "role").and_then(Value::as_str).unwrap_or_default()
}

fn field<'a>(message: &'a ChatMessage, name: &str) -> Option<&'a Value> {
    message.iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

fn convert(
    message: &BTreeMap<String, Value>,
    takes_parts: bool,
    media: &mut Media,
) -> Result<ChatMessage, &'static str> {
    let given = |name: &str| message.get(name).filter(|value| !value.is_none());
    let role = given("role").and_then(Value::as_str).ok_or("a message has no role")?;
    let content = content(given("content"), role, takes_parts, media)?;
    let mut out: ChatMessage = vec![("role".to_owned(), role.into()), ("content".to_owned(), content)];
    match role {
        "assistant" => {
            if let Some(calls) = given("tool_calls") {
                let calls = items(calls).map(|call| tool_call(&call)).collect::<Result<Vec<_>, _>>()?;
                if !calls.is_empty() {
                    out.push(("tool_calls".to_owned(), calls.into()));
                }
            }
            if let Some(thought) = given("reasoning") {
                out.push(("reasoning".to_owned(), thought.clone()));
                out.push(("reasoning_content".to_owned(), thought.clone()));
            }
        }
        "tool" => out.extend(message.get("tool_call_id").map(|id| ("tool_call_id".to_owned(), id.clone()))),
        "developer" => {
            out.push(("tools".to_owned(), message.get("tools").cloned().unwrap_or_else(|| ().into())));
        }
        _ => {}
    }
    for name in ["name", "task"] {
        out.extend(
            given(name).filter(|text| text.as_str().is_some()).map(|text| (name.to_owned(), text.clone())),
        );
    }
    Ok(out)
}

fn items(value: &Value) -> impl Iterator<Item = Value> {
    let list = (value.kind() == ValueKind::Seq).then(|| value.try_iter().ok()).flatten();
    list.into_iter().flatten()
}

fn content(
    given: Option<&Value>,
    role: &str,
    takes_parts: bool,
    media: &mut Media,
) -> Result<Value, &'static str> {
    let as_text = !takes_parts;
    let mut parts: Vec<Value> = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    let mut only_text = true;
    let all = match given {
        None => Vec::new(),
        Some(text) if text.as_str().is_some() => vec![text.clone()],
        Some(list) => items(list).collect(),
    };
    for part in all {
        match read_part(&part, role)? {
            ContentPart::Nothing => {}
            // vLLM leaves an empty part out of a text, but not out of a list.
            ContentPart::Text(text) if text.is_empty() && !takes_parts => {}
            ContentPart::Text(text) => {
                if takes_parts {
                    let extra = extra_fields(&part);
                    let head = [("type".to_owned(), "text".into()), ("text".to_owned(), text.clone().into())];
                    parts.push(Value::from_pairs(head.into_iter().chain(extra)));
                }
                texts.push(text);
            }
            ContentPart::Media(kind) => {
                only_text = false;
                *(if kind == "image" { &mut media.images } else { &mut media.sounds }) += 1;
                parts.push(Value::from_pairs([("type", kind)]));
            }
        }
    }
    let joined = as_text || role == "tool" && only_text;
    Ok(if joined { texts.join("\n").into() } else { parts.into() })
}

enum ContentPart {
    Nothing,
    Text(String),
    Media(&'static str),
}

fn read_part(part: &Value, role: &str) -> Result<ContentPart, &'static str> {
    let said = |text: &str| {
        // This header names the sender to the vendor. It is not a part of the prompt.
        if role == "system" && text.starts_with("x-anthropic-billing-header") {
            let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
            return if rest.is_empty() { ContentPart::Nothing } else { ContentPart::Text(rest.to_owned()) };
        }
        ContentPart::Text(text.to_owned())
    };
    if let Some(text) = part.as_str() {
        return Ok(said(text));
    }
    let get = |name: &str| part.get_attr(name).ok().filter(|value| !value.is_none() && !value.is_undefined());
    let text_of = |name: &str| match get(name) {
        Some(text) => text.as_str().map(said).ok_or("a part's text is no text"),
        None => Ok(ContentPart::Nothing),
    };
    match get("type").as_ref().and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text") => text_of("text"),
        Some("refusal") => text_of("refusal"),
        Some("thinking") => text_of("thinking"),
        Some("image_url" | "input_image") => Ok(ContentPart::Media("image")),
        Some("input_audio" | "audio_url") => Ok(ContentPart::Media("audio")),
        _ => Err("a part is neither text nor image nor audio"),
    }
}

/// The fields of a part other than its kind and text, such as `cache_control`.
fn extra_fields(part: &Value) -> Vec<(String, Value)> {
    const KNOWN: [&str; 6] = ["type", "text", "refusal", "thinking", "uuid", "closed"];
    if part.kind() != ValueKind::Map {
        return Vec::new();
    }
    let names = part.try_iter().into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned));
    let extra = names.filter(|name| !KNOWN.contains(&name.as_str()));
    extra.filter_map(|name| part.get_attr(&name).ok().map(|value| (name, value))).collect()
}

/// A tool call with its arguments as an object, as templates expect them.
fn tool_call(call: &Value) -> Result<Value, &'static str> {
    let get = |value: &Value, name: &str| value.get_attr(name).ok().filter(|value| !value.is_undefined());
    let function = get(call, "function").filter(|one| one.kind() == ValueKind::Map);
    let function = function.ok_or("a tool call names no function")?;
    let given = get(&function, "arguments");
    let arguments = match given {
        Some(map) if map.kind() == ValueKind::Map => map,
        Some(text) => {
            let read = text.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
            read.filter(|value| value.kind() == ValueKind::Map).unwrap_or_else(empty)
        }
        None => empty(),
    };
    let function = with(&function, "arguments", arguments);
    Ok(with(call, "function", function))
}

fn empty() -> Value {
    Value::from_pairs(std::iter::empty::<(String, Value)>())
}

/// The map with one entry replaced at its position, or added.
fn with(map: &Value, name: &str, value: Value) -> Value {
    let keys: Vec<Value> = map.try_iter().into_iter().flatten().collect();
    let is_new = !keys.iter().any(|key| key.as_str() == Some(name));
    let all = keys.into_iter().map(|key| {
        let entry = if key.as_str() == Some(name) { Ok(value.clone()) } else { map.get_item(&key) };
        (key, entry.unwrap_or_default())
    });
    let mut pairs: Vec<(Value, Value)> = all.collect();
    pairs.extend(is_new.then_some((name.into(), value)));
    Value::from_pairs(pairs)
}

fn tool(tool: ChatTool) -> Value {
    let none = || Value::from(());
    let Function { name, description, parameters, strict, defer_loading } = tool.function;
    let mut function: ChatMessage = vec![
        ("name".to_owned(), name.into()),
        ("description".to_owned(), description.unwrap_or_else(none)),
        ("parameters".to_owned(), parameters.unwrap_or_else(none)),
    ];
    function.extend(strict.map(|strict| ("strict".to_owned(), strict.into())));
    function.extend(defer_loading.map(|defer| ("defer_loading".to_owned(), defer.into())));
    let kind = tool.r#type.unwrap_or_else(|| "function".to_owned());
    Value::from_pairs([("type", kind.into()), ("function", Value::from_pairs(function))])
}

/// Turns developers' messages into system messages. When a system message is not the first, or
/// there are several, all of them become one system message at the start.
fn without_developers(messages: Vec<ChatMessage>) -> Vec<ChatMessage> {
    let (mut said, mut others, mut scattered) = (Vec::new(), Vec::new(), false);
    let mut kept = Vec::new();
    for (at, mut message) in messages.into_iter().enumerate() {
        if role(&message) == "developer" {
            message.retain(|(name, _)| name != "tools");
            message
                .iter_mut()
                .filter(|(name, _)| name == "role")
                .for_each(|(_, role)| *role = "system".into());
        }
        if role(&message) == "system" {
            scattered |= at > 0 || !said.is_empty();
            let content = field(&message, "content").cloned().unwrap_or_default();
            let text = match content.as_str() {
                Some(text) => text.to_owned(),
                None => {
                    let of = |part: Value| part.get_attr("text").ok()?.as_str().map(str::to_owned);
                    items(&content).filter_map(of).collect::<Vec<_>>().join("\n")
                }
            };
            said.extend((!text.is_empty()).then_some(text));
        } else {
            others.push(message.clone());
        }
        kept.push(message);
    }
    if !scattered {
        return kept;
    }
    let first = vec![("role".to_owned(), "system".into()), ("content".to_owned(), said.join("\n\n").into())];
    std::iter::once(first).chain(others).collect()
}

/// Puts the mark behind the text of the last message, and returns this text.
fn mark_continued_text(messages: &mut [ChatMessage]) -> Result<String, &'static str> {
    const NONE: &str = "there is no text to go on from";
    let content = messages.last_mut().and_then(|last| last.iter_mut().find(|(name, _)| name == "content"));
    let (_, content) = content.ok_or(NONE)?;
    if let Some(text) = content.as_str().map(str::to_owned) {
        *content = format!("{text}{MARK}").into();
        return Ok(text);
    }
    let mut parts: Vec<Value> = items(content).collect();
    let texts = |part: &Value| part.get_attr("text").ok().and_then(|text| text.as_str().map(str::to_owned));
    let at = parts.iter().rposition(|part| texts(part).is_some()).ok_or(NONE)?;
    let text = texts(&parts[at]).ok_or(NONE)?;
    parts[at] = with(&parts[at], "text", format!("{text}{MARK}").into());
    *content = parts.into();
    Ok(text)
}

/// The length of the rendered text up to the mark, as transformers cuts it.
///
/// # Errors
/// The template left out the text to continue.
pub(super) fn cut_at_mark(rendered: &str, text: &str) -> Result<usize, &'static str> {
    let is_there = rendered.contains(text.trim());
    let at = rendered.rfind(MARK.trim_end()).filter(|_| is_there);
    let at = at.ok_or("the template leaves out the text to go on from")?;
    Ok(if rendered[at..].starts_with(MARK) { at } else { rendered[..at].trim_end().len() })
}
