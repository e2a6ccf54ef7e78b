//! HTTP/2 checks: the checks of a request that the h2 crate leaves to its user. h2 itself checks
//! framing, lengths and connection-level headers.

use http::header::{CONTENT_LENGTH, HOST};
use http::{Method, Request};

use crate::protocol::http1::parse_length;
use crate::proxy::listener::http1::head::{is_authority, same_authority};
use crate::proxy::listener::rejected::RequestRejected;

/// Checks the method, the host and Content-Length.
///
/// # Errors
/// The first rule that the request breaks.
pub(in crate::proxy::listener) fn screen_http2<B>(request: &Request<B>) -> Result<(), RequestRejected> {
    if request.method() == Method::CONNECT {
        return Err(RequestRejected::Connect);
    }
    let headers = request.headers();
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(RequestRejected::HostRepeated);
    }
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let named = host.map(|host| host.as_bytes());
    if [authority, named].into_iter().flatten().any(|name| !is_authority(name)) {
        return Err(RequestRejected::HostInvalid);
    }
    match (authority, named) {
        (None, None) => return Err(RequestRejected::HostMissing),
        (Some(authority), Some(host)) if !same_authority(authority, host) => {
            return Err(RequestRejected::HostMismatch);
        }
        _ => {}
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    if lengths.next().is_some_and(|length| parse_length(length.as_bytes()).is_none()) {
        return Err(RequestRejected::LengthInvalid);
    }
    if lengths.next().is_some() { Err(RequestRejected::LengthRepeated) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(uri: &str, headers: &[(&str, &str)]) -> Result<(), RequestRejected> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        screen_http2(&request.body(()).unwrap())
    }

    #[test]
    fn one_host_is_needed_and_two_must_agree() {
        assert_eq!(screen("http://a.test/x", &[]), Ok(()));
        assert_eq!(screen("/x", &[("host", "a.test")]), Ok(()));
        assert_eq!(screen("http://a.test/x", &[("host", "A.TEST:80")]), Ok(()));
        assert_eq!(screen("/x", &[]), Err(RequestRejected::HostMissing));
        assert_eq!(screen("/x", &[("host", "a"), ("host", "a")]), Err(RequestRejected::HostRepeated));
        assert_eq!(screen("/x", &[("host", "a/b")]), Err(RequestRejected::HostInvalid));
        assert_eq!(screen("http://u@a.test/x", &[]), Err(RequestRejected::HostInvalid));
        assert_eq!(screen("http://a.test/x", &[("host", "b.test")]), Err(RequestRejected::HostMismatch));
    }

    #[test]
    fn content_length_is_one_plain_number() {
        let host = ("host", "a");
        assert_eq!(screen("/x", &[host, ("content-length", "5")]), Ok(()));
        assert_eq!(screen("/x", &[host, ("content-length", "+5")]), Err(RequestRejected::LengthInvalid));
        let twice = [host, ("content-length", "5"), ("content-length", "5")];
        assert_eq!(screen("/x", &twice), Err(RequestRejected::LengthRepeated));
    }
}
