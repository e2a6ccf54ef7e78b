//! Usage: reader of token counts in the fields of each protocol.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::core::model::job::TokenCounts;
use crate::protocol::response::edit::EventRewrites;

#[derive(Deserialize)]
struct UsageCounts {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    total_tokens: Option<u64>,
    prompt_tokens_details: Option<UsageDetails>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    input_tokens_details: Option<UsageDetails>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct UsageDetails {
    cached_tokens: Option<u64>,
}

/// Reads a `usage` object; absent when the object is null or counts no tokens.
pub(crate) fn read(raw: &RawValue) -> Option<TokenCounts> {
    let counts: UsageCounts = serde_json::from_str(raw.get()).ok()?;
    let output = counts.completion_tokens.or(counts.output_tokens);
    let total = || counts.total_tokens.map(|total| total.saturating_sub(output.unwrap_or(0)));
    let input = counts.prompt_tokens.or(counts.input_tokens).or_else(total)?;
    // Anthropic counts tokens read from the cache, and tokens written to it, beside `input_tokens`.
    // OpenAI counts them within.
    let beside = counts
        .cache_read_input_tokens
        .unwrap_or(0)
        .saturating_add(counts.cache_creation_input_tokens.unwrap_or(0));
    let details = counts.prompt_tokens_details.or(counts.input_tokens_details);
    let cached = counts.cache_read_input_tokens.or(details.and_then(|details| details.cached_tokens));
    Some(TokenCounts { input: input.saturating_add(beside), cached, output: output.unwrap_or(0) })
}

/// Moves `tokens` from the prompt's count to the output's count in a `usage` object of `data`, and takes
/// `excess` tokens from the prompt's count that count nowhere.
pub(crate) fn shift(data: &[u8], raw: &RawValue, tokens: u64, excess: u64, rewrites: &mut EventRewrites) {
    #[derive(Deserialize)]
    struct RawUsage<'a> {
        #[serde(borrow)]
        prompt_tokens: Option<&'a RawValue>,
        #[serde(borrow)]
        completion_tokens: Option<&'a RawValue>,
        #[serde(borrow)]
        total_tokens: Option<&'a RawValue>,
    }
    let Ok(counts) = serde_json::from_str::<RawUsage<'_>>(raw.get()) else { return };
    let mut set = |value: Option<&RawValue>, shifted: &dyn Fn(u64) -> u64| {
        if let Some((value, count)) = value.and_then(|value| Some((value, value.get().parse().ok()?))) {
            rewrites.set(data, value, shifted(count).to_string());
        }
    };
    set(counts.prompt_tokens, &|count| count.saturating_sub(tokens + excess));
    set(counts.completion_tokens, &|count| count.saturating_add(tokens));
    if excess > 0 {
        set(counts.total_tokens, &|count| count.saturating_sub(excess));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wording() {
        let cases = [
            (
                r#"{"prompt_tokens":8,"total_tokens":16,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":3}}"#,
                Some((8, Some(3), 8)),
            ),
            (
                r#"{"prompt_tokens":8,"total_tokens":8,"completion_tokens":0,"completion_tokens_details":null}"#,
                Some((8, None, 0)),
            ),
            (
                r#"{"prompt_tokens":5,"completion_tokens":null,"prompt_tokens_details":null}"#,
                Some((5, None, 0)),
            ),
            (r#"{"total_tokens":9}"#, Some((9, None, 0))),
            (
                r#"{"input_tokens":8,"output_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":0}"#,
                Some((8, Some(0), 4)),
            ),
            (
                r#"{"input_tokens":8,"output_tokens":4,"cache_creation_input_tokens":20,"cache_read_input_tokens":100}"#,
                Some((128, Some(100), 4)),
            ),
            (
                r#"{"input_tokens":6,"input_tokens_details":{"cached_tokens":2},"output_tokens":4}"#,
                Some((6, Some(2), 4)),
            ),
            (r#"{"type":"duration","seconds":3}"#, None),
            (r#"{"prompt_tokens":-1}"#, None),
            ("null", None),
            ("[1]", None),
            (r#""x""#, None),
        ];
        for (text, expected) in cases {
            let raw: &RawValue = serde_json::from_str(text).unwrap();
            let expected = expected.map(|(input, cached, output)| TokenCounts { input, cached, output });
            assert_eq!(read(raw), expected, "{text}");
        }
    }
}
