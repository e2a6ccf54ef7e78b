//! Media policy: from where an engine may fetch the media of a prompt.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use crate::config::settings::MediaPolicy;
use crate::protocol::error::ApiError;
use crate::protocol::private_name::is_private_name;
use crate::protocol::request::media::{MAX_URL_BYTES, media_urls};
use crate::protocol::request::parse::ParsedRequest;

/// Checks the media URLs of the prompt.
///
/// # Errors
/// An engine may not fetch one of them. The error names the prompt's field.
pub(super) fn check(policy: &MediaPolicy, parsed: &ParsedRequest, body: &[u8]) -> Result<(), ApiError> {
    if !parsed.prompt.may_have_media {
        return Ok(());
    }
    let refused = |text: &str| Err(ApiError::invalid_field(parsed.api.prompt_field(), text));
    for piece in parsed.prompt_pieces(body) {
        let Ok(urls) = media_urls(parsed.api, piece) else {
            return refused(
                "has media beside a number, an escape or a depth that cannot be read here. Leave these out.",
            );
        };
        for url in urls {
            if let Err(what) = allows(policy, &url) {
                return refused(&format!(
                    "has a medium {what}, which is not allowed here. Send it as a `data:` URL, or from an allowed address."
                ));
            }
        }
    }
    Ok(())
}

/// Whether an engine may fetch the URL. The error says what is wrong, without the URL.
fn allows(policy: &MediaPolicy, url: &str) -> Result<(), String> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme).trim_start().to_ascii_lowercase();
    if !policy.schemes.contains(&scheme) {
        return Err("of another scheme".to_owned());
    }
    if scheme == "data" {
        return Ok(());
    }
    // Programs do not agree about the host of such a URL.
    let is_odd = |byte: u8| byte == b'\\' || byte <= b' ' || byte == 0x7f;
    if url.len() > MAX_URL_BYTES || url.bytes().any(is_odd) {
        return Err("with a URL that is too long, or has spaces or backslashes".to_owned());
    }
    let url = Url::parse(url).map_err(|_| "with a broken URL".to_owned())?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("with a name or password in its URL".to_owned());
    }
    let host = url.host().ok_or_else(|| "without a host".to_owned())?;
    let name = host.to_string().trim_end_matches('.').to_ascii_lowercase();
    let listed = policy.domains.iter().any(|domain| {
        name == *domain || name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.'))
    });
    let is_private = || match host {
        Host::Ipv4(address) => is_private_v4(address),
        Host::Ipv6(address) => is_private_v6(address),
        Host::Domain(_) => is_private_name(&name),
    };
    match listed || (policy.domains.is_empty() && !is_private()) {
        true => Ok(()),
        false => Err("at another address".to_owned()),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_multicast()
        || a == 0
        || (a == 100 && b & 0xc0 == 64)
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && b & 0xfe == 18)
        || a >= 240
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    match IpAddr::V6(address).to_canonical() {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => {
            let [first, second, third, ..] = address.segments();
            address.is_multicast()
                || first & 0xfe00 == 0xfc00
                || matches!(first & 0xffc0, 0xfe80 | 0xfec0)
                // NAT64 of one network, and Teredo.
                || (first, second, third) == (0x64, 0xff9b, 1)
                || (first, second) == (0x2001, 0)
                || embedded_v4(address).is_some_and(is_private_v4)
        }
    }
}

/// The IPv4 address to which NAT64, 6to4, or an address of the form `::10.0.0.1` leads. `::` and
/// `::1` have such a form, too.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let (high, low) = match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0, 0, high, low] => (high, low),
        [0x2002, high, low, ..] => (high, low),
        _ => return None,
    };
    Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::protocol::api::Api;
    use crate::protocol::request::parse::parse_request;

    fn policy(domains: &[&str]) -> MediaPolicy {
        MediaPolicy {
            schemes: ["https", "http", "data"].map(str::to_owned).into(),
            domains: domains.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn the_network_of_the_engines_is_out_of_reach_however_it_is_written() {
        for url in [
            "http://169.254.169.254/latest/meta-data",
            "http://2852039166/",
            "http://0xa9fea9fe/",
            "http://0251.0376.0251.0376/",
            "http://[::ffff:10.0.0.1]/",
            "http://[::1]:8000/",
            "http://[fd00::1]/",
            "http://[fe80::1]/",
            "http://[fec0::1]/",
            "http://[::]/",
            "http://[::10.0.0.1]/",
            "http://[64:ff9b::169.254.169.254]/",
            "http://[64:ff9b:1::1]/",
            "http://[2002:a00:1::]/",
            "http://[2001:0:1::1]/",
            "http://192.0.0.192/opc/v1/instance/",
            "http://198.18.0.1/",
            "http://255.255.255.255/",
            "http://127.1/",
            "http://100.64.0.1/",
            "http://0/",
            "http://localhost/",
            "http://vllm-0:8000/",
            "http://metadata.google.internal/",
            "http://vllm.llm.svc.cluster.local./",
            "http://user@10.0.0.1/",
            "file:///etc/passwd",
            "ftp://example.com/a",
            "http://example.com\\@169.254.169.254/",
            "http://example.com @10.0.0.1/",
            "http://example.com@8.8.8.8/",
            "http://:secret@8.8.8.8/",
            &format!("http://x.{}@169.254.169.254/", "a".repeat(2100)),
            "http://",
            "",
        ] {
            assert!(allows(&policy(&[]), url).is_err(), "{url}");
        }
        for url in [
            "https://example.com/a.png",
            "HTTP://example.com",
            "data:image/png;base64,AAAA",
            "http://8.8.8.8/a",
            "http://192.0.2.1/a",
            "http://[2001:db8::1]/a",
            "http://[64:ff9b::808:808]/a",
        ] {
            assert_eq!(allows(&policy(&[]), url), Ok(()), "{url}");
        }
    }

    #[test]
    fn every_field_of_a_prompt_is_searched() {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        let inside = r#"{"content":[{"type":"image_url","image_url":{"url":"http://10.0.0.1/a"}}]}"#;
        for (api, prompt) in [
            (Api::Chat, format!(r#""messages":[{inside}]"#)),
            (Api::Score, format!(r#""text_1":"a","text_2":{inside}"#)),
            (Api::Score, format!(r#""data_1":"a","data_2":[{inside}]"#)),
            (Api::Score, format!(r#""data_1":{inside},"data_2":"a""#)),
            (Api::Embeddings, r#""input":[{"image":"http://10.0.0.1/a"}]"#.to_owned()),
        ] {
            let body = format!(r#"{{"model":"m",{prompt}}}"#);
            let parsed = parse_request(api, &headers, body.as_bytes()).unwrap();
            assert!(check(&policy(&[]), &parsed, body.as_bytes()).is_err(), "{body}");
            assert!(check(&policy(&["10.0.0.1"]), &parsed, body.as_bytes()).is_ok(), "{body}");
        }
    }

    #[test]
    fn named_domains_and_nothing_else() {
        let named = policy(&["example.com", "10.0.0.7"]);
        for url in ["https://example.com/a", "https://cdn.Example.com./a", "http://10.0.0.7/a", "data:,a"] {
            assert_eq!(allows(&named, url), Ok(()), "{url}");
        }
        for url in [
            "https://badexample.com/",
            "https://example.com.evil.test/",
            "http://10.0.0.8/",
            "https://other.test",
        ] {
            assert!(allows(&named, url).is_err(), "{url}");
        }
    }
}
