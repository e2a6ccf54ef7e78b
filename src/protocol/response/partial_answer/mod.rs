//! Partial answer: the part of an answer of one choice that the client has. Another engine can
//! continue it, and the client sees one answer.
//!
//! The next engine gets the text without the white space at its end: chat templates trim it, and
//! many tokenizers join it to the word that follows. The engine writes this white space again, and
//! the classifier takes it out of the continuation.

use serde_json::value::RawValue;

use crate::core::model::job::TokenCounts;
use crate::protocol::request::edit::json_string;
use crate::protocol::response::edit::EventRewrites;
use crate::protocol::response::{ParsedEvent, usage};

/// The longest text that is kept, in bytes. A longer answer cannot be continued.
const MAX_TEXT: usize = 256 * 1024;

/// The answer so far, over all engines that generated a part of it.
#[derive(Debug, Clone, Default)]
pub struct PartialAnswer {
    text: String,
    /// The output tokens of the parts before the current one.
    tokens: u64,
    /// Whether an engine counted `tokens`.
    is_counted: bool,
    /// `id`, `created` and `system_fingerprint` of the first part, as JSON.
    metadata: [Option<Box<str>>; 3],
    /// The white space that the current engine is expected to repeat.
    expected_whitespace: String,
    /// Whether there were parts before the current one.
    is_resumed: bool,
    /// The answer has output other than text, or more text than is kept.
    cannot_continue: bool,
    /// Tokens of the text beyond `tokens`. Above 0, the client has all tokens that it asked for, and
    /// only the end of the answer is missing.
    excess_tokens: u64,
}

impl PartialAnswer {
    /// The text for the next engine: without the white space at its end.
    pub fn prompt_text(&self) -> &str {
        self.text.trim_end()
    }

    /// The output tokens that the client has of the parts before the current one.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Whether an engine counted [`PartialAnswer::tokens`]. Otherwise they are a lower bound.
    pub const fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// Whether there were parts before the current one.
    pub const fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Sets the tokens to an engine's count of the text of [`PartialAnswer::prompt_text`].
    pub fn set_tokens(&mut self, tokens: u64) {
        (self.tokens, self.is_counted) = (tokens, true);
    }

    /// Lowers the token count to `most`, one below the most tokens of the answer: the continuation has
    /// to generate a token. Where the client has all tokens by the engine's count, it does not get the
    /// text of that one. An engine may read a text as more tokens than it was written in: such an
    /// answer ends as many tokens early.
    pub fn cap_tokens(&mut self, most: u64) {
        self.excess_tokens = self.tokens.saturating_sub(most);
        self.tokens -= self.excess_tokens;
    }

    /// The partial answer after the current part broke off; the client has `tokens` in all. Absent
    /// when the answer cannot be continued.
    pub(crate) fn for_continuation(&self, tokens: u64, is_counted: bool) -> Option<Self> {
        let owed = self.text[self.prompt_text().len()..].to_owned();
        let open = !self.cannot_continue && !self.text.is_empty();
        open.then(|| Self {
            tokens: tokens + self.excess_tokens,
            excess_tokens: 0,
            is_counted,
            expected_whitespace: owed,
            is_resumed: true,
            ..self.clone()
        })
    }

    /// Whether each event must be read in full, as text may have to be taken out.
    pub(crate) const fn must_read_all(&self) -> bool {
        self.excess_tokens > 0 || !self.expected_whitespace.is_empty()
    }

    /// Appends text that went to the client.
    pub(crate) fn push_text(&mut self, text: &str) {
        if self.cannot_continue || self.text.len() + text.len() > MAX_TEXT {
            self.cannot_continue = true;
            self.text = String::new();
        } else {
            self.text.push_str(text);
        }
    }

    /// Turns the usage of the current part into that of the whole answer. The engine counted the
    /// earlier parts as part of its prompt.
    pub(crate) fn whole(&self, part: TokenCounts) -> TokenCounts {
        if !self.is_resumed {
            return part;
        }
        let input = part.input.saturating_sub(self.tokens + self.excess_tokens);
        TokenCounts {
            input,
            cached: part.cached.map(|cached| cached.min(input)),
            output: part.output.saturating_add(self.tokens),
        }
    }

    /// Records an event, and rewrites it into an event of the same answer. Returns whether the
    /// event has something for the client.
    pub(crate) fn record_event(
        &mut self,
        data: &[u8],
        news: &ParsedEvent<'_>,
        rewrites: &mut EventRewrites,
    ) -> bool {
        for (first, now) in self.metadata.iter_mut().zip(news.metadata) {
            match (first, now) {
                (Some(first), Some(now)) if **first != *now.get() => rewrites.set(data, now, &**first),
                (first @ None, Some(now)) if !self.is_resumed => *first = Some(now.get().into()),
                _ => {}
            }
        }
        if self.is_resumed
            && let Some(raw) = news.raw_usage
        {
            usage::shift(data, raw, self.tokens, self.excess_tokens, rewrites);
        }
        let mut is_new = !self.is_resumed;
        for choice in &news.choices {
            self.cannot_continue |= choice.has_other_output || choice.index > 0;
            let says = choice.text.is_some_and(|raw| self.see_text(data, raw, rewrites));
            is_new |= says || choice.has_other_output || choice.ending.is_some();
        }
        is_new || news.choices.is_empty()
    }

    fn see_text(&mut self, data: &[u8], raw: &RawValue, rewrites: &mut EventRewrites) -> bool {
        if self.excess_tokens > 0 {
            rewrites.set(data, raw, "\"\"");
            return false;
        }
        let Ok(text) = serde_json::from_str::<std::borrow::Cow<'_, str>>(raw.get()) else {
            self.cannot_continue = true;
            return true;
        };
        let text = &*text;
        if self.expected_whitespace.is_empty() {
            self.push_text(text);
            return true;
        }
        let pairs = text.char_indices().zip(self.expected_whitespace.chars());
        let same: usize = pairs.take_while(|((_, a), b)| a == b).map(|((_, a), _)| a.len_utf8()).sum();
        let rest = &text[same..];
        self.expected_whitespace =
            if rest.is_empty() { self.expected_whitespace.split_off(same) } else { String::new() };
        rewrites.set(data, raw, json_string(rest));
        self.push_text(rest);
        !rest.is_empty()
    }
}

#[cfg(test)]
mod tests;
