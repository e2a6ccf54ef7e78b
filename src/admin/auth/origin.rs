//! Origin of a request: whether the web page of another site may have sent it. A browser lets such
//! a page ask an operator's own machine, also under a name that leads there only now (DNS
//! rebinding).

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method};

use crate::protocol::private_name::is_private_name;

const FETCH_SITE: &str = "sec-fetch-site";

/// Reason why a request without credentials is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForeignRequest {
    /// It asks under a name that may lead anywhere.
    Host,
    /// A page of another site sent it.
    Site,
}

impl ForeignRequest {
    /// Message for the caller.
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::Host => {
                "this port asks for no token, and the name in `Host` is not known to be its own: ask under its \
                 address, add the name to `admin.auth.hosts`, or set `admin.auth.tokens`"
            }
            Self::Site => "a page of another site sent this; open the address itself, or use `penstock`",
        }
    }

    /// Stable name for metric labels.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Site => "site",
        }
    }
}

/// Whether a page of another site may have sent the request. `hosts` are further names of this port.
pub(super) fn check(method: &Method, headers: &HeaderMap, hosts: &[String]) -> Result<(), ForeignRequest> {
    if !headers.get_all(HOST).iter().all(|host| host.to_str().is_ok_and(|host| is_own(host, hosts))) {
        return Err(ForeignRequest::Host);
    }
    check_site(method, headers)
}

/// Whether the page of another site may have sent a request that changes something. A browser adds
/// an operator's client certificate to such a request.
///
/// Browsers send `Sec-Fetch-Site` over TLS and to loopback only, and `Origin` with each post.
pub(super) fn check_site(method: &Method, headers: &HeaderMap) -> Result<(), ForeignRequest> {
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let is_own = match (headers.get(FETCH_SITE), headers.get(ORIGIN)) {
        // It counts before `Origin`: a proxy between may have changed `Host`.
        (Some(site), _) => matches!(site.as_bytes(), b"same-origin" | b"none"),
        (None, Some(origin)) => is_same_origin(origin, headers.get(HOST)),
        (None, None) => true,
    };
    if is_own { Ok(()) } else { Err(ForeignRequest::Site) }
}

/// Whether `Origin` names the host and port under which the request came.
fn is_same_origin(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let text = |value: &HeaderValue| value.to_str().map(str::to_ascii_lowercase).ok();
    let (Some(origin), Some(host)) = (text(origin), host.and_then(text)) else { return false };
    origin.split_once("://").is_some_and(|(_, authority)| authority == host)
}

/// Whether only this port can be meant: an address, or a name that no stranger can register.
fn is_own(host: &str, hosts: &[String]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
    let is_address = name.starts_with('[') || name.parse::<std::net::Ipv4Addr>().is_ok();
    is_address
        || is_private_name(&name)
        || hosts.iter().any(|own| own.trim_end_matches('.').eq_ignore_ascii_case(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: &Method, lines: &[(&'static str, &str)]) -> Result<(), ForeignRequest> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        check(method, &headers, &["gateway.example.com".to_owned()])
    }

    #[test]
    fn only_names_that_no_stranger_can_have_are_its_own() {
        let own = [
            "127.0.0.1:8081",
            "[::1]:8081",
            "10.1.2.3",
            "localhost:8081",
            "penstock",
            "penstock-admin.llm.svc:8081",
            "penstock.llm.svc.cluster.local.",
            "box.local",
            "gateway.test",
            "Gateway.Example.com:8081",
        ];
        for host in own {
            assert_eq!(ask(&Method::GET, &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["rebind.attacker.example", "127.0.0.1.nip.io:8081", "local.example", "", "a b"] {
            assert_eq!(ask(&Method::GET, &[("host", host)]), Err(ForeignRequest::Host), "{host}");
        }
        let two = [("host", "localhost"), ("host", "rebind.attacker.example")];
        assert_eq!(ask(&Method::GET, &two), Err(ForeignRequest::Host));
        assert_eq!(ask(&Method::GET, &[]), Ok(()), "browsers always send one");
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
        let from = |site| [("host", "localhost:8081"), ("sec-fetch-site", site)];
        for site in ["cross-site", "same-site", "?"] {
            assert_eq!(ask(&Method::POST, &from(site)), Err(ForeignRequest::Site), "{site}");
            assert_eq!(ask(&Method::GET, &from(site)), Ok(()), "a link may lead here: {site}");
        }
        for site in ["same-origin", "none"] {
            assert_eq!(ask(&Method::POST, &from(site)), Ok(()), "{site}");
        }
        let of = |origin| [("host", "Box:8081"), ("origin", origin)];
        for origin in ["https://evil.example", "http://box:8082", "http://box:8081.evil.example", "null"] {
            assert_eq!(ask(&Method::POST, &of(origin)), Err(ForeignRequest::Site), "{origin}");
            assert_eq!(ask(&Method::GET, &of(origin)), Ok(()), "{origin}");
        }
        for origin in ["http://box:8081", "https://box:8081"] {
            assert_eq!(ask(&Method::POST, &of(origin)), Ok(()), "{origin}");
        }
        let behind_a_proxy = [
            ("host", "box:8081"),
            ("origin", "https://gateway.example.com"),
            ("sec-fetch-site", "same-origin"),
        ];
        assert_eq!(ask(&Method::POST, &behind_a_proxy), Ok(()));
        let mut headers = HeaderMap::new();
        headers.insert(FETCH_SITE, "cross-site".parse().unwrap());
        assert_eq!(check_site(&Method::POST, &headers), Err(ForeignRequest::Site), "with a certificate, too");
        assert_eq!(check_site(&Method::POST, &HeaderMap::new()), Ok(()), "not from a browser");
    }
}
