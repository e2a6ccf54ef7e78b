//! Requests of clients: JSON bodies and forms, and the edits of them.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use serde::de::IgnoredAny;

use crate::protocol::api::Api;
use crate::protocol::request::edit::{RequestEdits, edit};
use crate::protocol::request::parse::{ParsedRequest, parse_request};

const BOUNDARY: &str = "multipart/form-data; boundary=x";

fn parse(api: Api, body: &[u8]) -> Option<ParsedRequest> {
    let content_type = if api.is_multipart() { BOUNDARY } else { "application/json" };
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
    parse_request(api, &headers, body).ok()
}

/// Without edits a body stays as it is. With edits it is still a request, with the new values.
fn check_edits(api: Api, body: &[u8], parsed: &ParsedRequest) {
    assert!(
        parsed.prompt_pieces(body).map(<[u8]>::len).sum::<usize>() <= body.len() * parsed.prompt.values.len()
    );
    let bytes = Bytes::copy_from_slice(body);
    assert_eq!(edit(&bytes, parsed, &RequestEdits::default()).to_bytes(), bytes);
    let edits = RequestEdits {
        model: Some("an\"other"),
        include_usage: true,
        priority: Some(-7),
        cache_salt: Some("salt"),
        ..RequestEdits::default()
    };
    let edited = edit(&bytes, parsed, &edits).to_bytes();
    let again = parse(api, &edited).unwrap_or_else(|| panic!("no request: {edited:?}"));
    assert_eq!(again.model.as_deref(), edits.model);
    assert_eq!(again.stream, parsed.stream);
    assert_eq!(again.prompt.values.len(), parsed.prompt.values.len());
}

/// A JSON body. What is accepted is JSON for any other parser, too.
pub(super) fn json(data: &[u8]) {
    let Some((choice, body)) = data.split_first() else { return };
    let choice = usize::from(*choice);
    let api = Api::ALL[choice % Api::ALL.len()];
    if api.is_multipart() {
        return;
    }
    if let Some(parsed) = parse(api, body) {
        assert!(serde_json::from_slice::<IgnoredAny>(body).is_ok(), "accepted, but no JSON");
        check_edits(api, body, &parsed);
    }
}

/// A form with the boundary `x`.
pub(super) fn multipart(data: &[u8]) {
    if let Some(parsed) = parse(Api::Transcriptions, data) {
        check_edits(Api::Transcriptions, data, &parsed);
    }
}
