//! Texts and token counts of an engine without a tokenizer.
//!
//! The counting rule, for both dialects: a text has one token for each four
//! bytes, rounded up; a list of token ids has as many tokens as ids; a chat
//! adds three tokens for each message and one for the generation prompt. Only
//! the engine's own output has one token for each word. When a prompt ends with
//! the start of the answer that follows the rest of the prompt, the answer
//! continues from there.

use std::sync::LazyLock;

use crate::faults::mix;

/// Bytes of text that count as one token.
pub(crate) const BYTES_PER_TOKEN: usize = 4;

/// Tokens in the vocabulary; greater ids are invalid.
pub(crate) const VOCABULARY: u32 = 4096;

const SYLLABLES: [&str; 16] =
    ["ka", "lo", "mi", "ne", "pu", "ra", "si", "to", "ve", "zu", "ba", "do", "fe", "gi", "hu", "ja"];

static WORDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    (0..VOCABULARY as usize)
        .map(|id| [" ", SYLLABLES[id >> 8], SYLLABLES[(id >> 4) & 15], SYLLABLES[id & 15]].concat())
        .collect()
});

/// Tokens of a text of `bytes` bytes.
pub(crate) fn tokens_of(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX)
}

/// The text of a token id.
pub(crate) fn word(id: u32) -> &'static str {
    &WORDS[(id % VOCABULARY) as usize]
}

/// A prompt as the engine model sees it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimPrompt {
    pub(crate) tokens: u32,
    /// Characters, for vLLM's limit on text length; 0 for token ids.
    pub(crate) chars: usize,
    bytes: Vec<u8>,
    /// The text that may end with the start of an answer.
    open: Option<OpenText>,
}

/// The last text of a prompt, up to the prompt's end.
#[derive(Debug, Clone, Copy)]
struct OpenText {
    /// Begin of the text in the bytes of the prompt.
    from: usize,
    /// Tokens before the text.
    tokens_before: u32,
}

/// Bytes of each word of the vocabulary.
const WORD_BYTES: usize = 7;

/// The token id of a word of the vocabulary.
fn id_of(word: &[u8]) -> Option<u32> {
    let syllables = word.strip_prefix(b" ").filter(|rest| rest.len() + 1 == WORD_BYTES)?.chunks(2);
    syllables
        .map(|pair| SYLLABLES.iter().position(|known| known.as_bytes() == pair))
        .try_fold(0, |id, place| Some(id << 4 | u32::try_from(place?).ok()?))
}

/// Number of tokens of a text that consists of words of the vocabulary; `None`
/// for other texts.
pub(crate) fn words_in(text: &str) -> Option<u32> {
    let words = text.as_bytes().chunks(WORD_BYTES);
    let count = u32::try_from(words.len()).ok()?;
    (count > 0 && words.map(id_of).all(|id| id.is_some())).then_some(count)
}

impl SimPrompt {
    pub(crate) fn text(text: &str) -> Self {
        let mut prompt = Self::default();
        prompt.push_open(text);
        prompt
    }

    pub(crate) fn ids(ids: &[u32]) -> Self {
        let tokens = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Self { tokens, bytes, ..Self::default() }
    }

    /// A prompt of `tokens` tokens without text, to which parts can be added.
    pub(crate) fn counted(tokens: u32) -> Self {
        Self { tokens, ..Self::default() }
    }

    /// Adds a part of a chat: its text, and `more_tokens` tokens besides.
    pub(crate) fn push(&mut self, text: &str, more_tokens: u32) {
        self.tokens = self.tokens.saturating_add(tokens_of(text.len())).saturating_add(more_tokens);
        self.chars += text.chars().count();
        self.bytes.extend_from_slice(text.as_bytes());
        self.open = None;
    }

    /// An empty text at the end of the prompt.
    const fn open_at_end(&self) -> OpenText {
        OpenText { from: self.bytes.len(), tokens_before: self.tokens }
    }

    /// Adds a text that may end with the start of the answer.
    pub(crate) fn push_open(&mut self, text: &str) {
        let open = self.open_at_end();
        self.push(text, 0);
        self.open = Some(open);
    }

    /// The voice of the answer, and the number of the answer's words that
    /// already end the prompt. `voice` returns the voice for a prompt with the
    /// given digest. From now on each of those words counts as one token.
    pub(crate) fn continued_answer(&mut self, voice: impl Fn(u64) -> AnswerTokens) -> (AnswerTokens, u32) {
        let OpenText { from, tokens_before } = self.open.unwrap_or_else(|| self.open_at_end());
        let words: Vec<u32> = self.bytes[from..].rchunks(WORD_BYTES).map_while(id_of).collect();
        let states = self.bytes.chunks_exact(8).scan(0, |state, chunk| {
            *state = fold(*state, chunk);
            Some(*state)
        });
        let states: Vec<u64> = [0].into_iter().chain(states).collect();
        for count in (1..=words.len()).rev() {
            let at = self.bytes.len() - count * WORD_BYTES;
            let rest = self.bytes[at / 8 * 8..at].chunks(8);
            let voice = voice(rest.fold(states[at / 8], fold));
            let mut said = words[..count].iter().rev().zip(0..);
            if said.all(|(word, index)| voice.token(0, index) == *word) {
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                self.tokens = tokens_before.saturating_add(tokens_of(at - from)).saturating_add(count);
                return (voice, count);
            }
        }
        (voice(self.digest()), 0)
    }

    /// Keeps the last `tokens` tokens.
    pub(crate) fn truncate(&mut self, tokens: u32) {
        if self.tokens > tokens {
            let keep = (tokens as usize * BYTES_PER_TOKEN).min(self.bytes.len());
            self.bytes.drain(..self.bytes.len() - keep);
            (self.tokens, self.chars, self.open) = (tokens, 0, None);
        }
    }

    /// Digest of the whole prompt.
    pub(crate) fn digest(&self) -> u64 {
        self.bytes.chunks(8).fold(0, fold)
    }

    /// One chained hash for each full block of the prompt; `salt` changes all
    /// hashes.
    pub(crate) fn blocks(&self, salt: u64) -> Vec<u64> {
        const BLOCK_BYTES: usize = BYTES_PER_TOKEN * crate::engine::BLOCK_TOKENS as usize;
        let chain = self.bytes.chunks_exact(BLOCK_BYTES).scan(salt, |state, block| {
            *state = block.chunks(8).fold(*state, fold);
            Some(*state)
        });
        chain.take(self.tokens as usize / crate::engine::BLOCK_TOKENS as usize).collect()
    }
}

fn fold(state: u64, chunk: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..chunk.len()].copy_from_slice(chunk);
    mix(state.rotate_left(5) ^ u64::from_le_bytes(word) ^ ((chunk.len() as u64) << 56))
}

/// Hash of a short text, such as a salt or a model name.
pub(crate) fn hash(text: &str) -> u64 {
    text.as_bytes().chunks(8).fold(text.len() as u64, fold)
}

/// Generator of one answer's tokens. The same prompt and seed yield the same
/// answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerTokens(pub(crate) u64);

impl AnswerTokens {
    /// The token at `index` of sequence `choice`.
    pub(crate) fn token(self, choice: usize, index: u32) -> u32 {
        let place = ((choice as u64) << 32) | u64::from(index);
        (mix(self.0 ^ mix(place.wrapping_add(1))) % u64::from(VOCABULARY)) as u32
    }

    /// Appends the text of the tokens `from..to`.
    pub(crate) fn write(self, choice: usize, from: u32, to: u32, out: &mut String) {
        for index in from..to {
            out.push_str(word(self.token(choice, index)));
        }
    }

    /// Length of the answer in tokens: geometric with this mean, at least 1.
    pub(crate) fn length(self, mean: u32) -> u32 {
        let unit = ((mix(self.0 ^ 0x5EED) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        1 + (-unit.ln() * f64::from(mean.max(1) - 1)) as u32
    }

    /// Log probability of a token: made up, but plausible.
    pub(crate) fn logprob(self, choice: usize, index: u32) -> f64 {
        -f64::from(self.token(choice, index) % 997) / 120.0 - 0.01
    }
}

/// Number between 0 and 1, for scores and embeddings.
pub(crate) fn unit(seed: u64) -> f64 {
    (mix(seed) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_exactly_their_common_blocks() {
        let first = SimPrompt::text(&"kalo mine pura si to ve. ".repeat(40));
        let mut second = first.clone();
        second.push("and something else", 0);
        let (a, b) = (first.blocks(0), second.blocks(0));
        assert_eq!(a.len(), 1000 / 64);
        assert_eq!(a[..], b[..a.len()]);
        assert_ne!(first.blocks(1)[0], a[0]);
        assert_ne!(first.digest(), second.digest());
    }

    #[test]
    fn lengths_have_the_asked_mean() {
        let total: u64 = (0..20_000).map(|seed| u64::from(AnswerTokens(mix(seed)).length(100))).sum();
        let mean = total as f64 / 20_000.0;
        assert!((97.0..103.0).contains(&mean), "{mean}");
        assert_eq!(AnswerTokens(1).length(1), 1);
    }

    #[test]
    fn words_are_distinct_and_counted_in_bytes() {
        assert_eq!(WORDS.iter().collect::<std::collections::HashSet<_>>().len(), VOCABULARY as usize);
        assert_eq!([0, 1, 4, 5].map(tokens_of), [0, 1, 1, 2]);
        let mut prompt = SimPrompt::text(&"abcd".repeat(10));
        prompt.truncate(3);
        assert_eq!((prompt.tokens, prompt.bytes.len()), (3, 12));
    }
}
