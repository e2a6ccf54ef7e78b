//! Media URLs: the addresses of images, sounds and videos in a prompt, which the engine fetches.

use std::borrow::Cow;
use std::fmt;

use memchr::memmem;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// The most bytes of a URL that are kept. The rest of a `data:` URL is the medium itself.
const KEPT_BYTES: usize = 2048;

/// The media URLs in a value of a prompt, as JSON. A URL may be cut off after 2,048 bytes. A value
/// that is not JSON has none.
#[must_use]
pub fn media_urls(prompt: &[u8]) -> Vec<String> {
    let mut urls = Vec::new();
    if may_have_media(prompt) {
        let mut json = serde_json::Deserializer::from_slice(prompt);
        let _not_json = MediaSearch { urls: &mut urls, place: Place::Elsewhere }.deserialize(&mut json);
    }
    urls
}

/// Whether a field of the prompt may have the name of one with media. A quote inside a text has a
/// backslash before it, so that words of a text do not count.
fn may_have_media(prompt: &[u8]) -> bool {
    // Letters of the names may be written as escapes: these begin with \u005, \u006 or \u007.
    let is_letter = |at: usize| matches!(prompt.get(at + 4), Some(b'5'..=b'7'));
    [&b"_url\""[..], b"\"source\""].iter().any(|name| memmem::find(prompt, name).is_some())
        || memmem::find_iter(prompt, b"\\u00").any(is_letter)
}

/// The place of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A URL, or an object with a field `url`.
    Medium,
    /// An object with a field `url` (`source` in calls of Anthropic's kind).
    Source,
    /// A URL.
    Url,
    Elsewhere,
}

impl Place {
    fn of(self, field: &str) -> Self {
        match field {
            "image_url" | "audio_url" | "video_url" | "file_url" => Self::Medium,
            "source" => Self::Source,
            "url" if matches!(self, Self::Medium | Self::Source) => Self::Url,
            _ => Self::Elsewhere,
        }
    }
}

/// Search through one JSON value.
struct MediaSearch<'a> {
    urls: &'a mut Vec<String>,
    place: Place,
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
        if matches!(self.place, Place::Medium | Place::Url) {
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
            map.next_value_seed(MediaSearch { urls: self.urls, place: self.place.of(&field) })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(MediaSearch { urls: self.urls, place: self.place })?.is_some() {}
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
            assert_eq!(media_urls(prompt.as_bytes()), urls, "{prompt}");
        }
        assert_eq!(media_urls(br#"[{"image_url":"#), Vec::<String>::new());
    }

    #[test]
    fn a_long_url_is_cut_off() {
        let long = format!(r#"[{{"image_url":"data:{}é"}}]"#, "x".repeat(2042));
        let urls = media_urls(long.as_bytes());
        assert_eq!((urls.len(), urls[0].len()), (1, 2047));
    }
}
