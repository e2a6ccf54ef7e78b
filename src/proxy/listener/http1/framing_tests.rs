//! Tests of the HTTP/1 framing: a table of strict cases, and properties.

use crate::proxy::listener::rejected::RequestRejected::{
    BareLf, ControlByte, Encoding, Folding, HeaderName, HostInvalid, HostMismatch, HostMissing, HostRepeated,
    LengthAndEncoding, LengthInvalid, LengthRepeated, SpaceBeforeColon,
};
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use crate::proxy::listener::http1::framing::Framing;
use crate::proxy::listener::rejected::RequestRejected;

const MAX_HEAD: usize = 2048;

/// Result of one message: its approved bytes and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    approved: usize,
    end: Result<bool, RequestRejected>,
}

/// Feeds `input` in pieces that end at `cuts`, as the socket side does.
fn feed(input: &[u8], cuts: &[usize]) -> Outcome {
    let mut framing = Framing::new(MAX_HEAD);
    let mut approved = 0;
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (input.len() + 1)).collect();
    ends.push(input.len());
    ends.sort_unstable();
    for end in ends {
        while approved < end && !framing.is_whole() {
            match framing.advance(&input[approved..end]) {
                Ok(0) => break,
                Ok(count) => approved += count,
                Err(refusal) => return Outcome { approved, end: Err(refusal) },
            }
        }
    }
    Outcome { approved, end: Ok(framing.is_whole()) }
}

fn refusal(input: &str) -> Option<RequestRejected> {
    feed(input.as_bytes(), &[]).end.err()
}

#[test]
fn good_messages_end_where_they_should() {
    let cases = [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /v1/models?limit=5&a[]=%20{x} HTTP/1.1\r\nhost:a.test:8080 \t\r\nx: \t a\tb\x7e \r\nempty:\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
        "GET http://A.test/x?y HTTP/1.1\r\nHost: a.TEST:80\r\n\r\n",
        "GET http://a.test HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "GET http://a.test/ HTTP/1.0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n005;a=\"b\"\r\nhello\r\nA\r\n0123456789\r\n0000\r\nx-sum: 1\r\n\r\n",
    ];
    for text in cases {
        let with_next = format!("{text}GET /next HTTP/1.1\r\n");
        assert_eq!(
            feed(with_next.as_bytes(), &[]),
            Outcome { approved: text.len(), end: Ok(true) },
            "{text:?}"
        );
    }
}

#[test]
fn bad_heads_are_refused_by_name() {
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "y".repeat(MAX_HEAD));
    let endless = format!("GET /{}", "y".repeat(MAX_HEAD));
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "x: y\r\n".repeat(100));
    let cases: &[(&str, RequestRejected)] = &[
        ("\x16\x03\x01", RequestRejected::RequestLine),
        ("\r\n\r\nGET / HTTP/1.1\r\n", RequestRejected::RequestLine),
        (" GET / HTTP/1.1\r\n", RequestRejected::RequestLine),
        ("GET\r\n", RequestRejected::RequestLine),
        ("GET / FTP/1.1\r\n", RequestRejected::RequestLine),
        ("GET  / HTTP/1.1\r\n", RequestRejected::RequestLine),
        ("GET / HTTP/1.1 \r\n", RequestRejected::Version),
        ("G@T / HTTP/1.1\r\n", RequestRejected::RequestLine),
        ("GET /\r\n", RequestRejected::Version),
        ("GET / HTTP/2.0\r\n", RequestRejected::Version),
        ("GET / HTTP/1.11\r\n", RequestRejected::Version),
        ("GET /\t HTTP/1.1\r\n", RequestRejected::ControlByte),
        ("GET / HTTP/1.1\rHost: a\r\n", RequestRejected::ControlByte),
        ("GET x HTTP/1.1\r\n", RequestRejected::Target),
        ("GET * HTTP/1.1\r\n", RequestRejected::Target),
        ("GET /a#b HTTP/1.1\r\n", RequestRejected::Target),
        ("GET /\u{e9} HTTP/1.1\r\n", RequestRejected::Target),
        ("GET ftp://a/ HTTP/1.1\r\n", RequestRejected::Target),
        ("GET http:///x HTTP/1.1\r\n", RequestRejected::Target),
        ("GET http://u@a/x HTTP/1.1\r\n", RequestRejected::Target),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", RequestRejected::Connect),
        (&long, RequestRejected::HeadTooLarge),
        (&endless, RequestRejected::HeadTooLarge),
        (&many, RequestRejected::TooManyFields),
    ];
    for (text, expected) in cases {
        assert_eq!(refusal(text), Some(*expected), "{text:?}");
    }
}

#[test]
fn bad_fields_are_refused_by_name() {
    let cases: &[(&str, RequestRejected)] = &[
        ("", HostMissing),
        ("Host: a\r\nHost: a\r\n", HostRepeated),
        ("Host:\r\n", HostInvalid),
        ("Host: a b\r\n", HostInvalid),
        ("Host: a, b\r\n", HostInvalid),
        ("Host: u@a\r\n", HostInvalid),
        ("Host: a:b\r\n", HostInvalid),
        ("Host: a:80:80\r\n", HostInvalid),
        ("Host: a:65536\r\n", HostInvalid),
        ("Host: [::1\r\n", HostInvalid),
        ("Host: []\r\n", HostInvalid),
        ("Host : a\r\n", SpaceBeforeColon),
        ("Host\t: a\r\n", SpaceBeforeColon),
        (" Host: a\r\n", Folding),
        ("Host: a\r\nx: y\r\n z\r\n", Folding),
        ("Host: a\r\nx\r\n", HeaderName),
        ("Host: a\r\n: y\r\n", HeaderName),
        ("Host: a\r\nx(): y\r\n", HeaderName),
        ("Host: a\r\nx\u{e9}: y\r\n", HeaderName),
        ("Host: a\r\nx\0: y\r\n", ControlByte),
        ("Host: a\r\nx: \0\r\n", ControlByte),
        ("Host: a\r\nx: \x7f\r\n", ControlByte),
        ("Host: a\r\nx: a\rb\r\n", ControlByte),
        ("Host: a\r\nx: a\r\r\n", ControlByte),
        ("Host: a\nx: y\r\n", BareLf),
        ("Host: a\r\n\n", BareLf),
        ("Host: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n", LengthRepeated),
        ("Host: a\r\nContent-Length:\r\n", LengthInvalid),
        ("Host: a\r\nContent-Length: +5\r\n", LengthInvalid),
        ("Host: a\r\nContent-Length: -5\r\n", LengthInvalid),
        ("Host: a\r\nContent-Length: 5, 5\r\n", LengthInvalid),
        ("Host: a\r\nContent-Length: 5 5\r\n", LengthInvalid),
        ("Host: a\r\nContent-Length: 0x5\r\n", LengthInvalid),
        ("Host: a\r\nContent-Length: 5.0\r\n", LengthInvalid),
        ("Host: a\r\nContent-Length: \x0b5\r\n", ControlByte),
        ("Host: a\r\nContent-Length: 9223372036854775808\r\n", LengthInvalid),
        ("Host: a\r\nContent-Length: 99999999999999999999\r\n", LengthInvalid),
        ("Host: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n", LengthAndEncoding),
        ("Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n", LengthAndEncoding),
        ("Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Encoding),
        ("Host: a\r\nTransfer-Encoding: identity\r\n", Encoding),
        ("Host: a\r\nTransfer-Encoding:\r\n", Encoding),
        ("Host: a\r\nTransfer-Encoding: chunked, chunked\r\n", Encoding),
        ("Host: a\r\nTransfer-Encoding: gzip, chunked\r\n", Encoding),
        ("Host: a\r\nTransfer-Encoding: chunked;q=1\r\n", Encoding),
        ("Host: a\r\nTransfer-Encoding: \x0bchunked\r\n", ControlByte),
        ("Host: a\r\nTransfer-Encoding: \"chunked\"\r\n", Encoding),
        ("Host: a\r\nTransfer-Encoding: xchunked\r\n", Encoding),
    ];
    for (fields, expected) in cases {
        let text = format!("POST / HTTP/1.1\r\n{fields}\r\n");
        assert_eq!(refusal(&text), Some(*expected), "{fields:?}");
    }
    assert_eq!(refusal("GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n"), Some(HostMismatch));
    assert_eq!(refusal("GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n"), Some(HostMismatch));
    assert_eq!(refusal("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), Some(Encoding));
    assert_eq!(refusal("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"), Some(HostRepeated));
}

#[test]
fn bad_chunks_are_refused_by_name() {
    let extension = format!("1;{}\r\n", "x".repeat(5000));
    let extensions = format!("1;{}\r\na\r\n", "x".repeat(99)).repeat(50);
    let trailer = format!("0\r\nx: {}\r\n\r\n", "y".repeat(5000));
    let trailers = format!("0\r\n{}\r\n", "x: y\r\n".repeat(65));
    let cases: &[(&str, RequestRejected)] = &[
        ("\r\n", RequestRejected::ChunkSize),
        (";a\r\n", RequestRejected::ChunkSize),
        ("+5\r\n", RequestRejected::ChunkSize),
        ("-1\r\n", RequestRejected::ChunkSize),
        ("0x5\r\n", RequestRejected::ChunkSize),
        (" 5\r\n", RequestRejected::ChunkSize),
        ("5 \r\n", RequestRejected::ChunkSize),
        ("5 ;a\r\n", RequestRejected::ChunkSize),
        ("5\n", RequestRejected::ChunkSize),
        ("5\rx", RequestRejected::ChunkSize),
        ("g\r\n", RequestRejected::ChunkSize),
        ("00000000000000005\r\n", RequestRejected::ChunkSize),
        ("ffffffffffffffff\r\n", RequestRejected::ChunkSize),
        ("8000000000000000\r\n", RequestRejected::ChunkSize),
        ("1;a\nb\r\n", RequestRejected::ChunkExtension),
        ("1;a\0\r\n", RequestRejected::ChunkExtension),
        (&extension, RequestRejected::ChunkExtension),
        (&extensions, RequestRejected::ChunkExtension),
        ("1\r\nab\r\n", RequestRejected::ChunkEnd),
        ("1\r\na\n", RequestRejected::ChunkEnd),
        ("1\r\na\r0\r\n", RequestRejected::ChunkEnd),
        ("0\r\n\n", RequestRejected::Trailer),
        ("0\r\n x: y\r\n\r\n", RequestRejected::Trailer),
        ("0\r\nx : y\r\n\r\n", RequestRejected::Trailer),
        ("0\r\nx\r\n\r\n", RequestRejected::Trailer),
        ("0\r\nx: y\n\r\n", RequestRejected::Trailer),
        (&trailer, RequestRejected::Trailer),
        (&trailers, RequestRejected::Trailer),
    ];
    for (body, expected) in cases {
        let text = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        assert_eq!(refusal(&text), Some(*expected), "{body:?}");
    }
}

/// Parts of heads and chunked bodies, good and bad.
const TEXTS: &[&str] = &[
    "GET ",
    "POST ",
    "/",
    "/v1/x?a=b ",
    "http://a.test/",
    "HTTP/1.1",
    "HTTP/1.0",
    "\r\n",
    "\r\n\r\n",
    "\n",
    "\r",
    " ",
    "\t",
    ":",
    "Host: a.test\r\n",
    "host:a\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: ",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: ",
    "chunked",
    "5\r\nhello\r\n",
    "0\r\n\r\n",
    "a;b=c\r\n",
    "x-y: z\r\n",
    "\0",
    ",",
    "GET / HTTP/1.1\r\nHost: a\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\n",
];

/// Pieces of which heads and chunked bodies are made, good and bad.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::sample::select(TEXTS).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..12),
        1 => (1usize..3000).prop_map(|count| vec![b'y'; count]),
    ]
}

fn good_head() -> impl Strategy<Value = Vec<u8>> {
    let method = prop_oneof![Just("GET"), Just("POST"), Just("DELETE"), Just("M-SEARCH")];
    let target = prop_oneof![
        "/[a-zA-Z0-9/._~%&=?:@!$'()*+,;{}|-]{0,40}",
        "http://a\\.test(:80)?(/[a-z?&=]{0,20})?",
        "https://A\\.test(/|\\?q)",
    ];
    let field = "[!#$%&'*+.^_`|~a-zA-Z0-9-]{1,20}:[ \t]{0,2}[ -~\u{80}-\u{ff}\t]{0,30}";
    let fields = prop::collection::vec(field, 0..8);
    (method, target, fields).prop_map(|(method, target, fields)| {
        let mut text = format!("{method} {target} HTTP/1.1\r\nhOsT: a.test\r\n");
        for field in fields {
            let name = field.split(':').next().unwrap_or_default().to_ascii_lowercase();
            if !["host", "content-length", "transfer-encoding"].contains(&name.as_str()) {
                text.push_str(&field);
                text.push_str("\r\n");
            }
        }
        text.push_str("\r\n");
        text.into_bytes()
    })
}

/// Parses with the parsers that hyper uses; gives the head's length.
fn parse_as_hyper_does(bytes: &[u8]) -> Result<usize, String> {
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes).map_err(|e| e.to_string())? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Err("partial".to_owned()),
    };
    request.path.unwrap_or_default().parse::<http::Uri>().map_err(|e| e.to_string())?;
    for header in request.headers.iter() {
        http::HeaderName::from_bytes(header.name.as_bytes()).map_err(|e| e.to_string())?;
        http::HeaderValue::from_bytes(header.value).map_err(|e| e.to_string())?;
    }
    Ok(length)
}

proptest! {
    #[test]
    fn outcome_does_not_depend_on_the_split(
        pieces in prop::collection::vec(piece(), 0..24),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        let input = pieces.concat();
        let at_once = feed(&input, &[]);
        prop_assert_eq!(&feed(&input, &cuts), &at_once);
        let every_byte: Vec<usize> = (0..=input.len()).collect();
        prop_assert_eq!(feed(&input, &every_byte), at_once);
    }

    #[test]
    fn what_is_approved_is_what_hyper_parses(pieces in prop::collection::vec(piece(), 0..24)) {
        let input = pieces.concat();
        let outcome = feed(&input, &[]);
        if outcome.approved > 0 {
            let head = parse_as_hyper_does(&input);
            prop_assert!(head.as_ref().is_ok_and(|&length| length <= outcome.approved), "{head:?}");
        }
    }

    #[test]
    fn good_heads_pass_and_end_where_hyper_says(head in good_head()) {
        prop_assert_eq!(parse_as_hyper_does(&head), Ok(head.len()));
        prop_assert_eq!(feed(&head, &[]), Outcome { approved: head.len(), end: Ok(true) });
    }

    #[test]
    fn chunked_bodies_end_after_the_last_chunk(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..10),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let mut text = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in &chunks {
            text.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            text.extend_from_slice(chunk);
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"0\r\n\r\n");
        let length = text.len();
        text.extend_from_slice(b"0\r\n\r\n");
        prop_assert_eq!(feed(&text, &cuts), Outcome { approved: length, end: Ok(true) });
    }
}
