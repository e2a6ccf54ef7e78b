//! Requests of closed-loop clients and their bodies.

use std::fmt::Write as _;

use bytes::Bytes;
use clap::ValueEnum;
use penstock::sim::rng::Rng;

const SYLLABLES: [&str; 16] =
    ["ka", "lo", "mi", "ne", "pu", "ra", "si", "to", "ve", "zu", "ba", "do", "fe", "gi", "hu", "ja"];
/// Tokens of a chat beside the text of its messages, by the simulated engines' rule.
const CHAT_TOKENS: f64 = 4.0;

/// How answers are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Answers {
    /// As event streams.
    #[default]
    Streams,
    /// Whole.
    Plain,
    /// Every second one as a stream.
    Half,
}

/// What all requests of a run have in common.
#[derive(Debug, Clone)]
pub struct Work {
    /// The model's name.
    pub model: String,
    /// How answers are asked for.
    pub answers: Answers,
    /// Prompt tokens, a shared start included.
    pub prompt: u32,
    /// The part of them that is the same text in every request: a system message.
    pub shared: u32,
    /// Output tokens of each choice.
    pub output: u32,
    /// Choices.
    pub n: u32,
    /// Bytes of text that are one token.
    pub bytes_per_token: f64,
    /// Fixes the texts.
    pub seed: u64,
}

impl Work {
    /// Whether this request asks for a stream.
    pub fn streams(&self, number: u64) -> bool {
        match self.answers {
            Answers::Streams => true,
            Answers::Plain => false,
            Answers::Half => number.is_multiple_of(2),
        }
    }

    /// The body of a chat. Requests of different numbers differ from the first
    /// word that they do not share.
    pub fn body(&self, number: u64) -> Bytes {
        let bytes = |tokens: f64| (tokens * self.bytes_per_token).max(1.0) as usize;
        let shared = f64::from(self.shared.min(self.prompt));
        let own = (f64::from(self.prompt) - shared - CHAT_TOKENS).max(1.0);
        let mut text = String::with_capacity(bytes(f64::from(self.prompt)) + 256);
        let model = serde_json::Value::from(self.model.as_str());
        // Writing to a String cannot fail.
        let _ = write!(text, "{{\"model\":{model},\"max_tokens\":{},\"ignore_eos\":true", self.output.max(1));
        if self.n > 1 {
            let _ = write!(text, ",\"n\":{}", self.n);
        }
        if self.streams(number) {
            text.push_str(",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
        }
        text.push_str(",\"messages\":[");
        if self.shared > 0 {
            text.push_str("{\"role\":\"system\",\"content\":\"");
            words(self.seed, bytes(shared), &mut text);
            text.push_str("\"},");
        }
        text.push_str("{\"role\":\"user\",\"content\":\"");
        words(Rng::new(self.seed ^ 1).bits() ^ Rng::new(number).bits(), bytes(own), &mut text);
        text.push_str("\"}]}");
        Bytes::from(text)
    }
}

/// Appends words of two syllables, `length` bytes in all.
fn words(seed: u64, length: usize, out: &mut String) {
    let mut rng = Rng::new(seed);
    let end = out.len() + length;
    while out.len() < end {
        let bits = rng.bits();
        for word in 0..8 {
            for half in [0, 4] {
                out.push_str(SYLLABLES[(bits >> (word * 8 + half)) as usize & 15]);
            }
            out.push(' ');
        }
    }
    // Every byte is ASCII, so any place is a boundary.
    out.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(shared: u32) -> Work {
        Work {
            model: "m\"x".to_owned(),
            answers: Answers::Half,
            prompt: 100,
            shared,
            output: 9,
            n: 2,
            bytes_per_token: 4.0,
            seed: 5,
        }
    }

    fn parsed(work: &Work, number: u64) -> serde_json::Value {
        serde_json::from_slice(&work.body(number)).expect("JSON")
    }

    #[test]
    fn every_second_body_asks_for_a_stream() {
        let (even, odd) = (parsed(&work(0), 4), parsed(&work(0), 5));
        assert_eq!((even["stream"].as_bool(), odd["stream"].as_bool()), (Some(true), None));
        assert_eq!((even["n"].as_u64(), even["max_tokens"].as_u64()), (Some(2), Some(9)));
        assert_eq!(even["model"], "m\"x");
    }

    #[test]
    fn texts_have_their_length_and_share_only_what_they_are_to_share() {
        let text = |body: &serde_json::Value, at: usize| {
            body["messages"][at]["content"].as_str().expect("text").to_owned()
        };
        let (one, two) = (parsed(&work(60), 1), parsed(&work(60), 2));
        assert_eq!(text(&one, 0), text(&two, 0));
        assert_eq!((text(&one, 0).len(), text(&one, 1).len()), (240, 144));
        assert_ne!(text(&one, 1)[..16], text(&two, 1)[..16]);
        assert_eq!(one, parsed(&work(60), 1));
        assert_eq!(text(&parsed(&work(0), 1), 0).len(), 384);
    }
}
