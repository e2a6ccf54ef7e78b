//! Who is asking.

use http::HeaderMap;

use crate::config::keys::{self, KeyError};
use crate::config::settings::Auth;
use crate::core::ids::{ClassId, KeyId, TenantId};
use crate::telemetry::Telemetry;
use crate::telemetry::event::AuthFailed;
use crate::wire::catalogue::Kind;
use crate::wire::error::ApiError;
use crate::wire::headers;

/// A caller whose key was checked.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    /// Whose work it is.
    pub(super) tenant: TenantId,
    /// The key's public id; absent when keys are off.
    pub(super) key_id: Option<String>,
    /// Its number, when it has limits of its own.
    pub(super) limited: Option<KeyId>,
    /// The class that the key stands for, when it stands for one.
    pub(super) class: Option<ClassId>,
}

/// Checks the credentials of a request.
///
/// # Errors
/// No key, or one that is not valid. The answer never tells which part of the
/// key was wrong.
pub(super) fn identify(
    auth: &Auth,
    headers: &HeaderMap,
    telemetry: &Telemetry,
) -> Result<Identity, ApiError> {
    let keys = match auth {
        Auth::Off(tenant) => {
            return Ok(Identity { tenant: *tenant, key_id: None, limited: None, class: None });
        }
        Auth::Keys(keys) => keys,
    };
    let Some(text) = headers::credentials(headers) else {
        AuthFailed { reason: "missing", key_id: None }.emit(telemetry);
        let text = "No API key was given. Send it as `Authorization: Bearer <key>` or `x-api-key: <key>`.";
        return Err(ApiError::new(Kind::MissingKey, text));
    };
    let key_id = keys::parse(text).map(|parts| parts.id);
    match keys::verify(keys, text) {
        Ok(entry) => {
            let key_id = key_id.map(str::to_owned);
            Ok(Identity { tenant: entry.tenant, key_id, limited: entry.limited, class: entry.class })
        }
        Err(error) => {
            AuthFailed { reason: reason(error), key_id }.emit(telemetry);
            let text = "The API key is not valid here. Ask the operator of this gateway for one.";
            Err(ApiError::new(Kind::InvalidKey, text))
        }
    }
}

const fn reason(error: KeyError) -> &'static str {
    match error {
        KeyError::Malformed => "malformed",
        KeyError::Unknown => "unknown",
        KeyError::Mismatch => "mismatch",
    }
}
