//! A serde `Deserializer` over a tree, which adds the field to every error.

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::config::decode::misfit::Misfit;
use crate::config::field::Step;
use crate::config::tree::{Entry, Node, Scalar, Value};

/// Reads one node.
pub(super) struct Reader<'a>(pub(super) &'a Node);

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.0.value {
            Value::Null => visitor.visit_unit(),
            Value::Plain(Scalar::Bool(value), _) => visitor.visit_bool(*value),
            Value::Plain(Scalar::Unsigned(value), _) => visitor.visit_u64(*value),
            Value::Plain(Scalar::Signed(value), _) => visitor.visit_i64(*value),
            Value::Plain(Scalar::Float(value), _) => visitor.visit_f64(*value),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(nodes) => visitor.visit_seq(Elements { nodes, next: 0 }),
            Value::Map(entries) => visitor.visit_map(Entries { rest: entries, current: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.0.value {
            Value::Plain(_, written) => visitor.visit_str(written),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_str(visitor)
    }

    /// `key:` with everything under it commented out is an empty map.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::Null => visitor.visit_map(Entries { rest: &[], current: None }),
            _ => self.deserialize_any(visitor),
        }
    }

    /// A list is no struct, though serde could read one from it.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::List(_) => Err(Misfit::invalid_type(Unexpected::Seq, &visitor)),
            _ => self.deserialize_map(visitor),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::Null => visitor.visit_seq(Elements { nodes: &[], next: 0 }),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match &self.0.value {
            Value::Text(name) | Value::Plain(_, name) => visitor.visit_enum(Name(name)),
            Value::Null | Value::List(_) | Value::Map(_) => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit
        unit_struct tuple tuple_struct identifier ignored_any
    }
}

struct Elements<'a> {
    nodes: &'a [Node],
    next: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Misfit> {
        while let Some(node) = self.nodes.get(self.next) {
            let index = self.next;
            self.next += 1;
            if !node.dropped {
                return seed.deserialize(Reader(node)).map(Some).map_err(|m| m.inside(Step::Index(index)));
            }
        }
        Ok(None)
    }
}

struct Entries<'a> {
    rest: &'a [Entry],
    current: Option<&'a Entry>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Misfit> {
        while let Some((entry, rest)) = self.rest.split_first() {
            self.rest = rest;
            if !entry.node.dropped {
                self.current = Some(entry);
                let key: StrDeserializer<'_, Misfit> = entry.key.as_str().into_deserializer();
                let read = seed.deserialize(key);
                return read
                    .map(Some)
                    .map_err(|m| m.near(entry.at).inside(Step::Key(entry.key.as_str().into())));
            }
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Misfit> {
        let entry = self.current.take().ok_or_else(|| Misfit::custom("a value without its key"))?;
        let read = seed.deserialize(Reader(&entry.node));
        read.map_err(|misfit| misfit.inside(Step::Key(entry.key.as_str().into())))
    }
}

/// The name of an enum's variant; no enum of the file carries values.
struct Name<'a>(&'a str);

impl<'de> EnumAccess<'de> for Name<'_> {
    type Error = Misfit;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Misfit> {
        let name: StrDeserializer<'_, Misfit> = self.0.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for Name<'_> {
    type Error = Misfit;

    fn unit_variant(self) -> Result<(), Misfit> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _seed: T) -> Result<T::Value, Misfit> {
        Err(Misfit::custom(format!("`{}` needs a value", self.0)))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, Misfit> {
        Err(Misfit::custom(format!("`{}` needs a list", self.0)))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Misfit> {
        Err(Misfit::custom(format!("`{}` needs a map", self.0)))
    }
}
