//! Header filters: the headers that an engine gets, and those that a client gets back. The module
//! also reads credentials, timeouts and retry counts from headers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::HeaderMap;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_DISPOSITION,
    CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, DATE, EXPECT, FORWARDED, HOST,
    HeaderName, HeaderValue, LOCATION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RETRY_AFTER, SERVER,
    SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, USER_AGENT, VARY, VIA, WWW_AUTHENTICATE,
};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The header of the request id, which client, gateway and engine share.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_TIMEOUT_MS: HeaderName = HeaderName::from_static("x-request-timeout-ms");
const STAINLESS_TIMEOUT: HeaderName = HeaderName::from_static("x-stainless-timeout");
const STAINLESS_READ_TIMEOUT: HeaderName = HeaderName::from_static("x-stainless-read-timeout");
const STAINLESS_RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");
/// The header in which a client without an SDK gives the number of its retry: 0 for the first
/// request, 1 for its first retry, and so on.
pub const RETRY_COUNT: HeaderName = HeaderName::from_static("x-penstock-retry-count");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const API_KEY: HeaderName = HeaderName::from_static("api-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const BAGGAGE: HeaderName = HeaderName::from_static("baggage");

/// Headers about one connection, not about the message (RFC 9110 section 7.6.1).
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Headers that are never sent to an engine: credentials, headers that the engine connection sets
/// anew, and headers that would reveal or mislead.
const NOT_UPSTREAM: [HeaderName; 12] = [
    HOST,
    CONTENT_LENGTH,
    CONTENT_ENCODING,
    ACCEPT_ENCODING,
    AUTHORIZATION,
    X_API_KEY,
    API_KEY,
    COOKIE,
    EXPECT,
    FORWARDED,
    VIA,
    X_REQUEST_ID,
];

/// Headers that are sent to an engine. Engines and their sidecars obey many others, by which a
/// client could steer them past the gateway.
const UPSTREAM: [HeaderName; 7] =
    [ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, USER_AGENT, TRACEPARENT, TRACESTATE, BAGGAGE];
/// Prefixes of headers that are sent to an engine.
const UPSTREAM_PREFIXES: [&str; 2] = ["openai-", "anthropic-"];

/// Headers that are never sent to a client: the engine's identity, its address and its ids.
const NOT_DOWNSTREAM: [HeaderName; 8] =
    [SERVER, DATE, LOCATION, CONTENT_LENGTH, SET_COOKIE, VIA, WWW_AUTHENTICATE, X_REQUEST_ID];

/// Headers that are sent to a client.
const DOWNSTREAM: [HeaderName; 7] =
    [CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, RETRY_AFTER, VARY];
/// Prefixes of headers that are sent to a client.
const DOWNSTREAM_PREFIXES: [&str; 2] = ["openai-", "anthropic-"];

/// The headers of a client's request that go to an engine, and those that `also` names. The caller
/// adds its own `authorization` and `x-request-id`. The client's body length is left out, as the
/// gateway may edit the body.
pub fn upstream_headers(client: &HeaderMap, also: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let mut headers = end_to_end(client, |name| {
        !NOT_UPSTREAM.contains(name)
            && (UPSTREAM.contains(name) || has_prefix(name, UPSTREAM_PREFIXES) || also(name))
    });
    headers.values_mut().for_each(|value| *value = copied(value));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers
}

/// A copy of a value that was read from a connection. The value itself keeps the whole buffer that
/// it was read into.
pub(crate) fn copied(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

/// The headers of an engine's answer that go to the client, those that `also` names, and the
/// gateway's own `x-request-id`.
pub fn client_headers(
    engine: &HeaderMap,
    request_id: &HeaderValue,
    also: impl Fn(&HeaderName) -> bool,
) -> HeaderMap {
    let mut headers = end_to_end(engine, |name| {
        !NOT_DOWNSTREAM.contains(name)
            && (DOWNSTREAM.contains(name) || has_prefix(name, DOWNSTREAM_PREFIXES) || also(name))
    });
    headers.insert(X_REQUEST_ID, request_id.clone());
    headers
}

fn has_prefix(name: &HeaderName, prefixes: [&str; 2]) -> bool {
    prefixes.iter().any(|prefix| name.as_str().starts_with(prefix))
}

fn end_to_end(from: &HeaderMap, goes: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let named: Vec<&[u8]> = from.get_all(CONNECTION).iter().flat_map(list).collect();
    let is_named =
        |name: &HeaderName| named.iter().any(|one| name.as_str().as_bytes().eq_ignore_ascii_case(one));
    let mut to = HeaderMap::with_capacity(from.keys_len() + 2);
    for (name, value) in from {
        if !HOP_BY_HOP.contains(name) && goes(name) && !is_named(name) {
            to.append(name.clone(), value.clone());
        }
    }
    to
}

fn list(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// The client's API key: a bearer token (the scheme in any case), else `x-api-key`.
pub fn credentials(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, token) = value.trim_ascii_start().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_ascii())
    });
    let key = || headers.get(X_API_KEY).and_then(|value| value.to_str().ok()).map(str::trim_ascii);
    bearer.filter(|token| !token.is_empty()).or_else(key).filter(|token| !token.is_empty())
}

/// The address of the client at the other end of a connection from `peer`. Where `peer` is a proxy,
/// that is the last address in `x-forwarded-for` that is not one; what stands before it is not
/// believed.
pub fn client_address(headers: &HeaderMap, peer: IpAddr, is_proxy: impl Fn(IpAddr) -> bool) -> IpAddr {
    if !is_proxy(peer) {
        return peer;
    }
    let mut client = peer;
    let values = headers.get_all(X_FORWARDED_FOR).iter().rev();
    for hop in values.flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b',')) {
        let Some(address) = std::str::from_utf8(hop).ok().and_then(|text| hop_address(text.trim())) else {
            return client;
        };
        client = address;
        if !is_proxy(address) {
            return client;
        }
    }
    client
}

/// An address, with or without a port.
fn hop_address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()))
}

/// The client's timeout: the least of `x-request-timeout-ms` (milliseconds) and the timeouts that
/// SDKs announce (seconds). Values that are not a positive number are ignored: SDKs send
/// `NOT_GIVEN`.
pub fn client_timeout(headers: &HeaderMap) -> Option<Duration> {
    const TIMEOUTS: [(HeaderName, f64); 3] =
        [(REQUEST_TIMEOUT_MS, 0.001), (STAINLESS_TIMEOUT, 1.0), (STAINLESS_READ_TIMEOUT, 1.0)];
    let timeout = |(name, unit): (HeaderName, f64)| {
        let number: f64 = headers.get(name)?.to_str().ok()?.trim().parse().ok()?;
        Duration::try_from_secs_f64(number * unit).ok().filter(|timeout| !timeout.is_zero())
    };
    TIMEOUTS.into_iter().filter_map(timeout).min()
}

/// The number of the retry, 0 for the first request: `x-stainless-retry-count` of the SDKs, else
/// [`RETRY_COUNT`]. Absent when the client sends neither.
pub fn retry_count(headers: &HeaderMap) -> Option<u32> {
    let said = headers.get(STAINLESS_RETRY_COUNT).or_else(|| headers.get(RETRY_COUNT))?;
    said.to_str().ok()?.trim().parse().ok()
}

/// The wait of `retry-after-ms`, else of `Retry-After` (seconds, also fractions). A date is
/// ignored, as clocks differ.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    const WAITS: [(&str, f64); 2] = [("retry-after-ms", 0.001), ("retry-after", 1.0)];
    WAITS.into_iter().find_map(|(name, unit)| {
        let number: f64 = headers.get(name)?.to_str().ok()?.trim().parse().ok()?;
        Duration::try_from_secs_f64(number * unit).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn an_engine_gets_what_it_needs() {
        let client = map(&[
            ("host", "gw"),
            ("content-type", "application/json"),
            ("content-length", "7"),
            ("accept-encoding", "gzip"),
            ("authorization", "Bearer secret"),
            ("x-api-key", "secret"),
            ("cookie", "a=b"),
            ("expect", "100-continue"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-data-parallel-rank", "1"),
            ("x-override-priority", "9"),
            ("x-stainless-timeout", "60"),
            ("x-penstock-retry-count", "1"),
            ("x-penstock-class", "batch"),
            ("x-request-id", "mine"),
            ("traceparent", "00-1-2-01"),
            ("x-session-id", "s"),
            ("x-prefiller-host-port", "10.0.0.1:80"),
            ("x-envoy-original-dst-host", "10.0.0.1:80"),
            ("x-real-ip", "10.0.0.1"),
            ("openai-project", "p"),
        ]);
        let expected = |more: &[(&'static str, &'static str)]| {
            let usual = [
                ("content-type", "application/json"),
                ("traceparent", "00-1-2-01"),
                ("openai-project", "p"),
                ("accept-encoding", "identity"),
            ];
            map(&[&usual[..], more].concat())
        };
        assert_eq!(upstream_headers(&client, |_| false), expected(&[]));
        let asked = |name: &HeaderName| ["x-session-id", "cookie", "x-hop", "te"].contains(&name.as_str());
        assert_eq!(upstream_headers(&client, asked), expected(&[("x-session-id", "s")]));
    }

    #[test]
    fn a_client_learns_nothing_of_the_engine() {
        let engine = map(&[
            ("server", "uvicorn"),
            ("date", "Fri"),
            ("location", "http://10.0.0.1:8000/"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("content-type", "text/event-stream; charset=utf-8"),
            ("x-request-id", "theirs"),
            ("vary", "Origin"),
            ("alt-svc", "h3=\":443\""),
            ("x-backend-host", "vllm-0"),
            ("x-cost", "7"),
        ]);
        let expected = map(&[
            ("content-type", "text/event-stream; charset=utf-8"),
            ("vary", "Origin"),
            ("x-cost", "7"),
            ("x-request-id", "ours"),
        ]);
        let asked = |name: &HeaderName| ["x-cost", "server", "x-request-id"].contains(&name.as_str());
        assert_eq!(client_headers(&engine, &HeaderValue::from_static("ours"), asked), expected);
    }

    #[test]
    fn keys_of_every_sdk() {
        let cases: [(&[_], _); 8] = [
            (&[("authorization", "Bearer k1")], Some("k1")),
            (&[("authorization", "bEaReR   k1 ")], Some("k1")),
            (&[("x-api-key", "k2")], Some("k2")),
            (&[("authorization", "Basic abc"), ("x-api-key", "k2")], Some("k2")),
            (&[("authorization", "Bearer "), ("x-api-key", "k2")], Some("k2")),
            (&[("authorization", "Bearer")], None),
            (&[("x-api-key", "")], None),
            (&[], None),
        ];
        for (headers, key) in cases {
            assert_eq!(credentials(&map(headers)), key, "{headers:?}");
        }
    }

    #[test]
    fn the_client_is_the_last_hop_that_is_no_proxy() {
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        let is_proxy = |address: IpAddr| matches!(address, IpAddr::V4(four) if four.octets()[0] == 10);
        let cases: [(&[_], _); 9] = [
            (&[], "10.0.0.1"),
            (&[("x-forwarded-for", "192.0.2.7")], "192.0.2.7"),
            (&[("x-forwarded-for", "198.51.100.1, 192.0.2.7")], "192.0.2.7"),
            (&[("x-forwarded-for", "198.51.100.1,192.0.2.7 , 10.0.0.2")], "192.0.2.7"),
            (&[("x-forwarded-for", "192.0.2.7:4000")], "192.0.2.7"),
            (&[("x-forwarded-for", "[2001:db8::7]:4000")], "2001:db8::7"),
            (&[("x-forwarded-for", "2001:db8::7")], "2001:db8::7"),
            (&[("x-forwarded-for", "192.0.2.7, nonsense, 10.0.0.2")], "10.0.0.2"),
            (&[("x-forwarded-for", "10.0.0.3, 10.0.0.2")], "10.0.0.3"),
        ];
        for (headers, client) in cases {
            assert_eq!(client_address(&map(headers), peer, is_proxy).to_string(), client, "{headers:?}");
        }
        let mut two = map(&[("x-forwarded-for", "192.0.2.7")]);
        two.append("x-forwarded-for", HeaderValue::from_static("192.0.2.8"));
        assert_eq!(client_address(&two, peer, is_proxy).to_string(), "192.0.2.8");
        let direct = "192.0.2.9".parse().unwrap();
        assert_eq!(client_address(&two, direct, is_proxy), direct, "a client may say what it likes");
    }

    #[test]
    fn announced_timeouts() {
        let cases: [(&[_], _); 9] = [
            (&[("x-stainless-timeout", "600")], Some(600_000)),
            (&[("x-stainless-timeout", "NOT_GIVEN"), ("x-stainless-read-timeout", "30")], Some(30_000)),
            (&[("x-stainless-timeout", "600"), ("x-request-timeout-ms", "1500")], Some(1500)),
            (&[("x-stainless-read-timeout", "2.5")], Some(2500)),
            (&[("x-stainless-timeout", "-1")], None),
            (&[("x-stainless-timeout", "inf")], None),
            (&[("x-stainless-timeout", "NaN")], None),
            (&[("x-stainless-timeout", "1e300"), ("x-request-timeout-ms", "0")], None),
            (&[], None),
        ];
        for (headers, millis) in cases {
            assert_eq!(client_timeout(&map(headers)), millis.map(Duration::from_millis), "{headers:?}");
        }
    }

    #[test]
    fn tries_are_counted_by_the_client() {
        let cases: [(&[_], _); 6] = [
            (&[("x-stainless-retry-count", "0")], Some(0)),
            (&[("x-stainless-retry-count", "2"), ("x-penstock-retry-count", "7")], Some(2)),
            (&[("x-penstock-retry-count", " 1 ")], Some(1)),
            (&[("x-penstock-retry-count", "-1")], None),
            (&[("x-stainless-retry-count", "NOT_GIVEN")], None),
            (&[], None),
        ];
        for (headers, count) in cases {
            assert_eq!(retry_count(&map(headers)), count, "{headers:?}");
        }
    }

    #[test]
    fn engines_say_when_to_come_back() {
        assert_eq!(retry_after(&map(&[("retry-after", "2")])), Some(Duration::from_secs(2)));
        let both = map(&[("retry-after", "2"), ("retry-after-ms", "50")]);
        assert_eq!(retry_after(&both), Some(Duration::from_millis(50)));
        assert_eq!(retry_after(&map(&[("retry-after", "Fri, 20 Nov 2026 08:07:14 GMT")])), None);
        assert_eq!(retry_after(&map(&[("retry-after", "-5")])), None);
    }
}
