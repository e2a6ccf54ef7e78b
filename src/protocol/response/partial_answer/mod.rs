//! Partial answer: what a client has of an answer of one choice, so that another engine can
//! continue it and the two look like one answer.
//!
//! The next engine is told the text without the white space at its end: chat
//! templates trim it, and many tokenizers join it to the word that follows. The
//! engine writes it again, and it is taken out there.

use serde_json::value::RawValue;

use crate::core::model::job::TokenCounts;
use crate::protocol::request::edit::json_string;
use crate::protocol::response::edit::EventRewrites;
use crate::protocol::response::{EventNews, usage};

/// The longest text that is kept, in bytes; a longer answer cannot be
/// continued.
const MAX_TEXT: usize = 256 * 1024;

/// The answer up to now, over all engines that had a part in it.
#[derive(Debug, Clone, Default)]
pub struct PartialAnswer {
    text: String,
    /// Output tokens of the parts before the one under way.
    tokens: u64,
    /// Whether an engine counted them.
    is_counted: bool,
    /// What the first part said of itself, as JSON.
    head: [Option<Box<str>>; 3],
    /// White space that the engine under way is expected to repeat.
    owed: String,
    /// Whether there were parts before the one under way.
    is_resumed: bool,
    /// It has more than text, or more text than is kept.
    is_closed: bool,
}

impl PartialAnswer {
    /// The text that the next engine is told.
    #[must_use]
    pub fn told(&self) -> &str {
        self.text.trim_end()
    }

    /// Output tokens that the client has of the parts before the one under way.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Whether an engine counted them; otherwise they are a lower bound.
    #[must_use]
    pub const fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// Whether there were parts before the one under way.
    #[must_use]
    pub const fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Sets the tokens to what an engine counted in [`PartialAnswer::told`].
    pub fn count(&mut self, tokens: u64) {
        (self.tokens, self.is_counted) = (tokens, true);
    }

    /// A text may be read as more tokens than it was written in: counts at most
    /// `most`, so that an answer without its end can still be ended.
    pub fn leave_one(&mut self, most: u64) {
        self.tokens = self.tokens.min(most);
    }

    /// The part under way has broken off; the client has `tokens` in all.
    pub(crate) fn resumed(&self, tokens: u64, is_counted: bool) -> Option<Self> {
        let owed = self.text[self.told().len()..].to_owned();
        let open = !self.is_closed && !self.text.is_empty();
        open.then(|| Self { tokens, is_counted, owed, is_resumed: true, ..self.clone() })
    }

    /// Whether each event must be read in full.
    pub(crate) const fn reads_all(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Keeps text that went to the client.
    pub(crate) fn keep(&mut self, text: &str) {
        if self.is_closed || self.text.len() + text.len() > MAX_TEXT {
            self.is_closed = true;
            self.text = String::new();
        } else {
            self.text.push_str(text);
        }
    }

    /// Usage of this part as usage of the whole answer: the engine counted what
    /// it was told as part of its prompt.
    pub(crate) fn whole(&self, part: TokenCounts) -> TokenCounts {
        if !self.is_resumed {
            return part;
        }
        let input = part.input.saturating_sub(self.tokens);
        TokenCounts { input, cached: part.cached.min(input), output: part.output.saturating_add(self.tokens) }
    }

    /// Takes note of an event, and makes it one of the same answer. Says
    /// whether anything of it is for the client.
    pub(crate) fn see(&mut self, data: &[u8], news: &EventNews<'_>, rewrites: &mut EventRewrites) -> bool {
        for (first, now) in self.head.iter_mut().zip(news.head) {
            match (first, now) {
                (Some(first), Some(now)) if **first != *now.get() => rewrites.set(data, now, &**first),
                (first @ None, Some(now)) if !self.is_resumed => *first = Some(now.get().into()),
                _ => {}
            }
        }
        if self.is_resumed
            && let Some(raw) = news.raw_usage
        {
            usage::shift(data, raw, self.tokens, rewrites);
        }
        let mut is_new = !self.is_resumed;
        for choice in &news.choices {
            self.is_closed |= choice.more || choice.index > 0;
            let says = choice.text.is_some_and(|raw| self.see_text(data, raw, rewrites));
            is_new |= says || choice.more || choice.ending.is_some();
        }
        is_new || news.choices.is_empty()
    }

    fn see_text(&mut self, data: &[u8], raw: &RawValue, rewrites: &mut EventRewrites) -> bool {
        let Ok(text) = serde_json::from_str::<std::borrow::Cow<'_, str>>(raw.get()) else {
            self.is_closed = true;
            return true;
        };
        let text = &*text;
        if self.owed.is_empty() {
            self.keep(text);
            return true;
        }
        let pairs = text.char_indices().zip(self.owed.chars());
        let same: usize = pairs.take_while(|((_, a), b)| a == b).map(|((_, a), _)| a.len_utf8()).sum();
        let rest = &text[same..];
        self.owed = if rest.is_empty() { self.owed.split_off(same) } else { String::new() };
        rewrites.set(data, raw, json_string(rest));
        self.keep(rest);
        !rest.is_empty()
    }
}

#[cfg(test)]
mod tests;
