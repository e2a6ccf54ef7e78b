//! Multipart parser: finds the few text fields of a `multipart/form-data` body in place. The body
//! is complete, so the parser only searches for delimiters.

use std::ops::Range;

use memchr::memmem::Finder;
use smallvec::SmallVec;

use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::request::parsed::{BodyForm, EditSpans, ParsedRequest};
use crate::protocol::request::steering;

/// With the model, which the gateway writes into a form that has none.
const MAX_PARTS: usize = 64;
const MAX_PART_HEADERS: usize = 8 * 1024;
const MAX_BOUNDARY: usize = 200;
const MAX_TEXT: usize = 1024;
const TOO_MANY_PARTS: &str = "it has too many parts";

/// Reads the model, the stream flag and the prompt from a form, with the byte range of the model.
pub(crate) fn parse_form(api: Api, content_type: &[u8], body: &[u8]) -> Result<ParsedRequest, ApiError> {
    let Some(boundary) = boundary(content_type) else {
        let fix = "Send the header `Content-Type: multipart/form-data; boundary=...` and a form body.";
        return Err(ApiError::new(ErrorKind::UnsupportedMediaType, fix));
    };
    let (first, parts) = parts(boundary.as_bytes(), body)?;
    let mut parsed = ParsedRequest::empty(api);
    let mut spans = EditSpans { insert_at: first, ..EditSpans::default() };
    let mut stream = None;
    let count = parts.len();
    for part in parts {
        match part.name {
            b"model" => {
                parsed.model = text(body, &part, "model")?.filter(|name| !name.is_empty());
                set_once(&mut spans.model, part.content, "model")?;
            }
            b"stream" => {
                let text = text(body, &part, "stream")?.unwrap_or_default();
                set_once(&mut stream, flag(&text)?, "stream")?;
            }
            b"prompt" => parsed.prompt.values.push(part.content),
            b"file" => {}
            _ => refuse_steering(api, body, &part)?,
        }
    }
    if spans.model.is_none() && count == MAX_PARTS {
        return Err(bad(TOO_MANY_PARTS));
    }
    parsed.stream = stream.unwrap_or(false);
    spans.form = BodyForm::Multipart { boundary };
    parsed.spans = spans;
    Ok(parsed)
}

/// Refuses a field by which a form could steer an engine.
fn refuse_steering(api: Api, body: &[u8], part: &FormPart<'_>) -> Result<(), ApiError> {
    let value = body.get(part.content.clone()).unwrap_or_default();
    let texts = std::str::from_utf8(part.name).ok().zip(std::str::from_utf8(value).ok());
    match texts.and_then(|(name, value)| steering::refusal(api, name, value.trim())) {
        Some(field) => Err(ApiError::invalid_field(field.name, field.advice)),
        None => Ok(()),
    }
}

struct FormPart<'a> {
    name: &'a [u8],
    content: Range<usize>,
}

/// The start of the first delimiter, and the parts.
fn parts<'a>(boundary: &[u8], body: &'a [u8]) -> Result<(usize, SmallVec<[FormPart<'a>; 8]>), ApiError> {
    let delimiter = [b"\r\n--", boundary].concat();
    let finder = Finder::new(&delimiter);
    let first = if body.starts_with(&delimiter[2..]) { Some(0) } else { finder.find(body).map(|at| at + 2) };
    let first = first.ok_or_else(|| bad("its boundary does not occur in the body"))?;
    let mut at = first + delimiter.len() - 2;
    let mut parts = SmallVec::new();
    while !body[at..].starts_with(b"--") {
        if parts.len() == MAX_PARTS {
            return Err(bad(TOO_MANY_PARTS));
        }
        // The line end of the delimiter may also start the empty line of a part that has no
        // headers.
        let headers = at + body[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let window = &body[headers..body.len().min(headers + MAX_PART_HEADERS)];
        let length = memchr::memmem::find(window, b"\r\n\r\n")
            .ok_or_else(|| bad("a part has no end of its headers"))?;
        let start = headers + length + 4;
        // Some parsers take this for the end of the part, others for its first bytes.
        if body[start..].starts_with(&delimiter[2..]) {
            return Err(bad("a part ends before its content; an empty part has an empty line"));
        }
        let end = start + finder.find(&body[start..]).ok_or_else(|| bad("a part has no end"))?;
        let name = field_name(&body[headers..headers + length])
            .map_err(|RepeatedName| bad("a part has two names"))?
            .unwrap_or_default();
        parts.push(FormPart { name, content: start..end });
        at = end + delimiter.len();
    }
    Ok((first, parts))
}

fn bad(what: &str) -> ApiError {
    ApiError::new(ErrorKind::BadBody, format!("The form cannot be read: {what}. Send multipart/form-data."))
}

fn set_once<T>(slot: &mut Option<T>, value: T, field: &'static str) -> Result<(), ApiError> {
    match slot.replace(value) {
        Some(_) => Err(ApiError::invalid_field(field, "is given twice. Send it once.")),
        None => Ok(()),
    }
}

fn text(body: &[u8], part: &FormPart<'_>, field: &'static str) -> Result<Option<String>, ApiError> {
    let bytes = body.get(part.content.clone()).filter(|bytes| bytes.len() <= MAX_TEXT);
    let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.map(|text| Some(text.to_owned()))
        .ok_or_else(|| ApiError::invalid_field(field, "must be short UTF-8 text."))
}

fn flag(text: &str) -> Result<bool, ApiError> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" => Ok(true),
        "false" | "0" | "off" | "no" | "" => Ok(false),
        _ => Err(ApiError::invalid_field("stream", "must be true or false.")),
    }
}

/// The `boundary` parameter of a form's content type.
fn boundary(content_type: &[u8]) -> Option<String> {
    let mut pieces = content_type.splitn(2, |byte| *byte == b';');
    if !pieces.next()?.trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
        return None;
    }
    let value = std::str::from_utf8(parameter(pieces.next()?, b"boundary").ok()??).ok()?;
    (1..=MAX_BOUNDARY).contains(&value.len()).then(|| value.to_owned())
}

/// The error of a name that is given twice. Parsers differ in which of the two they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RepeatedName;

/// The `name` of a part, from its `Content-Disposition`.
///
/// # Errors
/// The part has two of these headers, or the header has two names. The engine might take the other
/// name.
fn field_name(headers: &[u8]) -> Result<Option<&[u8]>, RepeatedName> {
    const NAME: &[u8] = b"content-disposition:";
    let lines = headers.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut found = lines
        .filter_map(|line| line.split_at_checked(NAME.len()))
        .filter_map(|(start, rest)| start.eq_ignore_ascii_case(NAME).then_some(rest));
    let (first, second) = (found.next(), found.next());
    if second.is_some() {
        return Err(RepeatedName);
    }
    let parameters = first.and_then(|rest| Some(&rest[memchr::memchr(b';', rest)? + 1..]));
    parameters.map_or(Ok(None), |rest| parameter(rest, b"name"))
}

/// The value of one parameter of `a=b; c="d"`, without its quotes. Absent when the text up to the
/// parameter does not have this form.
///
/// # Errors
/// The parameter is given twice, or also as `name*`.
fn parameter<'a>(mut rest: &'a [u8], wanted: &[u8]) -> Result<Option<&'a [u8]>, RepeatedName> {
    let mut found = None;
    while let Some((name, value, next)) = first_parameter(rest) {
        let name = name.strip_suffix(b"*").unwrap_or(name);
        if name.eq_ignore_ascii_case(wanted) && found.replace(value).is_some() {
            return Err(RepeatedName);
        }
        let Some(semicolon) = memchr::memchr(b';', next) else { break };
        rest = &next[semicolon + 1..];
    }
    Ok(found)
}

/// The name and value of the first parameter, and the text after them.
fn first_parameter(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let equals = memchr::memchr(b'=', text)?;
    let after = text[equals + 1..].trim_ascii_start();
    let (value, next) = match after.strip_prefix(b"\"") {
        Some(quoted) => {
            let end = closing_quote(quoted)?;
            (&quoted[..end], &quoted[end + 1..])
        }
        None => after.split_at(memchr::memchr(b';', after).unwrap_or(after.len())),
    };
    Some((text[..equals].trim_ascii(), value.trim_ascii(), next))
}

fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    text.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TYPE: &[u8] = b"multipart/form-data; charset=utf-8; boundary=\"b0 -x\"";

    fn form(parts: &[(&str, &str)]) -> String {
        let mut body = String::from("preamble\r\n");
        for (headers, content) in parts {
            body.push_str(&format!("--b0 -x \r\n{headers}\r\n\r\n{content}\r\n"));
        }
        body + "--b0 -x--\r\n"
    }

    fn read(body: &str) -> Result<ParsedRequest, ApiError> {
        super::parse_form(Api::Transcriptions, TYPE, body.as_bytes())
    }

    #[test]
    fn model_and_stream_are_found() {
        let file = "Content-Disposition: form-data; name=\"file\"; filename=\"name=\\\"model\\\".wav\"\r\nContent-Type: audio/wav";
        let body = form(&[
            (file, "RIFF\r\n--b0\r\n\r\nmodel"),
            ("content-disposition:form-data;name=model", "whisper"),
            ("Content-Disposition: form-data; name=\"stream\"", "True"),
            ("Content-Disposition: form-data; name=\"prompt\"", "be brief"),
        ]);
        let parsed = read(&body).unwrap();
        assert_eq!((parsed.model.as_deref(), parsed.stream), (Some("whisper"), true));
        assert_eq!(&body[parsed.spans.model.clone().unwrap()], "whisper");
        assert_eq!(parsed.prompt_pieces(body.as_bytes()).collect::<Vec<_>>(), [b"be brief"]);
        assert_eq!(&body[parsed.spans.insert_at..][..8], "--b0 -x ");
    }

    #[test]
    fn odd_forms_are_refused() {
        let model = "Content-Disposition: form-data; name=\"model\"";
        let stream = "Content-Disposition: form-data; name=\"stream\"";
        let many: Vec<_> = (0..64).map(|_| ("A: b", "")).collect();
        let cases = [
            (form(&[(model, "a"), (model, "b")]), "`model` is given twice"),
            (form(&[(model, &"a".repeat(2000))]), "`model` must be short"),
            (form(&[(stream, "maybe")]), "`stream` must be"),
            (form(&[("Content-Disposition: form-data; name=\"x\"; name=\"model\"", "a")]), "two names"),
            (form(&[("Content-Disposition: form-data; name=x; NAME = model", "a")]), "two names"),
            (form(&[("Content-Disposition: form-data; name=\"x\"; name*=utf-8''model", "a")]), "two names"),
            (form(&[(&format!("{stream}\r\n{model}"), "a")]), "two names"),
            (form(&many), "too many parts"),
            (form(&[&many[..], &[(model, "a")]].concat()), "too many parts"),
            (format!("--b0 -x\r\n{model}\r\n\r\n--b0 -x--\r\n"), "ends before its content"),
            ("nothing".to_owned(), "boundary does not occur"),
            (format!("--b0 -x\r\n{model}\r\n\r\nabc"), "no end"),
            (format!("--b0 -x\r\n{model}"), "no end of its headers"),
        ];
        for (body, message) in cases {
            let error = read(&body).unwrap_err();
            assert!(error.message().contains(message), "{error}");
        }
        for wrong in [
            &b"multipart/form-data"[..],
            b"text/plain; boundary=x",
            b"multipart/form-data; boundary=",
            b"",
            b"multipart/form-data; boundary=x; boundary=y",
            b"multipart/form-data; boundary=x; Boundary=\"x\"",
        ] {
            let error = super::parse_form(Api::Transcriptions, wrong, b"--x--").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnsupportedMediaType);
        }
        assert_eq!(read("--b0 -x--").unwrap().model, None);
        assert!(read(&form(&many[1..])).is_ok(), "63 parts, and room for the model");
        assert!(read(&form(&[&many[1..], &[(model, "a")]].concat())).is_ok(), "64 parts with the model");
    }

    #[test]
    fn a_form_steers_no_engine() {
        let field = |name: &str, value: &str| {
            let head = format!("Content-Disposition: form-data; name=\"{name}\"");
            form(&[(head.as_str(), value)])
        };
        let refused = |name, value| read(&field(name, value)).unwrap_err().param().map(str::to_owned);
        assert_eq!(refused("request_id", "of-another").as_deref(), Some("request_id"));
        let xargs = r#" {"kv_transfer_params": "x"} "#;
        assert_eq!(refused("vllm_xargs", xargs).as_deref(), Some("kv_transfer_params"));
        for (name, value) in [("language", "en"), ("vllm_xargs", r#"{"beams": 2}"#), ("file", "rid")] {
            assert!(read(&field(name, value)).is_ok(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(pieces in prop::collection::vec(prop_oneof![
            Just(&b"--b"[..]), Just(&b"\r\n"[..]), Just(&b"--"[..]), Just(&b" "[..]), Just(&b"\r\n\r\n"[..]),
            Just(&b"Content-Disposition: form-data; name=\"model\""[..]), Just(&b"x\xff"[..]), Just(&b"\r\n--b"[..]),
        ], 0..30)) {
            let _ = super::parse_form(Api::Transcriptions, b"multipart/form-data; boundary=b", &pieces.concat());
        }

        #[test]
        fn any_header_is_read(header in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = field_name(&[b"Content-Disposition:", &header[..]].concat());
            let _ = boundary(&[b"multipart/form-data;", &header[..]].concat());
        }
    }
}
