//! References to secrets: the key that names a variable or a file, and the read of its value.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::config::secret::{Secret, SecretReader};
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;

/// Where a secret is read from: exactly one of `env` and `file`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields, transform = crate::config::schema::transforms::one_key)]
pub struct SecretRef {
    /// Name of the environment variable that holds the secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// Path of the file that holds the secret, from the configuration file's folder. New content is
    /// picked up without a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

impl<'de> Deserialize<'de> for SecretRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct WrittenSecret {
            env: Option<String>,
            file: Option<String>,
        }

        struct SecretVisitor;
        impl<'de> Visitor<'de> for SecretVisitor {
            type Value = SecretRef;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("{env: NAME} or {file: PATH}")
            }

            /// The text is the secret itself, so the error does not show it.
            fn visit_str<E: Error>(self, _secret: &str) -> Result<SecretRef, E> {
                Err(E::custom(
                    "a secret must not stand in the file\nwrite {env: NAME} or {file: PATH}, and change the secret \
                     if others could read this file",
                ))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SecretRef, A::Error> {
                let WrittenSecret { env, file } =
                    WrittenSecret::deserialize(MapAccessDeserializer::new(map))?;
                Ok(SecretRef { env, file })
            }
        }
        deserializer.deserialize_any(SecretVisitor)
    }
}

/// Reads the secret. Reports a fault when there is none.
pub(in crate::config) fn read(
    key: &SecretRef,
    field: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<Secret> {
    let (value, field, hint) = match (&key.env, &key.file) {
        (Some(name), None) => (secrets.env(name), field.key("env"), "set it where the gateway is started"),
        (None, Some(path)) => (secrets.file(path), field.key("file"), "paths start at this file's folder"),
        (Some(_), Some(_)) => (Err("names two places".to_owned()), field.clone(), "keep `env` or `file`"),
        (None, None) => {
            (Err("names no place".to_owned()), field.clone(), "write {env: NAME} or {file: PATH}")
        }
    };
    value.map_err(|message| findings.error(&field, message, hint)).ok()
}
