//! Prompts of a replay: request bodies with a given number of tokens.
//!
//! The counting rule is the simulated engines' own: four bytes of text are a
//! token, and a chat has four tokens besides its text (three for its message,
//! one for the generation prompt). A real tokenizer counts differently by some
//! factor; read the engine's usage for its own count.

use std::fmt::Write as _;

use bytes::Bytes;
use clap::ValueEnum;
use penstock::sim::rng::Rng;
use serde::Deserialize;

/// Bytes of text that count as one token.
const BYTES_PER_TOKEN: usize = 4;
/// Tokens of a chat with one message besides its text.
const CHAT_TOKENS: u32 = 4;

/// Which call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `/v1/chat/completions`, one user message.
    #[default]
    Chat,
    /// `/v1/completions`.
    Completions,
}

impl Api {
    /// The path after `/v1/`.
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "chat/completions",
            Api::Completions => "completions",
        }
    }
}

/// How the wanted output length is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// `max_tokens` is the length, and `ignore_eos` keeps the engine going.
    Exact,
    /// `max_tokens` is this constant, as most clients send it, and
    /// `min_tokens` is one less than the length. A simulated engine whose own
    /// mean length is 1 then stops by itself at the length; nothing on the
    /// way can know it before.
    Limit(u32),
    /// `max_tokens` is the length, the engine may stop sooner, and no field
    /// is sent that is not OpenAI's.
    Plain,
}

/// What all bodies of a run share.
#[derive(Debug, Clone)]
pub struct Writer {
    /// Which call.
    pub api: Api,
    /// The model's name.
    pub model: String,
    /// How lengths are asked for.
    pub length: Length,
    /// Tokens of one block of a shared prefix.
    pub prefix_block: u32,
    /// Fixes the texts.
    pub seed: u64,
}

/// The prompt of one call.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// Its number: prompts of different numbers differ from their first word,
    /// unless they share a prefix.
    pub number: u64,
    /// Tokens of the prompt.
    pub input: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// Names of its leading blocks; equal names have equal text.
    pub prefix: &'a [u64],
}

impl Writer {
    /// The body of a streaming call.
    pub fn body(&self, prompt: &Prompt<'_>) -> Bytes {
        let mut text = String::with_capacity(prompt.input as usize * BYTES_PER_TOKEN + 256);
        let model = serde_json::Value::from(self.model.as_str());
        let _ =
            write!(text, "{{\"model\":{model},\"stream\":true,\"stream_options\":{{\"include_usage\":true}}");
        let output = prompt.output.max(1);
        let _ = match self.length {
            Length::Exact => write!(text, ",\"max_tokens\":{output},\"ignore_eos\":true"),
            Length::Limit(most) => {
                let most = most.max(output);
                let _ = write!(text, ",\"max_tokens\":{most}");
                // Some routers refuse a least number of 0.
                match output - 1 {
                    0 => Ok(()),
                    least => write!(text, ",\"min_tokens\":{least}"),
                }
            }
            Length::Plain => write!(text, ",\"max_tokens\":{output}"),
        };
        match self.api {
            Api::Chat => {
                text.push_str(",\"messages\":[{\"role\":\"user\",\"content\":\"");
                self.write(prompt, prompt.input.saturating_sub(CHAT_TOKENS).max(1), &mut text);
                text.push_str("\"}]}");
            }
            Api::Completions => {
                text.push_str(",\"prompt\":\"");
                self.write(prompt, prompt.input.max(1), &mut text);
                text.push_str("\"}");
            }
        }
        Bytes::from(text)
    }

    fn write(&self, prompt: &Prompt<'_>, tokens: u32, out: &mut String) {
        let mut left = tokens;
        for name in prompt.prefix {
            let block = self.prefix_block.min(left);
            words(*name, block, out);
            left -= block;
        }
        let own = Rng::new(self.seed).bits() ^ Rng::new(prompt.number).bits();
        words(own, left, out);
    }
}

/// Appends `tokens` words of three letters and a space.
fn words(seed: u64, tokens: u32, out: &mut String) {
    let mut rng = Rng::new(seed);
    let mut bits = 0;
    for index in 0..tokens {
        if index % 4 == 0 {
            bits = rng.bits();
        }
        for _ in 0..3 {
            out.push(char::from(b'a' + (bits % 26) as u8));
            bits /= 26;
        }
        out.push(' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(api: Api, length: Length) -> Writer {
        Writer { api, model: "m\"x".to_owned(), length, prefix_block: 512, seed: 3 }
    }

    fn prompt(number: u64, prefix: &[u64]) -> Prompt<'_> {
        Prompt { number, input: 1200, output: 30, prefix }
    }

    fn text(writer: &Writer, prompt: &Prompt<'_>) -> String {
        let body: serde_json::Value = serde_json::from_slice(&writer.body(prompt)).expect("JSON");
        let text = body["prompt"].as_str().or(body["messages"][0]["content"].as_str());
        text.expect("a text").to_owned()
    }

    #[test]
    fn prompts_have_the_wanted_bytes() {
        let chat = text(&writer(Api::Chat, Length::Exact), &prompt(1, &[]));
        assert_eq!(chat.len(), (1200 - 4) * 4);
        let plain = text(&writer(Api::Completions, Length::Exact), &prompt(1, &[1, 2, 3, 4]));
        assert_eq!(plain.len(), 1200 * 4);
    }

    #[test]
    fn equal_blocks_have_equal_text_and_nothing_else_has() {
        let writer = writer(Api::Completions, Length::Exact);
        let [a, b, c] =
            [(1, &[7, 8]), (2, &[7, 8]), (3, &[7, 9])].map(|(n, prefix)| text(&writer, &prompt(n, prefix)));
        let block = 512 * 4;
        assert_eq!(a[..2 * block], b[..2 * block]);
        assert_ne!(a[2 * block..], b[2 * block..]);
        assert_eq!(a[..block], c[..block]);
        assert_ne!(a[block..2 * block], c[block..2 * block]);
        let own = text(&writer, &prompt(1, &[]));
        assert_ne!(own[..16], text(&writer, &prompt(2, &[]))[..16]);
        assert_eq!(own, text(&writer, &prompt(1, &[])));
    }

    #[test]
    fn lengths_are_asked_for_in_three_ways() {
        let fields = |length| {
            let body = writer(Api::Chat, length).body(&prompt(1, &[]));
            let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            let number = |name: &str| body[name].as_u64();
            (number("max_tokens"), number("min_tokens"), body["ignore_eos"].as_bool())
        };
        assert_eq!(fields(Length::Exact), (Some(30), None, Some(true)));
        assert_eq!(fields(Length::Limit(2000)), (Some(2000), Some(29), None));
        assert_eq!(fields(Length::Limit(5)), (Some(30), Some(29), None));
        assert_eq!(fields(Length::Plain), (Some(30), None, None));
    }
}
