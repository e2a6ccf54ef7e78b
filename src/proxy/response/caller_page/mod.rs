//! Caller's page: a web page that shows a visitor what `GET /v1/me` answers to its key. The files hold
//! no data and need no credential; style and parts are the console's.

use bytes::Bytes;
use http::Response;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

use crate::protocol::route::CallerPageFile;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Only the page's own files and the API of the same address; no inline script, no frame around the
/// page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; connect-src 'self'";

const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_FRAME_OPTIONS, "DENY"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
];

/// Answer to a request for a file of the page.
pub(in crate::proxy) fn answer(file: CallerPageFile) -> Response<Bytes> {
    let (media, text) = content(file);
    let mut response = Response::new(Bytes::from_static(text.as_bytes()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Media type and text of a file.
const fn content(file: CallerPageFile) -> (&'static str, &'static str) {
    match file {
        CallerPageFile::Html => (HTML, include_str!("index.html")),
        CallerPageFile::Style => (STYLE, include_str!("../../../admin/console/console.css")),
        CallerPageFile::Parts => (SCRIPT, include_str!("../../../admin/console/parts.js")),
        CallerPageFile::Script => (SCRIPT, include_str!("page.js")),
        CallerPageFile::Words => (SCRIPT, include_str!("words.js")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most bytes of all files together.
    const MAX_BYTES: usize = 64 * 1024;

    #[test]
    fn the_files_are_small_and_name_no_other_file() {
        let bytes: usize = CallerPageFile::ALL.into_iter().map(|file| content(file).1.len()).sum();
        assert!(bytes <= MAX_BYTES, "{bytes} bytes");
        let is_file = |path: &str| CallerPageFile::ALL.into_iter().any(|file| file.path() == path);
        for file in CallerPageFile::ALL {
            let text = content(file).1;
            for import in text.lines().filter_map(|line| line.split_once(" from \"./")?.1.split('"').next()) {
                assert!(is_file(&format!("/me/{import}")), "{file:?} imports {import}");
            }
            for named in text.split("=\"me/").skip(1).filter_map(|rest| rest.split('"').next()) {
                assert!(is_file(&format!("/me/{named}")), "{file:?} names {named}");
            }
        }
    }

    #[test]
    fn a_key_goes_into_no_storage_and_no_text_becomes_html() {
        for file in CallerPageFile::ALL {
            let text = content(file).1;
            for name in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!text.contains(name), "{file:?} has {name}");
            }
            for name in ["localStorage", "sessionStorage", "indexedDB", "cookie", "history.", "location"] {
                assert!(!text.contains(name), "{file:?} has {name}");
            }
        }
    }

    #[test]
    fn the_page_may_not_be_framed_nor_kept_and_runs_only_own_scripts() {
        for file in CallerPageFile::ALL {
            let response = answer(file);
            let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(policy.contains("frame-ancestors 'none'") && policy.contains("script-src 'self';"));
            assert!(!policy.contains("unsafe"), "{policy}");
            assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        }
        assert_eq!(answer(CallerPageFile::Html).headers()[CONTENT_TYPE], HTML);
    }
}
