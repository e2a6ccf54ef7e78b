//! Trace context (W3C) of a request, read from and written to its headers.

use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Longest `traceparent`, of any version, that is parsed, in bytes.
const MAX_PARENT: usize = 256;
/// Longest `tracestate` that is passed on, in bytes over all its lines.
const MAX_STATE: usize = 8 * 1024;

/// Valid trace context of a client. The header values are kept unchanged.
#[derive(Debug, Clone)]
pub(super) struct ClientContext {
    parent: HeaderValue,
    state: Vec<HeaderValue>,
    trace_id: TraceId,
    span_id: SpanId,
    flags: TraceFlags,
}

impl ClientContext {
    /// Reads the trace context of a request. Returns `None` unless there is exactly one valid
    /// `traceparent`; `tracestate` is read only beside a valid parent.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
        let (trace_id, span_id, flags) = parse_parent(parent.to_str().ok()?)?;
        let mut state: Vec<_> = headers.get_all(TRACESTATE).iter().cloned().collect();
        if state.iter().map(HeaderValue::len).sum::<usize>() > MAX_STATE {
            state.clear();
        }
        Some(Self { parent: parent.clone(), state, trace_id, span_id, flags })
    }

    /// Converts the context to the parent of spans. A `tracestate` that does not parse is dropped.
    pub(super) fn as_parent(&self) -> SpanContext {
        let lines: Option<Vec<&str>> = self.state.iter().map(|line| line.to_str().ok()).collect();
        let state = lines.and_then(|lines| TraceState::from_str(&lines.join(",")).ok()).unwrap_or_default();
        SpanContext::new(self.trace_id, self.span_id, self.flags, true, state)
    }
}

/// Replaces any trace context in `headers` with the client's own.
pub(super) fn pass_through(client: Option<&ClientContext>, headers: &mut HeaderMap) {
    remove(headers);
    let Some(client) = client else { return };
    headers.insert(TRACEPARENT, client.parent.clone());
    for line in &client.state {
        headers.append(TRACESTATE, line.clone());
    }
}

/// Replaces any trace context in `headers` with `span` as the parent.
pub(super) fn inject(span: &SpanContext, headers: &mut HeaderMap) {
    remove(headers);
    let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags() & TraceFlags::SAMPLED);
    if let Ok(parent) = HeaderValue::try_from(format!("00-{trace}-{id}-{flags:02x}")) {
        headers.insert(TRACEPARENT, parent);
    }
    let state = span.trace_state().header();
    if let (false, Ok(state)) = (state.is_empty(), HeaderValue::try_from(state)) {
        headers.insert(TRACESTATE, state);
    }
}

fn remove(headers: &mut HeaderMap) {
    headers.remove(TRACEPARENT);
    headers.remove(TRACESTATE);
}

/// Parses `version-trace-parent-flags`, strictly as the W3C recommendation says: lower case, fixed
/// lengths, no zero ids. Version 00 has exactly four fields; a later version may have more.
fn parse_parent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    if text.len() > MAX_PARENT {
        return None;
    }
    let mut fields = text.split('-');
    let version = hex(fields.next()?, 2)?;
    let trace = TraceId::from_hex(hex(fields.next()?, 32)?).ok()?;
    let span = SpanId::from_hex(hex(fields.next()?, 16)?).ok()?;
    let flags = u8::from_str_radix(hex(fields.next()?, 2)?, 16).ok()?;
    let more = fields.next().is_some();
    let valid = version != "ff" && !(version == "00" && more);
    let named = trace != TraceId::INVALID && span != SpanId::INVALID;
    (valid && named).then_some((trace, span, TraceFlags::new(flags) & TraceFlags::SAMPLED))
}

fn hex(field: &str, digits: usize) -> Option<&str> {
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (field.len() == digits && field.bytes().all(lower)).then_some(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name, value);
        }
        map
    }

    #[test]
    fn only_valid_parents_count() {
        let good = [format!("00-{TRACE}-{SPAN}-01"), format!("cc-{TRACE}-{SPAN}-00-later")];
        for parent in good {
            assert!(ClientContext::of(&headers(&[("traceparent", &parent)])).is_some(), "{parent}");
        }
        let bad = [
            String::new(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-+1"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("cc-{TRACE}-{SPAN}-01-{}", "x".repeat(300)),
            format!("00-{TRACE}0-{SPAN}-01"),
        ];
        for parent in bad {
            assert!(ClientContext::of(&headers(&[("traceparent", &parent)])).is_none(), "{parent}");
        }
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let twice = headers(&[("traceparent", &parent), ("traceparent", &parent)]);
        assert!(ClientContext::of(&twice).is_none());
    }

    #[test]
    fn a_client_context_passes_through_unchanged() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let client = headers(&[("traceparent", &parent), ("tracestate", "a=1"), ("tracestate", "b=2")]);
        let context = ClientContext::of(&client).unwrap();
        assert_eq!(context.as_parent().trace_state().header(), "a=1,b=2");

        let mut upstream = headers(&[("traceparent", "junk"), ("tracestate", "junk=1"), ("accept", "x")]);
        pass_through(Some(&context), &mut upstream);
        let states: Vec<_> = upstream.get_all("tracestate").iter().collect();
        assert_eq!(states, ["a=1", "b=2"]);
        assert_eq!(upstream["traceparent"], parent);

        pass_through(None, &mut upstream);
        assert_eq!(upstream.len(), 1);
    }

    #[test]
    fn a_broken_tracestate_costs_only_itself() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let client = headers(&[("traceparent", &parent), ("tracestate", "no equals sign")]);
        let context = ClientContext::of(&client).unwrap().as_parent();
        assert!(context.is_valid() && context.is_sampled());
        assert_eq!(context.trace_state().header(), "");

        let huge = format!("a={}", "x".repeat(MAX_STATE));
        let client = headers(&[("traceparent", &parent), ("tracestate", &huge)]);
        let mut upstream = HeaderMap::new();
        pass_through(ClientContext::of(&client).as_ref(), &mut upstream);
        assert!(upstream.contains_key("traceparent") && !upstream.contains_key("tracestate"));
    }
}
