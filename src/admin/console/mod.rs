//! Console: web pages for operators. The files and the provider's addresses hold no data and need no
//! credential; the pages ask the admin API for everything they show, with the operator's credential.

mod live;
mod sign_in;

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::time::Instant;

use crate::admin::problem::problem;
use crate::admin::state::AdminState;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Every file: its name, media type and text.
const FILES: [(&str, &str, &str); 7] = [
    ("", HTML, include_str!("index.html")),
    ("console.css", STYLE, include_str!("console.css")),
    ("app.js", SCRIPT, include_str!("app.js")),
    ("parts.js", SCRIPT, include_str!("parts.js")),
    ("pages.js", SCRIPT, include_str!("pages.js")),
    ("sign_in.js", SCRIPT, include_str!("sign_in.js")),
    ("words.js", SCRIPT, include_str!("words.js")),
];

/// Only the console's own files and the API of the same address; no inline script, no frame around
/// the page. What the page may connect to comes after it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; connect-src 'self'";

const HEADERS: [(HeaderName, &str); 4] = [
    (X_FRAME_OPTIONS, "DENY"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-cache"),
];

/// Routes of the console. `started` is the start of the process.
pub(super) fn router(state: Arc<AdminState>, started: Instant) -> Router {
    let files = Arc::clone(&state);
    let page = move || async move { file("", &files) };
    let files = Arc::clone(&state);
    let named = move |Path(name): Path<String>| async move { file(&name, &files) };
    let provider = Arc::clone(&state);
    Router::new()
        .route("/console", get(page.clone()))
        .route("/console/", get(page))
        .route("/console/sign-in", get(move || async move { sign_in::provider(&provider) }))
        .route("/console/{file}", get(named))
        .merge(live::router(state, started))
}

/// Whether the path is one of the console's own, which everybody may read: its files, and where it
/// signs in.
pub(super) fn is_open_path(path: &str) -> bool {
    path.strip_prefix("/console").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn file(name: &str, state: &AdminState) -> Response {
    let Some((_, media, text)) = FILES.iter().find(|(known, ..)| *known == name) else {
        return problem(StatusCode::NOT_FOUND, "the console has no such file; open /console");
    };
    let policy = match sign_in::token_origin(state) {
        Some(origin) => format!("{POLICY} {origin}"),
        None => POLICY.to_owned(),
    };
    (HEADERS, [(CONTENT_TYPE, (*media).to_owned()), (CONTENT_SECURITY_POLICY, policy)], *text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::fixtures::state;
    use crate::config::watch::channel;
    use crate::telemetry::fixtures;

    /// Most bytes of all files together.
    const MAX_BYTES: usize = 200 * 1024;

    #[test]
    fn the_files_are_small_and_every_import_is_one_of_them() {
        let bytes: usize = FILES.iter().map(|(_, _, text)| text.len()).sum();
        assert!(bytes <= MAX_BYTES, "{bytes} bytes");
        for (name, media, text) in FILES {
            let imports = text.lines().filter_map(|line| line.split_once(" from \"./")?.1.split('"').next());
            for import in imports.filter(|_| media == SCRIPT) {
                assert!(FILES.iter().any(|(known, ..)| *known == import), "{name} imports {import}");
            }
            for unsafe_call in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!text.contains(unsafe_call), "{name} has {unsafe_call}");
            }
        }
    }

    #[test]
    fn only_the_console_is_open() {
        for path in ["/console", "/console/", "/console/app.js", "/console/sign-in"] {
            assert!(is_open_path(path), "{path}");
        }
        for path in ["/consoles", "/admin/v1/live", "/admin/v1/status", "/"] {
            assert!(!is_open_path(path), "{path}");
        }
    }

    #[tokio::test]
    async fn pages_may_not_be_framed_and_run_only_own_scripts() {
        let state = state(&fixtures::telemetry(1), channel().0);
        let page = file("", &state);
        assert_eq!(page.status(), StatusCode::OK);
        assert_eq!(page.headers()[CONTENT_TYPE], HTML);
        let policy = page.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.contains("frame-ancestors 'none'") && policy.contains("script-src 'self';"));
        assert!(policy.ends_with("connect-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe-inline"));
        assert_eq!(file("../mod.rs", &state).status(), StatusCode::NOT_FOUND);
    }
}
