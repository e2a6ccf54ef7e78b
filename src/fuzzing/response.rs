//! Answers of engines: event streams, whole answers and metrics.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::de::IgnoredAny;

use crate::engines::{EngineKind, promtext};
use crate::protocol::api::Api;
use crate::protocol::response::answer::{AnswerVerdict, classify_answer};
use crate::protocol::response::stream::{ConnectionEnd, Forward, StreamClassifier, UsageVisibility};
use crate::protocol::sse::SseScanner;

const MAX_EVENT: usize = 4096;
const STATUSES: [StatusCode; 5] = [
    StatusCode::OK,
    StatusCode::BAD_REQUEST,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::SERVICE_UNAVAILABLE,
];

/// The frames of a stream.
#[derive(Debug, PartialEq)]
struct ScannedFrames {
    frames: Vec<Bytes>,
    /// Bytes left after the frames.
    leftover: usize,
    /// Whether a frame was too long.
    too_long: bool,
}

/// The frames of up to `limit` bytes of a stream that arrives in chunks of `size` bytes.
fn frames(bytes: &[u8], size: usize, limit: usize) -> ScannedFrames {
    let mut scanner = SseScanner::new(limit);
    let (mut frames, mut too_long) = (Vec::new(), false);
    for chunk in bytes.chunks(size) {
        scanner.push(Bytes::copy_from_slice(chunk));
        loop {
            match scanner.next_frame() {
                Ok(Some(frame)) => frames.push(frame.bytes().clone()),
                Ok(None) => break,
                Err(_) => {
                    too_long = true;
                    break;
                }
            }
        }
        if too_long {
            return ScannedFrames { frames, leftover: 0, too_long };
        }
    }
    frames.extend(scanner.finish().map(|frame| frame.bytes().clone()));
    ScannedFrames { frames, leftover: scanner.leftover(), too_long }
}

/// The frames do not depend on the chunks, and together they are the stream.
pub(super) fn sse(data: &[u8]) {
    for limit in [100, MAX_EVENT] {
        let whole = frames(data, data.len().max(1), limit);
        if !whole.too_long {
            let held: usize = whole.frames.iter().map(Bytes::len).sum();
            assert_eq!(held + whole.leftover, data.len());
            assert!(data.starts_with(&whole.frames.concat()));
        }
        for size in [1, 3, 64] {
            assert_eq!(frames(data, size, limit), whole, "chunks of {size} bytes, frames of {limit}");
        }
    }
}

/// What a client gets of a stream that arrives in chunks of `size` bytes, and the verdict.
fn relayed(api: Api, choice: usize, bytes: &[u8], size: usize) -> (Vec<u8>, String) {
    let usage = [UsageVisibility::Always, UsageVisibility::AtEnd, UsageVisibility::Never][choice % 3];
    let mut classifier = StreamClassifier::new(api, 1 + (choice % 2) as u32, Some("shown".to_owned()), usage);
    let mut scanner = SseScanner::new(MAX_EVENT);
    let mut out = Vec::new();
    for chunk in bytes.chunks(size) {
        scanner.push(Bytes::copy_from_slice(chunk));
        while let Ok(Some(frame)) = scanner.next_frame() {
            match classifier.classify(&frame).forward {
                Forward::AsIs => out.extend_from_slice(frame.bytes()),
                Forward::Replace(bytes) => out.extend_from_slice(&bytes),
                Forward::Drop => {}
            }
        }
    }
    let verdict = classifier.final_verdict(ConnectionEnd::Clean);
    (out, format!("{verdict:?} {:?} {}", classifier.usage(), classifier.outputs()))
}

/// The verdict on a stream, and what the client gets of it, do not depend on the chunks.
pub(super) fn stream(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let choice = usize::from(*choice);
    let api = Api::ALL[choice % Api::ALL.len()];
    // A frame that is too long ends a stream.
    if frames(bytes, bytes.len().max(1), MAX_EVENT).too_long {
        return;
    }
    let whole = relayed(api, choice, bytes, bytes.len().max(1));
    assert_eq!(relayed(api, choice, bytes, 5), whole);
}

/// A whole answer with any status. A JSON answer stays JSON.
pub(super) fn answer(data: &[u8]) {
    let Some((choice, body)) = data.split_first() else { return };
    let choice = usize::from(*choice);
    let api = Api::ALL[choice % Api::ALL.len()];
    let status = STATUSES[choice / Api::ALL.len() % STATUSES.len()];
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    let body = Bytes::copy_from_slice(body);
    let verdict = classify_answer(api, status, &headers, &body, Some("shown"));
    if let AnswerVerdict::Success { body: relayed, .. } = verdict
        && serde_json::from_slice::<IgnoredAny>(&body).is_ok()
    {
        assert!(serde_json::from_slice::<IgnoredAny>(&relayed.to_bytes()).is_ok(), "no JSON: {relayed:?}");
    }
}

/// The metrics of an engine of any kind.
pub(super) fn prometheus(data: &[u8]) {
    let count = promtext::count(data);
    assert!(count.samples + count.skipped <= 1 + data.iter().filter(|byte| **byte == b'\n').count() as u64);
    let text = String::from_utf8_lossy(data);
    for kind in EngineKind::ALL {
        let _ = kind.spec().gauges(&text);
    }
}
