//! Token counter: exact counts by the model's own tokenizer and chat template.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;

use crate::tokens::chat::{ChatPrompt, Conversation, cut_at_mark};
pub use crate::tokens::files::ModelFileError;
use crate::tokens::files::{Stamp, TOKENIZER, sources, stamp};
use crate::tokens::template::{ChatTemplate, RenderError};
use crate::tokens::vocabulary::Vocabulary;

/// A short chat, by which the counter measures the tokens that a template adds.
const SHORT: &str = r#"{"messages":[{"role":"user","content":""}]}"#;
/// A short chat with a tool.
const SHORT_WITH_TOOLS: &str =
    r#"{"messages":[{"role":"user","content":""}],"tools":[{"function":{"name":""}}]}"#;
/// Tokens that a template is taken to add to a chat when they cannot be counted.
const USUAL_FRAME: u64 = 256;
/// The message for a field of a type that the counter does not know.
const NOT_READ: &str = "its fields are not of the usual types";

/// A model's tokenizer and chat template, from a folder of files.
#[derive(Debug)]
pub struct TokenCounter {
    folder: PathBuf,
    stamp: Stamp,
    vocabulary: Vocabulary,
    plain: Option<ChatTemplate>,
    /// The template for requests with tools, where they have one of their own.
    tools: Option<ChatTemplate>,
    special: Vec<(String, String)>,
    /// Twice the tokens that the template adds to the shortest chat.
    template_tokens: u64,
}

/// The form of a request's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptForm {
    /// Messages, rendered by the chat template.
    Chat,
    /// Text, or several texts.
    Text,
}

/// The tokens that images and sounds are counted as. Absent = only the engine knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MediaCosts {
    /// Tokens of one image.
    pub image: Option<u64>,
    /// Tokens of one sound.
    pub audio: Option<u64>,
}

/// The tokens of a request's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedTokens {
    /// The tokens of the longest prompt, where the request has several.
    pub longest: u64,
    /// The tokens of all prompts together.
    pub total: u64,
}

/// The reason why there is no exact count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CountError {
    /// The caller no longer waits for the text.
    Stopped,
    /// The engine may read the request otherwise, or refuse it. The reason never quotes the prompt.
    Unsure(String),
}

impl TokenCounter {
    /// Reads `tokenizer.json`, and the files beside it: `tokenizer_config.json`,
    /// `special_tokens_map.json` and `chat_template.jinja`.
    ///
    /// # Errors
    /// The file that is missing or broken.
    pub fn open(folder: &Path) -> Result<Self, ModelFileError> {
        let stamp = stamp(folder);
        let file = folder.join(TOKENIZER);
        let vocabulary = Vocabulary::read(&file).map_err(|why| ModelFileError { file, why })?;
        let found = sources(folder)?;
        let template = |source: Option<String>| {
            let broken = |why| ModelFileError {
                file: folder.to_owned(),
                why: format!("its chat template is broken: {why}"),
            };
            source.map(|source| ChatTemplate::new(&source).map_err(broken)).transpose()
        };
        let (plain, tools) = (template(found.plain)?, template(found.tools)?);
        let folder = folder.to_owned();
        let mut made =
            Self { folder, stamp, vocabulary, plain, tools, special: found.special, template_tokens: 0 };
        let never = AtomicBool::new(false);
        let short = [SHORT, SHORT_WITH_TOOLS].map(|body| {
            let counted = made.count(PromptForm::Chat, body.as_bytes(), &MediaCosts::default(), 0, &never);
            counted.map_or(USUAL_FRAME, |counted| counted.total)
        });
        made.template_tokens = short.into_iter().fold(0, u64::max) * 2;
        Ok(made)
    }

    /// The counter `before` if its files are unchanged, else a new one.
    ///
    /// # Errors
    /// As [`TokenCounter::open`].
    pub fn reopen(folder: &Path, before: Option<&Arc<Self>>) -> Result<Arc<Self>, ModelFileError> {
        match before {
            Some(before) if before.folder == folder && before.stamp == stamp(folder) => {
                Ok(Arc::clone(before))
            }
            _ => Self::open(folder).map(Arc::new),
        }
    }

    /// The folder of the counter's files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The most tokens that a prompt of this many bytes of JSON can have. A message's own JSON has
    /// more bytes than a template adds tokens to it. Templates may write tools with more white
    /// space, so their bytes count four times.
    pub fn max_tokens(&self, bytes: u64, tool_bytes: u64) -> u64 {
        let bytes = bytes.saturating_add(tool_bytes.saturating_mul(3));
        bytes.saturating_mul(self.vocabulary.per_byte).saturating_add(self.template_tokens)
    }

    /// The tokens of the prompt of a request's JSON body. `now` is the time that a template may
    /// print, in seconds since 1970. A first count takes about 15 ns a byte, so it must not run on
    /// threads that serve requests. Setting `stop` ends the count early.
    ///
    /// # Errors
    /// See [`CountError`].
    pub fn count(
        &self,
        form: PromptForm,
        body: &[u8],
        media: &MediaCosts,
        now: i64,
        stop: &AtomicBool,
    ) -> Result<CountedTokens, CountError> {
        match form {
            PromptForm::Chat => self.count_chat(body, media, now, stop),
            PromptForm::Text => self.count_texts(body, stop),
        }
    }

    fn count_chat(
        &self,
        body: &[u8],
        media: &MediaCosts,
        now: i64,
        stop: &AtomicBool,
    ) -> Result<CountedTokens, CountError> {
        let unsure = |why: &str| CountError::Unsure(why.to_owned());
        let chat: ChatPrompt = serde_json::from_slice(body).map_err(|_| unsure(NOT_READ))?;
        if stop.load(Ordering::Relaxed) {
            return Err(CountError::Stopped);
        }
        let plain = self.plain.as_ref().ok_or_else(|| unsure("there is no chat template"))?;
        let tools = self.tools.as_ref().filter(|_| chat.has_tools());
        let template = tools.unwrap_or(plain);
        let conversation = chat.conversation(template.takes_parts, template.knows_developers, &self.special);
        let Conversation { variables, media: parts, continued_text: goes_on_from, adds_special } =
            conversation.map_err(unsure)?;
        let cost = |count: u64, cost: Option<u64>| match (count, cost) {
            (0, _) => Ok(0),
            (count, Some(cost)) => Ok(count.saturating_mul(cost)),
            (_, None) => Err(unsure("what its images or sounds cost is not configured")),
        };
        let more = cost(parts.images, media.image)?.saturating_add(cost(parts.sounds, media.audio)?);
        let rendered = template.render(variables, now, body.len(), stop).map_err(|error| match error {
            RenderError::Stopped => CountError::Stopped,
            RenderError::Failed { line } => {
                unsure(&format!("the chat template refuses it in line {}", line.unwrap_or_default()))
            }
        })?;
        let text = match goes_on_from {
            Some(text) => &rendered[..cut_at_mark(&rendered, &text).map_err(unsure)?],
            None => &rendered,
        };
        let tokens = self.tokens(text, adds_special, stop)?.saturating_add(more);
        Ok(CountedTokens { longest: tokens, total: tokens })
    }

    fn count_texts(&self, body: &[u8], stop: &AtomicBool) -> Result<CountedTokens, CountError> {
        let texts: CompletionTexts =
            serde_json::from_slice(body).map_err(|_| CountError::Unsure(NOT_READ.to_owned()))?;
        let adds_special = texts.add_special_tokens.unwrap_or(true);
        let mut counted = CountedTokens { longest: 0, total: 0 };
        let one = match &texts.prompt {
            CompletionPrompt::One(text) => std::slice::from_ref(text),
            CompletionPrompt::Several(list) => list,
        };
        for text in one {
            let tokens = match text {
                PromptText::Words(text) => self.tokens(text, adds_special, stop)?,
                PromptText::Tokens(ids) => ids.len() as u64,
            };
            counted.longest = counted.longest.max(tokens);
            counted.total = counted.total.saturating_add(tokens);
        }
        Ok(counted)
    }

    fn tokens(&self, text: &str, adds_special: bool, stop: &AtomicBool) -> Result<u64, CountError> {
        let counted = self.vocabulary.count(text, adds_special, stop);
        let refused = |_| CountError::Unsure("the tokenizer refuses it".to_owned());
        counted.map_err(refused)?.ok_or(CountError::Stopped)
    }
}

#[derive(Debug, Deserialize)]
struct CompletionTexts {
    prompt: CompletionPrompt,
    #[serde(default)]
    add_special_tokens: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum CompletionPrompt {
    One(PromptText),
    Several(Vec<PromptText>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum PromptText {
    Words(String),
    Tokens(Vec<u64>),
}

#[cfg(test)]
mod tests;
