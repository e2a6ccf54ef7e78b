//! Forms in which `GET /admin/v1/config` shows settings, for the `serialize_with` of their fields.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use serde::{Serialize, Serializer};

/// A time, or one that may be absent, in seconds.
pub(super) fn seconds<'a, T, S>(time: &'a T, to: S) -> Result<S::Ok, S::Error>
where
    &'a T: Into<Option<&'a Duration>>,
    S: Serializer,
{
    let time: Option<&Duration> = time.into();
    time.map(Duration::as_secs_f64).serialize(to)
}

/// A path, or one that may be absent; serde's own form fails where a path is not UTF-8.
pub(super) fn path<'a, T, S>(path: &'a T, to: S) -> Result<S::Ok, S::Error>
where
    &'a T: Into<Option<&'a PathBuf>>,
    S: Serializer,
{
    let path: Option<&PathBuf> = path.into();
    path.map(|path| path.to_string_lossy()).serialize(to)
}

/// Thousandths as a share of 1.
pub(super) fn share<S: Serializer>(permille: &u32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(f64::from(*permille) / 1000.0)
}

/// A URL that holds no credentials.
pub(super) fn url<S: Serializer>(url: &Uri, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(url)
}

/// A URL that may hold credentials, without them.
pub(super) fn endpoint<S: Serializer>(url: &Option<String>, to: S) -> Result<S::Ok, S::Error> {
    url.as_deref().map(without_credentials).serialize(to)
}

/// `set` in place of a value that nobody may see.
pub(super) fn redacted<T, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(|_| "set").serialize(to)
}

/// The names of a map whose values nobody may see.
pub(super) fn names<T, S: Serializer>(values: &BTreeMap<String, T>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(values.keys())
}

/// The URL without `user:password@`. A pool's name may stand before the URL.
pub(crate) fn without_credentials(url: &str) -> String {
    let Some((before, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{before}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    use serde_json::json;
    use serde_json::value::Serializer as ToValue;

    use super::*;

    #[test]
    fn times_and_paths_may_be_absent_and_paths_need_not_be_utf_8() {
        assert_eq!(seconds(&Duration::from_millis(250), ToValue).unwrap(), json!(0.25));
        assert_eq!(seconds(&None::<Duration>, ToValue).unwrap(), json!(null));
        let odd = PathBuf::from(OsString::from_vec(b"a\xff".to_vec()));
        assert_eq!(path(&odd, ToValue).unwrap(), json!("a\u{fffd}"));
        assert_eq!(path(&Some(PathBuf::from("/b")), ToValue).unwrap(), json!("/b"));
    }

    #[test]
    fn credentials_leave_urls_and_nothing_else_does() {
        for (url, shown) in [
            ("http://u:p@10.0.0.1:80/a@b?c", "http://10.0.0.1:80/a@b?c"),
            ("pool/https://u:p@q@host/", "pool/https://host/"),
            ("http://host:4317", "http://host:4317"),
            ("no url", "no url"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }
}
