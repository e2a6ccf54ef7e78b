//! Wire forms of values that serde's derives cannot write exactly: shared values, and floating-point
//! numbers, which `serde_json` reads back with an error in the last place.

/// A value behind an `Arc`, written as the value.
pub(crate) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize + ?Sized, S: Serializer>(
        value: &Arc<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        T::serialize(value, to)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Arc<T>, D::Error>
    where
        T: ToOwned + ?Sized,
        T::Owned: Deserialize<'de>,
        Arc<T>: From<T::Owned>,
        D: Deserializer<'de>,
    {
        T::Owned::deserialize(from).map(Arc::from)
    }
}

/// A floating-point number, written as the shortest text that is read back as the same number.
pub(crate) mod exact {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// As [`exact`], for a number that may be absent.
pub(crate) mod exact_option {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde passes a reference")]
    pub(crate) fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}
