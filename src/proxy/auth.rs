//! Who is asking.

use http::HeaderMap;

use crate::config::keys;
use crate::config::settings::Auth;
use crate::core::ids::{ClassId, TenantId};
use crate::wire::error::{ApiError, ErrorKind};
use crate::wire::headers;

/// A caller whose key was checked.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Whose work it is.
    pub tenant: TenantId,
    /// The key's public id; absent when keys are off.
    pub key_id: Option<String>,
    /// The class that the key stands for, when it stands for one.
    pub class: Option<ClassId>,
}

/// Checks the credentials of a request.
///
/// # Errors
/// No key, or one that is not valid. The answer never tells which part of the
/// key was wrong.
pub fn identify(auth: &Auth, headers: &HeaderMap) -> Result<Identity, ApiError> {
    let keys = match auth {
        Auth::Off(tenant) => return Ok(Identity { tenant: *tenant, key_id: None, class: None }),
        Auth::Keys(keys) => keys,
    };
    let Some(text) = headers::credential(headers) else {
        let text = "no API key was given; send it as `Authorization: Bearer <key>` or `x-api-key: <key>`";
        return Err(ApiError::new(ErrorKind::MissingKey, text));
    };
    let Some((id, entry)) = keys::verify(keys, text) else {
        let text = "the API key is not valid here; ask the operator of this gateway for one";
        return Err(ApiError::new(ErrorKind::InvalidKey, text));
    };
    Ok(Identity { tenant: entry.tenant, key_id: Some(id.to_owned()), class: entry.class })
}
