//! A serde `Deserializer` over a tree, which adds the field to every error.

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::config::syntax::decode::decode_error::DecodeError;
use crate::config::syntax::field::FieldStep;
use crate::config::syntax::tree::{PlainScalar, TreeEntry, TreeNode, TreeValue};

/// Reads one node.
pub(super) struct TreeReader<'a>(pub(super) &'a TreeNode);

impl<'de> Deserializer<'de> for TreeReader<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.0.value {
            TreeValue::Null => visitor.visit_unit(),
            TreeValue::Plain(PlainScalar::Bool(value), _) => visitor.visit_bool(*value),
            TreeValue::Plain(PlainScalar::Unsigned(value), _) => visitor.visit_u64(*value),
            TreeValue::Plain(PlainScalar::Signed(value), _) => visitor.visit_i64(*value),
            TreeValue::Plain(PlainScalar::Float(value), _) => visitor.visit_f64(*value),
            TreeValue::Text(text) => visitor.visit_str(text),
            TreeValue::List(nodes) => visitor.visit_seq(TreeElements { nodes, next: 0 }),
            TreeValue::Map(entries) => visitor.visit_map(TreeEntries { rest: entries, current: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0.value {
            TreeValue::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.0.value {
            TreeValue::Plain(_, written) => visitor.visit_str(written),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    /// `key:` with everything under it commented out is an empty map.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0.value {
            TreeValue::Null => visitor.visit_map(TreeEntries { rest: &[], current: None }),
            _ => self.deserialize_any(visitor),
        }
    }

    /// A list is no struct, though serde could read one from it.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.0.value {
            TreeValue::List(_) => Err(DecodeError::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_map(visitor),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0.value {
            TreeValue::Null => visitor.visit_seq(TreeElements { nodes: &[], next: 0 }),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match &self.0.value {
            TreeValue::Text(name) | TreeValue::Plain(_, name) => visitor.visit_enum(VariantName(name)),
            TreeValue::Null | TreeValue::List(_) | TreeValue::Map(_) => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit
        unit_struct tuple tuple_struct identifier ignored_any
    }
}

struct TreeElements<'a> {
    nodes: &'a [TreeNode],
    next: usize,
}

impl<'de> SeqAccess<'de> for TreeElements<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        while let Some(node) = self.nodes.get(self.next) {
            let index = self.next;
            self.next += 1;
            if !node.dropped {
                return seed
                    .deserialize(TreeReader(node))
                    .map(Some)
                    .map_err(|m| m.inside(FieldStep::Index(index)));
            }
        }
        Ok(None)
    }
}

struct TreeEntries<'a> {
    rest: &'a [TreeEntry],
    current: Option<&'a TreeEntry>,
}

impl<'de> MapAccess<'de> for TreeEntries<'_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        while let Some((entry, rest)) = self.rest.split_first() {
            self.rest = rest;
            if !entry.node.dropped {
                self.current = Some(entry);
                let key: StrDeserializer<'_, DecodeError> = entry.key.as_str().into_deserializer();
                let read = seed.deserialize(key);
                return read
                    .map(Some)
                    .map_err(|m| m.near(entry.at).inside(FieldStep::Key(entry.key.as_str().into())));
            }
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, DecodeError> {
        let entry = self.current.take().ok_or_else(|| DecodeError::custom("a value without its key"))?;
        let read = seed.deserialize(TreeReader(&entry.node));
        read.map_err(|error| error.inside(FieldStep::Key(entry.key.as_str().into())))
    }
}

/// The name of an enum's variant; no enum of the file carries values.
struct VariantName<'a>(&'a str);

impl<'de> EnumAccess<'de> for VariantName<'_> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), DecodeError> {
        let name: StrDeserializer<'_, DecodeError> = self.0.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for VariantName<'_> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _seed: T) -> Result<T::Value, DecodeError> {
        Err(DecodeError::custom(format!("`{}` needs a value", self.0)))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, DecodeError> {
        Err(DecodeError::custom(format!("`{}` needs a list", self.0)))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, DecodeError> {
        Err(DecodeError::custom(format!("`{}` needs a map", self.0)))
    }
}
