//! Fields of a request that the instant engine obeys, found without parsing the body.

use std::sync::LazyLock;

use memchr::memmem::Finder;

static STREAM: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"stream\""));
static INCLUDE_USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"include_usage\""));
static MAX_TOKENS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"max_tokens\""));
static MAX_COMPLETION: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"max_completion_tokens\""));

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wish {
    /// An event stream instead of one JSON answer.
    pub(crate) stream: bool,
    /// A usage event at the end of the stream.
    pub(crate) include_usage: bool,
    /// The most tokens it wants.
    pub(crate) max_tokens: Option<u32>,
    /// Bytes of the request body.
    pub(crate) body_bytes: usize,
}

impl Wish {
    /// Reads the request body. A quote inside a JSON string is escaped, so a
    /// quoted name followed by a colon can only be a member's name.
    pub(crate) fn read(body: &[u8]) -> Self {
        let stream = is_true(&STREAM, body);
        Wish {
            stream,
            include_usage: stream && is_true(&INCLUDE_USAGE, body),
            max_tokens: number(&MAX_TOKENS, body).or_else(|| number(&MAX_COMPLETION, body)),
            body_bytes: body.len(),
        }
    }
}

/// What follows the first `name` that is a member's name.
fn value<'a>(name: &Finder<'_>, body: &'a [u8]) -> Option<&'a [u8]> {
    name.find_iter(body).find_map(|at| {
        let rest = body[at + name.needle().len()..].trim_ascii_start();
        rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start)
    })
}

fn is_true(name: &Finder<'_>, body: &[u8]) -> bool {
    value(name, body).is_some_and(|rest| rest.starts_with(b"true"))
}

fn number(name: &Finder<'_>, body: &[u8]) -> Option<u32> {
    let rest = value(name, body)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_clients_write() {
        let wish = Wish::read(
            br#"{"model":"m","stream": true,"stream_options":{"include_usage":true},"max_tokens" : 12}"#,
        );
        assert!(wish.stream && wish.include_usage);
        assert_eq!(wish.max_tokens, Some(12));
        let plain = Wish::read(br#"{"stream":false,"max_completion_tokens":3}"#);
        assert!(!plain.stream);
        assert_eq!(plain.max_tokens, Some(3));
    }

    #[test]
    fn prompt_text_is_not_a_field() {
        let body = br#"{"messages":[{"role":"stream","content":"\"stream\":true, \"max_tokens\": 4"}]}"#;
        let wish = Wish::read(body);
        assert!(!wish.stream);
        assert_eq!(wish.max_tokens, None);
        let late = Wish::read(br#"{"messages":[{"role":"stream","content":""}],"stream":true}"#);
        assert!(late.stream);
    }

    #[test]
    fn odd_numbers_are_no_limit() {
        assert_eq!(Wish::read(br#"{"max_tokens":null}"#).max_tokens, None);
        assert_eq!(Wish::read(br#"{"max_tokens":99999999999}"#).max_tokens, None);
        assert_eq!(Wish::read(br#"{"max_tokens""#).max_tokens, None);
    }
}
