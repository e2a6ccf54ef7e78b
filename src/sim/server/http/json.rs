//! JSON text with its keys in the order that real engines write them.

use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// Finished JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Json(String);

impl Json {
    /// An object without fields.
    pub(crate) fn object() -> Self {
        Self("{}".to_owned())
    }

    /// A value of any kind.
    pub(crate) fn of(value: &impl Serialize) -> Self {
        Self(serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned()))
    }

    /// The object with one more field at its end.
    pub(crate) fn and(mut self, key: &str, value: &impl Serialize) -> Self {
        self.0.pop();
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push_str(&Self::of(&key).0);
        self.0.push(':');
        self.0.push_str(&Self::of(value).0);
        self.0.push('}');
        self
    }
}

impl std::fmt::Display for Json {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.0).map_err(S::Error::custom)?.serialize(serializer)
    }
}

/// An object literal with ordered keys. A value is anything that serializes;
/// `()` is null.
macro_rules! ordered {
    ({ $($key:literal : $value:expr),* $(,)? }) => {
        $crate::server::http::json::Json::object()$(.and($key, &$value))*
    };
}
pub(crate) use ordered;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order() {
        let inner = ordered!({"b": 1, "a": ()});
        let json = ordered!({"z": [inner], "y": "\"", "x": Json::of(&1.5)}).and("w", &[(); 0]);
        assert_eq!(json.to_string(), r#"{"z":[{"b":1,"a":null}],"y":"\"","x":1.5,"w":[]}"#);
    }
}
