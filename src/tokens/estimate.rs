//! Token estimates: a prompt's tokens from its bytes alone, for engines whose tokenizer the gateway
//! does not have.
//!
//! The estimate aims at the middle: about four bytes a token for text in Latin script, and about
//! two for other scripts. Letters of other scripts take two to four bytes in UTF-8 but rarely share
//! a token. JSON punctuation counts as text: chat templates add about as much. The estimate cannot
//! see linked media (an image's `https:` address): only the bytes of the address count.

use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

/// The tokens of one embedded image or sound, whatever its size in bytes. Engines make about 250 to
/// 1500 tokens of a common picture.
pub const MEDIA_TOKENS: u64 = 800;

/// The least length of base64 media, in bytes. Shorter base64 may be text.
const MIN_MEDIA_BYTES: usize = 64;

/// The likely tokens of the prompt: never above the bytes of `pieces`, and at least 1 when there
/// are any. Arrays of token ids are counted exactly.
pub fn estimate<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    pieces.into_iter().map(estimate_piece).sum()
}

/// The tokens of a prompt that is one array of token ids; `None` for any other.
pub fn token_id_count<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<u64> {
    let mut pieces = pieces.into_iter();
    let only = pieces.next().filter(|_| pieces.next().is_none())?;
    token_ids(only).filter(|_| only.iter().filter(|byte| **byte == b'[').count() == 1)
}

fn estimate_piece(piece: &[u8]) -> u64 {
    if piece.is_empty() {
        return 0;
    }
    if let Some(ids) = token_ids(piece) {
        return ids;
    }
    let mut tokens = 0;
    let mut at = 0;
    for media in media(piece) {
        tokens += text_tokens(&piece[at..media.start]) + MEDIA_TOKENS.min(media.len() as u64);
        at = media.end;
    }
    (tokens + text_tokens(&piece[at..])).clamp(1, piece.len() as u64)
}

fn text_tokens(text: &[u8]) -> u64 {
    let is_wide = |byte: &&u8| **byte >= 0x80;
    let wide = if text.is_ascii() { 0 } else { text.iter().filter(is_wide).count() as u64 };
    let escapes = escapes(text);
    let narrow = (text.len() as u64).saturating_sub(wide + escapes.bytes);
    let wide = wide + escapes.bytes.saturating_sub(escapes.saved);
    narrow.div_ceil(4) + wide.div_ceil(2)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Escapes {
    /// The bytes of `\uXXXX` escapes.
    bytes: u64,
    /// The bytes that the same characters would save in UTF-8.
    saved: u64,
}

fn escapes(text: &[u8]) -> Escapes {
    let mut found = Escapes::default();
    let mut at = 0;
    while let Some(next) = memchr::memchr(b'\\', text.get(at..).unwrap_or_default()) {
        let start = at + next;
        at = start + 2;
        let digits = text.get(start + 2..start + 6).filter(|_| text.get(start + 1) == Some(&b'u'));
        let Some(code) =
            digits.and_then(|digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())
        else {
            continue;
        };
        // A surrogate is half of a character of four bytes.
        let length = match code {
            0..0x80 => 1,
            0x80..0x800 | 0xD800..0xE000 => 2,
            _ => 3,
        };
        found.bytes += 6;
        found.saved += 6 - length;
        at = start + 6;
    }
    found
}

/// Finder of the places after which images and sounds in base64 may begin.
static MEDIA_MARKS: LazyLock<AhoCorasick> = LazyLock::new(|| {
    let marks = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build([";base64,", "\"data\""]);
    marks.expect("two short patterns")
});

/// The ranges of images and sounds in base64, in their order.
fn media(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    MEDIA_MARKS.find_iter(text).map(|mark| mark.end()).filter_map(|mark| {
        let is_gap = |byte: &&u8| matches!(byte, b':' | b' ' | b'"' | b'\n' | b'\r' | b'\t');
        let start = mark + text[mark..].iter().take_while(is_gap).count();
        let length = text[start..].iter().take_while(|byte| is_base64(**byte)).count();
        (length >= MIN_MEDIA_BYTES).then_some(start..start + length)
    })
}

const fn is_base64(byte: u8) -> bool {
    // JSON may escape a slash by a backslash.
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'-' | b'_' | b'\\')
}

/// The number of token ids in an array, or in an array of such arrays; absent for any other text.
fn token_ids(piece: &[u8]) -> Option<u64> {
    let is_ids =
        |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'[' | b']' | b',') || byte.is_ascii_whitespace();
    if !piece.starts_with(b"[") || !piece.iter().all(is_ids) {
        return None;
    }
    let numbers = piece.split(|byte| !byte.is_ascii_digit()).filter(|digits| !digits.is_empty()).count();
    (numbers > 0).then_some(numbers as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> u64 {
        estimate([text.as_bytes()])
    }

    #[test]
    fn text_is_about_four_bytes_a_token() {
        assert_eq!(of(&format!("\"{}\"", "word ".repeat(400))), 501);
        assert_eq!(estimate([]), 0);
        assert_eq!(of("\"\""), 1);
    }

    #[test]
    fn escapes_count_as_the_text_they_stand_for() {
        let plain = serde_json::to_string(&"Привет, мир. 你好 😀".repeat(20)).unwrap();
        let escaped: String = plain
            .encode_utf16()
            .map(
                |unit| if unit < 128 { char::from(unit as u8).to_string() } else { format!("\\u{unit:04x}") },
            )
            .collect();
        assert!(escaped.len() > plain.len() * 2);
        assert_eq!(of(&escaped), of(&plain));
        assert_eq!(escapes(br"\\u00e9 \n \u12 \u"), Escapes::default());
    }

    #[test]
    fn pictures_and_sounds_have_a_flat_cost() {
        let data = "QUJD/+".repeat(50_000);
        let image =
            format!(r#"[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]"#);
        let sound = format!(r#"[{{"input_audio":{{"data": "{data}","format":"wav"}}}}]"#);
        for body in [image, sound] {
            let tokens = of(&body);
            assert!((MEDIA_TOKENS..MEDIA_TOKENS + 40).contains(&tokens), "{tokens}");
        }
        let two = format!("\"data:a;base64,{data}\",\"data:a;base64,{data}\"");
        assert!((2 * MEDIA_TOKENS..2 * MEDIA_TOKENS + 40).contains(&of(&two)));
        let text = r#""the words ;base64, and "data" alone are text""#;
        assert_eq!(of(text), (text.len() as u64).div_ceil(4));
    }

    #[test]
    fn token_ids_are_counted() {
        assert_eq!(of("[1, 22,333]"), 3);
        assert_eq!(of("[[1,2],[3]]"), 3);
        assert_eq!(of("[]"), 1);
    }

    proptest! {
        #[test]
        fn never_above_the_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(estimate([&bytes[..]]) <= bytes.len() as u64);
        }
    }
}
