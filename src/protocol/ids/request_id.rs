//! Request ids: the id by which client, gateway and engine name one request.

use http::HeaderMap;
use http::header::HeaderValue;

use crate::protocol::headers::{X_REQUEST_ID, copied};

/// Random bytes of an id that the gateway makes.
pub const ENTROPY: usize = 15;

const LONGEST: usize = 128;

/// Ids of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedIds {
    /// The client's own id, or one that the gateway made.
    pub request: HeaderValue,
    /// The gateway's own id; absent = `request` is that one.
    pub gateway: Option<HeaderValue>,
}

impl AssignedIds {
    /// Ids of a request with these headers. The gateway's own id is made of the `random` bytes.
    pub fn new(headers: &HeaderMap, random: [u8; ENTROPY]) -> Self {
        let own = from_random(random);
        match from_client(headers) {
            Some(request) => Self { request, gateway: Some(own) },
            None => Self { request: own, gateway: None },
        }
    }
}

/// The client's own `x-request-id` if it is 1 to 128 visible ASCII bytes.
pub fn from_client(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(X_REQUEST_ID)?;
    let bytes = id.as_bytes();
    let fits = (1..=LONGEST).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
    fits.then(|| copied(id))
}

/// A new id: `req_` and 24 characters of lower-case base 32 (RFC 4648's
/// alphabet) over the given bytes.
pub fn from_random(bytes: [u8; ENTROPY]) -> HeaderValue {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut id = *b"req_........................";
    for (group, five) in bytes.chunks_exact(5).enumerate() {
        let bits = five.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        for place in 0..8 {
            let digit = bits >> (35 - 5 * place) & 31;
            id[4 + group * 8 + place] = ALPHABET[digit as usize];
        }
    }
    HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("req_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_ids_are_taken_as_they_are() {
        let longest = "x".repeat(128);
        let too_long = "x".repeat(129);
        let cases =
            [("bench-3f2a-3", true), (&*longest, true), (&*too_long, false), ("", false), ("a b", false)];
        for (id, taken) in cases {
            let mut headers = HeaderMap::new();
            headers.insert("x-request-id", HeaderValue::from_str(id).unwrap());
            assert_eq!(from_client(&headers).is_some_and(|kept| kept == id), taken, "{id}");
        }
        assert_eq!(from_client(&HeaderMap::new()), None);
    }

    #[test]
    fn made_ids_are_base_32() {
        assert_eq!(from_random([0; ENTROPY]), "req_aaaaaaaaaaaaaaaaaaaaaaaa");
        assert_eq!(from_random([255; ENTROPY]), "req_777777777777777777777777");
        assert_eq!(from_random(*b"foobarfoobarfoo"), "req_mzxw6ytbojtg633cmfzgm33p");
        assert_ne!(
            from_random(crate::protocol::ids::random::bytes()),
            from_random(crate::protocol::ids::random::bytes())
        );
    }
}
