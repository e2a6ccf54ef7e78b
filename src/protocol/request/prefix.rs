//! Prompt prefix: hashes of the first blocks of a prompt. By these hashes the gateway finds the
//! replica that has the blocks in its prefix cache.
//!
//! Engines cache the start of a prompt, and templates put tools and system text before the
//! conversation. The hasher therefore reads the raw bytes of those fields first and of the
//! conversation last, as one text. The last byte of the conversation, its closing bracket or quote,
//! is left out: a conversation that grows keeps all its blocks.
//!
//! The hash is `ahash` with keys drawn at the start of the process. A client that could make two
//! prompts collide could have the prompts of others taken for cached ones. The gateway would send
//! them to a replica that does not have them. The hash must therefore be one that nobody can aim at
//! without the keys. The hasher reads at most `MAX_BLOCKS` blocks.

use std::hash::{BuildHasher, Hash, Hasher};

use ahash::RandomState;

use crate::core::model::ids::{ModelId, TenantId};
use crate::core::model::job::PromptPrefix;
use crate::protocol::api::Api;
use crate::protocol::request::parsed::ParsedRequest;

/// Bytes in a block: about 256 tokens of English.
const BLOCK_BYTES: usize = 1024;
/// The most blocks of a prompt that are hashed.
const MAX_BLOCKS: usize = 256;
/// The number of bytes at each end of a body that make up its fingerprint.
const END_BYTES: usize = 4096;

/// Hasher of prompt prefixes. Only prefixes of the same hasher can be compared.
#[derive(Debug, Default)]
pub struct PrefixHasher {
    keys: RandomState,
}

impl PrefixHasher {
    /// The prefix of a request for `model`, where `parsed` was parsed from `body` and the prompt has
    /// about `prompt_tokens` tokens. Requests with different salts share nothing. The prefix is empty
    /// for calls that generate nothing and for prompts of less than one block.
    pub fn prefix(
        &self,
        model: ModelId,
        parsed: &ParsedRequest,
        body: &[u8],
        prompt_tokens: u64,
        salt: Option<&str>,
    ) -> PromptPrefix {
        let bytes = parsed.prompt_bytes();
        if !parsed.api.generates() || parsed.api.is_multipart() {
            return PromptPrefix::default();
        }
        // The conversation is the first of the spans, whatever the order of fields in the body.
        let mut pieces = parsed.prompt_pieces(body);
        let conversation = pieces.next().unwrap_or_default();
        let conversation = &conversation[..conversation.len().saturating_sub(1)];
        let others: usize = pieces.map(<[u8]>::len).sum();
        let blocks = ((others + conversation.len()) / BLOCK_BYTES).min(MAX_BLOCKS);
        if blocks == 0 {
            return PromptPrefix::default();
        }
        let mut chain = HashChain::new(&self.keys, model, blocks);
        chain.hasher.write(salt.unwrap_or_default().as_bytes());
        for piece in parsed.prompt_pieces(body).skip(1) {
            chain.read(piece);
        }
        chain.read(conversation);
        let tokens = u128::from(prompt_tokens) * BLOCK_BYTES as u128 / u128::from(bytes.max(1));
        PromptPrefix {
            blocks: chain.blocks.into(),
            block_tokens: u32::try_from(tokens).unwrap_or(u32::MAX).max(1),
        }
    }

    /// The fingerprint by which a retry of a request is recognised: a hash of its tenant, model,
    /// call, length, and the two ends of its body. Forms have no fingerprint, as each retry has
    /// another boundary.
    pub fn fingerprint(&self, tenant: TenantId, model: ModelId, api: Api, body: &[u8]) -> Option<u64> {
        if api.is_multipart() {
            return None;
        }
        let mut hasher = self.keys.build_hasher();
        (tenant, model, api, body.len()).hash(&mut hasher);
        let end = body.len().min(END_BYTES);
        hasher.write(&body[..end]);
        hasher.write(&body[body.len().saturating_sub(END_BYTES).max(end)..]);
        Some(hasher.finish())
    }

    /// A hash that identifies a session of a tenant with a model. Nobody can recover the session's
    /// key from it without the hasher's keys.
    pub fn session(&self, tenant: TenantId, model: ModelId, key: &[u8]) -> u64 {
        let mut hasher = self.keys.build_hasher();
        hasher.write_u64(tenant.index() as u64);
        hasher.write_u64(model.index() as u64);
        hasher.write(key);
        hasher.finish()
    }
}

/// A hash chain: one running hash, whose value is recorded at the end of each block.
struct HashChain<H> {
    hasher: H,
    blocks: Vec<u64>,
    wanted: usize,
    /// The number of bytes that the current block still takes.
    room: usize,
}

impl<H: Hasher> HashChain<H> {
    fn new(keys: &impl BuildHasher<Hasher = H>, model: ModelId, wanted: usize) -> Self {
        let mut hasher = keys.build_hasher();
        hasher.write_u64(model.index() as u64);
        Self { hasher, blocks: Vec::with_capacity(wanted), wanted, room: BLOCK_BYTES }
    }

    fn read(&mut self, mut piece: &[u8]) {
        while self.blocks.len() < self.wanted && !piece.is_empty() {
            let (now, later) = piece.split_at(piece.len().min(self.room));
            self.hasher.write(now);
            self.room -= now.len();
            if self.room == 0 {
                self.blocks.push(self.hasher.finish());
                self.room = BLOCK_BYTES;
            }
            piece = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;
    use http::{HeaderMap, HeaderValue};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::protocol::api::Api;
    use crate::protocol::request::parse::parse_request;

    const MODEL: ModelId = ModelId::new(3);

    fn prefix_of(prefixes: &PrefixHasher, api: Api, body: &Value) -> PromptPrefix {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = body.to_string();
        let parsed = parse_request(api, &headers, body.as_bytes()).unwrap();
        prefixes.prefix(MODEL, &parsed, body.as_bytes(), parsed.prompt_bytes().div_ceil(4), None)
    }

    fn common(a: &PromptPrefix, b: &PromptPrefix) -> usize {
        a.blocks.iter().zip(&*b.blocks).take_while(|(a, b)| a == b).count()
    }

    fn message(text: &str) -> Value {
        json!({ "role": "user", "content": text })
    }

    #[test]
    fn a_short_prompt_has_no_prefix_and_a_long_one_ends() {
        let prefixes = PrefixHasher::default();
        let with =
            |length: usize| prefix_of(&prefixes, Api::Completions, &json!({ "prompt": "x".repeat(length) }));
        assert_eq!(with(BLOCK_BYTES - 2), PromptPrefix::default());
        assert_eq!(with(BLOCK_BYTES - 1).blocks.len(), 1);
        assert_eq!(with(5 * BLOCK_BYTES).blocks.len(), 5);
        assert_eq!(with(5 * BLOCK_BYTES).block_tokens, 256);
        assert_eq!(with(2 * MAX_BLOCKS * BLOCK_BYTES).blocks.len(), MAX_BLOCKS);
    }

    #[test]
    fn each_block_covers_all_before_it() {
        let prefixes = PrefixHasher::default();
        let of = |text: String| prefix_of(&prefixes, Api::Completions, &json!({ "prompt": text }));
        let same = of("x".repeat(4 * BLOCK_BYTES));
        let distinct: std::collections::HashSet<_> = same.blocks.iter().collect();
        assert_eq!(distinct.len(), same.blocks.len());
        let late = of("x".repeat(2 * BLOCK_BYTES) + "y" + &"x".repeat(2 * BLOCK_BYTES));
        let early = of("y".to_owned() + &"x".repeat(4 * BLOCK_BYTES));
        assert_eq!((common(&same, &late), common(&same, &early)), (2, 0));
    }

    #[test]
    fn tools_and_system_text_come_first_wherever_they_stand() {
        let prefixes = PrefixHasher::default();
        let long = "s".repeat(3 * BLOCK_BYTES);
        let talk = |text: &str| json!([message(text)]);
        let first = json!({ "system": long, "messages": talk("a"), "max_tokens": 1 });
        let second = json!({ "max_tokens": 1, "messages": talk("b"), "system": long });
        let [first, second] = [first, second].map(|body| prefix_of(&prefixes, Api::Messages, &body));
        assert_eq!((first.blocks.len(), common(&first, &second)), (3, 3));
        let tools = json!({ "system": long, "messages": talk("a"), "tools": [{ "name": "t" }] });
        let tools = prefix_of(&prefixes, Api::Messages, &tools);
        assert!(common(&first, &tools) <= 3 && tools.blocks.len() == 3);
    }

    #[test]
    fn models_processes_and_other_calls_share_nothing() {
        let prefixes = PrefixHasher::default();
        let body = json!({ "input": "x".repeat(3 * BLOCK_BYTES), "prompt": "x" }).to_string();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let peeked = parse_request(Api::Responses, &headers, body.as_bytes()).unwrap();
        let of = |prefixes: &PrefixHasher, model| prefixes.prefix(model, &peeked, body.as_bytes(), 10, None);
        let one = of(&prefixes, MODEL);
        let salted = prefixes.prefix(MODEL, &peeked, body.as_bytes(), 10, Some("s"));
        assert_eq!((salted.blocks.len(), common(&one, &salted)), (3, 0));
        assert_eq!(one.blocks.len(), 3);
        assert_eq!(one, of(&prefixes, MODEL));
        assert_eq!(common(&one, &of(&prefixes, ModelId::new(4))), 0);
        assert_eq!(common(&one, &of(&PrefixHasher::default(), MODEL)), 0);
        let embedded = parse_request(Api::Embeddings, &headers, body.as_bytes()).unwrap();
        assert_eq!(prefixes.prefix(MODEL, &embedded, body.as_bytes(), 10, None), PromptPrefix::default());
    }

    proptest! {
        #[test]
        fn a_conversation_that_grows_keeps_its_blocks(
            texts in prop::collection::vec("\\PC{0,1500}", 1..8),
            tools in prop::option::of("[a-z]{0,1500}"),
        ) {
            let prefixes = PrefixHasher::default();
            let mut last = PromptPrefix::default();
            for length in 1..=texts.len() {
                let messages: Vec<Value> = texts[..length].iter().map(|text| message(text)).collect();
                let mut body = json!({ "messages": messages });
                if let Some(tools) = &tools {
                    body["tools"] = json!([tools]);
                }
                let next = prefix_of(&prefixes, Api::Chat, &body);
                prop_assert_eq!(common(&last, &next), last.blocks.len());
                prop_assert!(next.blocks.is_empty() || next.block_tokens > 0);
                last = next;
            }
        }
    }
}
