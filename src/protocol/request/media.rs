//! Media URLs: the addresses of images, sounds and videos in a prompt, which the engine fetches.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::protocol::api::Api;

/// The most bytes of a URL that are kept. The rest of a `data:` URL is the medium itself; other URLs
/// are not as long.
const KEPT_BYTES: usize = MAX_URL_BYTES + 1;
/// The longest URL that is not a `data:` URL, in bytes.
pub const MAX_URL_BYTES: usize = 2048;

/// The media URLs in a value of a call's prompt, as JSON. A URL is cut off after 2,049 bytes.
///
/// # Errors
/// The value cannot be read to its end: it is nested too deep, or has a number or an escape that this
/// program does not read but an engine may.
pub fn media_urls(api: Api, prompt: &[u8]) -> Result<Vec<String>, UnreadableMedia> {
    let mut urls = Vec::new();
    let mut json = serde_json::Deserializer::from_slice(prompt);
    let context = match api {
        Api::Embeddings | Api::Pooling | Api::Classify | Api::Score | Api::Rerank(_) => MediaContext::Pooled,
        _ => MediaContext::Elsewhere,
    };
    let read = MediaSearch { urls: &mut urls, context }.deserialize(&mut json);
    read.map(|()| urls).map_err(|_| UnreadableMedia)
}

/// A value of a prompt in which media cannot be searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadableMedia;

/// Whether a field may have media. `name` is its name as it is written between its quotes, where
/// escapes may stand for letters.
pub(crate) fn may_name_media(name: &str) -> bool {
    name.ends_with("_url") || matches!(name, "source" | "image" | "video") || name.contains('\\')
}

/// Context of a value: where in the prompt it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MediaContext {
    /// A URL, or an object with a field `url`.
    Medium,
    /// An object with a field `url` (`source` in calls of Anthropic's kind).
    Source,
    Url,
    /// In the prompt of a call that generates nothing. SGLang takes `image` and `video` there; in
    /// other prompts they are the fields of a client's tools.
    Pooled,
    Elsewhere,
}

impl MediaContext {
    fn of(self, field: &str) -> Self {
        match field {
            "image_url" | "audio_url" | "video_url" | "file_url" => Self::Medium,
            "source" => Self::Source,
            "url" if matches!(self, Self::Medium | Self::Source) => Self::Url,
            "image" | "video" if self == Self::Pooled => Self::Medium,
            _ if self == Self::Pooled => Self::Pooled,
            _ => Self::Elsewhere,
        }
    }
}

/// Search through one JSON value.
struct MediaSearch<'a> {
    urls: &'a mut Vec<String>,
    context: MediaContext,
}

impl<'de> DeserializeSeed<'de> for MediaSearch<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MediaSearch<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if matches!(self.context, MediaContext::Medium | MediaContext::Url) {
            let mut kept = KEPT_BYTES.min(text.len());
            while !text.is_char_boundary(kept) {
                kept -= 1;
            }
            self.urls.push(text[..kept].to_owned());
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(field) = map.next_key::<Cow<'_, str>>()? {
            map.next_value_seed(MediaSearch { urls: self.urls, context: self.context.of(&field) })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(MediaSearch { urls: self.urls, context: self.context })?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_of_all_dialects_are_found() {
        let cases: [(&str, &[&str]); 7] = [
            (
                r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a/b"}}]}]"#,
                &["http://a/b"],
            ),
            (r#"[{"content":[{"type":"input_image","image_url":"http://a/b"}]}]"#, &["http://a/b"]),
            (
                r#"[{"content":[{"type":"image","source":{"type":"url","url":"http://a/b"}}]}]"#,
                &["http://a/b"],
            ),
            (r#"[{"content":[{"\u0069mage_url":{"\u0075rl":"http:\/\/a\/b"}}]}]"#, &["http://a/b"]),
            (r#"[{"video_url":{"url":"x:1"}},{"audio_url":["x:2",{"url":"x:3"}]}]"#, &["x:1", "x:2", "x:3"]),
            (r#"[{"content":"see image_url http://a/b","url":"http://c","n":[1,-1,1.5,true,null]}]"#, &[]),
            (r#"[{"source":"http://a","name":{"url":"http://b"}}]"#, &[]),
        ];
        for (prompt, urls) in cases {
            assert_eq!(media_urls(Api::Chat, prompt.as_bytes()).unwrap(), urls, "{prompt}");
        }
        let deep = format!("{}1{}", "[".repeat(150), "]".repeat(150));
        for unread in [r#"[{"image_url":"#, r#"[{"x":1e999}]"#, r#"["\ud800"]"#, &deep] {
            assert_eq!(media_urls(Api::Chat, unread.as_bytes()), Err(UnreadableMedia), "{unread}");
        }
    }

    #[test]
    fn an_image_is_a_medium_where_nothing_is_generated() {
        let prompt = r#"[{"text":"a cat","image":"http://a/b"},{"video":"/etc/passwd"},{"x":{"image":{"url":"c:d"}}}]"#;
        for api in [Api::Embeddings, Api::Score] {
            assert_eq!(media_urls(api, prompt.as_bytes()).unwrap(), ["http://a/b", "/etc/passwd", "c:d"]);
        }
        assert_eq!(media_urls(Api::Chat, prompt.as_bytes()).unwrap(), [""; 0]);
    }

    #[test]
    fn a_long_url_is_cut_off() {
        let long = format!(r#"[{{"image_url":"data:{}é"}}]"#, "x".repeat(2043));
        let urls = media_urls(Api::Chat, long.as_bytes()).unwrap();
        assert_eq!((urls.len(), urls[0].len()), (1, 2048));
    }
}
