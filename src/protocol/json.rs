//! JSON helpers: read single values and their spans without building a document.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The byte range of `part` inside `whole`; absent when `part` is not a slice of `whole`.
pub(crate) fn span_in(whole: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= whole.len()).then_some(start..end)
}

/// The text of a JSON string, borrowed when it has no escapes; absent for any other value.
#[derive(Debug, Default)]
pub(crate) struct JsonText<'a>(pub(crate) Option<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for JsonText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = JsonText<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(JsonText(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(JsonText(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(JsonText(None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(JsonText(None))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(JsonText(None))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(JsonText(None))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(JsonText(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        drain_seq(seq).map(|_| JsonText(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        drain_map(map).map(|_| JsonText(None))
    }
}

/// Whether a JSON value has content: it is not null, and not an empty string, array or object.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NonEmpty(pub(crate) bool);

impl<'de> Deserialize<'de> for NonEmpty {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FilledVisitor)
    }
}

struct FilledVisitor;

impl<'de> Visitor<'de> for FilledVisitor {
    type Value = NonEmpty;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<NonEmpty, E> {
        Ok(NonEmpty(!text.is_empty()))
    }

    fn visit_unit<E>(self) -> Result<NonEmpty, E> {
        Ok(NonEmpty(false))
    }

    fn visit_bool<E>(self, _: bool) -> Result<NonEmpty, E> {
        Ok(NonEmpty(true))
    }

    fn visit_u64<E>(self, _: u64) -> Result<NonEmpty, E> {
        Ok(NonEmpty(true))
    }

    fn visit_i64<E>(self, _: i64) -> Result<NonEmpty, E> {
        Ok(NonEmpty(true))
    }

    fn visit_f64<E>(self, _: f64) -> Result<NonEmpty, E> {
        Ok(NonEmpty(true))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<NonEmpty, A::Error> {
        drain_seq(seq).map(|count| NonEmpty(count > 0))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<NonEmpty, A::Error> {
        drain_map(map).map(|count| NonEmpty(count > 0))
    }
}

pub(crate) fn drain_seq<'de, A: SeqAccess<'de>>(mut seq: A) -> Result<usize, A::Error> {
    let mut count = 0;
    while seq.next_element::<IgnoredAny>()?.is_some() {
        count += 1;
    }
    Ok(count)
}

pub(crate) fn drain_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<usize, A::Error> {
    let mut count = 0;
    while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
        count += 1;
    }
    Ok(count)
}
