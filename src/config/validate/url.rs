//! URLs of engines and collectors.

use http::Uri;

/// What is wrong with a URL, and what to do.
pub(in crate::config) type UrlFault = (String, &'static str);

/// Reads an engine's base URL: `http://host:port`, perhaps with a path prefix.
pub(in crate::config) fn base(text: &str) -> Result<Uri, UrlFault> {
    let uri = any(text)?;
    if text.ends_with('/') {
        return Err((format!("{text:?} ends with a slash"), "take the slash away"));
    }
    if uri.path().trim_end_matches('/').ends_with("/v1") {
        return Err((format!("{text:?} ends with /v1"), "write the base URL; /v1 is added to every request"));
    }
    Ok(uri)
}

/// Reads a URL with any path.
pub(in crate::config) fn any(text: &str) -> Result<Uri, UrlFault> {
    const FORM: &str = "write it like http://10.0.0.5:8000";
    let shown = || format!("{:?}", without_userinfo(text));
    let uri: Uri = text.parse().map_err(|_| (format!("{} is not a URL", shown()), FORM))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err((format!("{} is not a whole URL", shown()), FORM));
    };
    if !matches!(scheme, "http" | "https") {
        return Err((format!("{} is neither http nor https", shown()), FORM));
    }
    if authority.as_str().contains('@') {
        return Err((format!("{} holds a user or password", shown()), "use `api_key` for secrets"));
    }
    let after_host = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    let port_fits = after_host.is_empty() || authority.port_u16().is_some_and(|port| port > 0);
    if authority.host().is_empty() || !port_fits {
        return Err((format!("{} has no usable host and port", shown()), FORM));
    }
    if uri.query().is_some() || text.contains('#') {
        return Err((format!("{} has a query or fragment", shown()), "end the URL before `?` or `#`"));
    }
    Ok(uri)
}

/// One text for all ways to write the same URL.
pub(in crate::config) fn canonical(uri: &Uri) -> String {
    let scheme = uri.scheme_str().unwrap_or("http");
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    let host = uri.host().unwrap_or_default().to_ascii_lowercase();
    format!("{scheme}://{host}:{port}{}", uri.path().trim_end_matches('/'))
}

/// The text with what may be a password taken out.
fn without_userinfo(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}...{}", &text[..scheme + 3], &text[at..]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_urls() {
        for text in [
            "http://10.0.0.5:8000",
            "https://llm.example",
            "http://[::1]:8000",
            "http://h:1/prefix",
            "http://a-b.c:9",
        ] {
            assert!(base(text).is_ok(), "{text}");
        }
        assert!(any("http://h:8002/metrics").is_ok());
    }

    #[test]
    fn bad_urls_say_what_is_wrong() {
        for (text, why) in [
            ("10.0.0.5:8000", "not a whole URL"),
            ("", "not a URL"),
            ("/path", "not a whole URL"),
            ("grpc://h:1", "neither http nor https"),
            ("http://u:secret@h:1", "holds a user or password"),
            ("http://h:1/", "ends with a slash"),
            ("http://h:1/v1", "ends with /v1"),
            ("http://h:0", "no usable host and port"),
            ("http://h:", "no usable host and port"),
            ("http://h:1?x=1", "query or fragment"),
            ("http://h:1/a#b", "query or fragment"),
            ("http://h h:1", "not a URL"),
            ("http://h:99999", "no usable host and port"),
        ] {
            let (message, hint) = base(text).unwrap_err();
            assert!(message.contains(why), "{text}: {message}");
            assert!(!hint.is_empty());
            assert!(!message.contains("secret"));
        }
    }

    #[test]
    fn spelling_does_not_make_another_engine() {
        let one = |text: &str| canonical(&text.parse().unwrap());
        assert_eq!(one("http://LLM.example"), one("http://llm.example:80"));
        assert_eq!(one("https://h/p"), one("https://h:443/p"));
        assert_ne!(one("http://h:80"), one("https://h:443"));
    }
}
