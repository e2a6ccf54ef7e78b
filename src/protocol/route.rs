//! Routes: the call that a method and path select, or a helpful error for an unknown path.

use std::borrow::Cow;

use http::Method;

use crate::protocol::api::Api;

/// The target of a request line on the data port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route<'a> {
    /// An API call that a model (or its tokenizer) serves.
    Api(Api),
    /// The list of models.
    Models,
    /// One model, by its name as the client wrote it, percent-decoded.
    Model(Cow<'a, str>),
    /// What the caller has used, what is left, and why it waits.
    Me,
    /// A file of the page that shows the answer of [`Route::Me`].
    CallerPage(CallerPageFile),
    /// The health check: whether the gateway can queue work.
    Health,
    /// The path exists for another method.
    WrongMethod {
        /// Value of the `Allow` header.
        allow: &'static str,
    },
    /// The path does not exist.
    NotFound {
        /// The likely mistake of the client.
        hint: Option<RouteHint>,
    },
}

/// A file of the caller's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerPageFile {
    /// The page itself.
    Html,
    Style,
    /// Elements, formats and tables of any page.
    Parts,
    /// What the page does.
    Script,
    /// Words for the names of the API.
    Words,
}

impl CallerPageFile {
    /// Every file.
    pub const ALL: [Self; 5] = [Self::Html, Self::Style, Self::Parts, Self::Script, Self::Words];

    /// Path of the file.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Html => "/me",
            Self::Style => "/me/style.css",
            Self::Parts => "/me/parts.js",
            Self::Script => "/me/page.js",
            Self::Words => "/me/words.js",
        }
    }
}

/// The mistake in a path that is almost right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteHint {
    /// The client adds a path to a base URL that already has one.
    BaseUrl {
        /// The path that the base URL must end with.
        path: &'static str,
    },
    /// The path is right without the slash at its end.
    TrailingSlash,
    /// The path asks for a response by its id; responses are not stored.
    NotStored,
}

const MODELS: &str = "/v1/models";
const ME: &str = "/v1/me";

/// The route of a request line. `path` is the path alone, without a query.
pub fn route<'a>(method: &Method, path: &'a str) -> Route<'a> {
    let Some(found) = known(path) else {
        return Route::NotFound { hint: hint(path) };
    };
    let allowed = match found {
        Route::Api(_) => method == Method::POST,
        _ => method == Method::GET || method == Method::HEAD,
    };
    match (allowed, &found) {
        (true, _) => found,
        (false, Route::Api(_)) => Route::WrongMethod { allow: "POST" },
        (false, _) => Route::WrongMethod { allow: "GET, HEAD" },
    }
}

fn known(path: &str) -> Option<Route<'_>> {
    if let Some(api) = Api::from_path(path) {
        return Some(Route::Api(api));
    }
    if path == "/health" || path == "/ping" {
        return Some(Route::Health);
    }
    if path == ME {
        return Some(Route::Me);
    }
    if let Some(file) = CallerPageFile::ALL.into_iter().find(|file| file.path() == path) {
        return Some(Route::CallerPage(file));
    }
    match path.strip_prefix(MODELS)? {
        "" => Some(Route::Models),
        rest => {
            let name = rest.strip_prefix('/')?;
            if name.is_empty() { None } else { Some(Route::Model(percent_decode(name))) }
        }
    }
}

fn hint(path: &str) -> Option<RouteHint> {
    if path.starts_with("/v1/responses/") {
        return Some(RouteHint::NotStored);
    }
    let trimmed = path.trim_end_matches('/');
    if trimmed.len() < path.len() && !trimmed.is_empty() {
        return match known(trimmed) {
            Some(_) => Some(RouteHint::TrailingSlash),
            None => hint(trimmed),
        };
    }
    tails(path).find_map(|tail| {
        if tail.starts_with("/v1/") && known(tail).is_some() || known(&format!("/v1{tail}")).is_some() {
            return Some(RouteHint::BaseUrl { path: "/v1" });
        }
        known(tail).map(|_| RouteHint::BaseUrl { path: "/" })
    })
}

/// The suffixes of a path that start at one of its slashes, longest first. Four segments are enough
/// for the longest path of the API.
fn tails(path: &str) -> impl Iterator<Item = &str> {
    let starts: Vec<usize> = memchr::memrchr_iter(b'/', path.as_bytes()).take(4).collect();
    starts.into_iter().rev().map(|start| &path[start..])
}

/// Resolves percent escapes. Text that is not a proper escape stays unchanged.
fn percent_decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = if *first == b'%' { after.get(..2).and_then(hex_pair) } else { None };
        bytes.push(escape.unwrap_or(*first));
        rest = if escape.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).map_or(Cow::Borrowed(text), Cow::Owned)
}

fn hex_pair(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let [high, low] = digits else { return None };
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::api::RerankPath;

    #[test]
    fn every_call_has_its_path() {
        for api in Api::ALL {
            assert_eq!(route(&Method::POST, api.upstream_path()), Route::Api(api));
            assert_eq!(route(&Method::GET, api.upstream_path()), Route::WrongMethod { allow: "POST" });
        }
        assert_eq!(route(&Method::POST, "/v2/rerank"), Route::Api(Api::Rerank(RerankPath::V2)));
        assert_eq!(route(&Method::POST, "/v1/score"), Route::Api(Api::Score));
    }

    #[test]
    fn models_and_health() {
        assert_eq!(route(&Method::GET, "/v1/models"), Route::Models);
        assert_eq!(route(&Method::HEAD, "/health"), Route::Health);
        assert_eq!(route(&Method::GET, "/v1/me"), Route::Me);
        assert_eq!(route(&Method::DELETE, "/v1/models"), Route::WrongMethod { allow: "GET, HEAD" });
        assert_eq!(
            route(&Method::GET, "/v1/models/meta-llama/Llama-3"),
            Route::Model("meta-llama/Llama-3".into())
        );
        assert_eq!(route(&Method::GET, "/v1/models/a%2Fb%20c"), Route::Model("a/b c".into()));
        for odd in ["/v1/models/%", "/v1/models/%zz", "/v1/models/%ff", "/v1/models/%+1"] {
            assert_eq!(route(&Method::GET, odd), Route::Model(odd["/v1/models/".len()..].into()));
        }
    }

    #[test]
    fn the_callers_page_is_read_only_and_stands_beside_every_call() {
        for file in CallerPageFile::ALL {
            assert_eq!(route(&Method::GET, file.path()), Route::CallerPage(file));
            assert_eq!(route(&Method::HEAD, file.path()), Route::CallerPage(file));
            assert_eq!(route(&Method::POST, file.path()), Route::WrongMethod { allow: "GET, HEAD" });
            assert_eq!(Api::from_path(file.path()), None);
        }
        assert_eq!(route(&Method::GET, "/me/mod.rs"), Route::NotFound { hint: None });
    }

    #[test]
    fn wrong_base_urls_are_named() {
        let v1 = Some(RouteHint::BaseUrl { path: "/v1" });
        let cases = [
            ("/v1/chat/completions/v1/chat/completions", v1),
            ("/v1/chat/completions/chat/completions", v1),
            ("/v1/v1/chat/completions", v1),
            ("/chat/completions", v1),
            ("/v1/chat/completions/models", v1),
            ("//v1/chat/completions", v1),
            ("/v1/tokenize", Some(RouteHint::BaseUrl { path: "/" })),
            ("/models", v1),
            ("/v1/chat/completions/", Some(RouteHint::TrailingSlash)),
            ("/v1/chat/completions/v1/models", v1),
            ("/api/v1/messages", v1),
            ("/v1/v1/messages/count_tokens", v1),
            ("/foo/tokenize", Some(RouteHint::BaseUrl { path: "/" })),
            ("/v1/responses/resp_1", Some(RouteHint::NotStored)),
            ("/me/", Some(RouteHint::TrailingSlash)),
            ("/v1/nothing", None),
            ("/", None),
            ("", None),
            ("//", None),
        ];
        for (path, hint) in cases {
            assert_eq!(route(&Method::POST, path), Route::NotFound { hint }, "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_path_is_answered(path in "(/|v1|chat|completions|models|%|[a-z]|\\PC){0,12}") {
            let _ = route(&Method::POST, &path);
            let _ = route(&Method::GET, &path);
        }
    }
}
