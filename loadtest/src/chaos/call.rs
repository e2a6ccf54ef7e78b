//! Chaos call: one request and all that its client can see of the answer.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::client::Connection;
use crate::target::Endpoint;

/// Bytes of an error that a report shows.
const MAX_SHOWN: usize = 160;

/// An answer as far as it came.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Absent when there was no answer at all.
    pub status: Option<u16>,
    /// The gateway's name for the request.
    pub request_id: Option<String>,
    /// What the model said.
    pub text: String,
    /// Why it stopped saying it.
    pub finish: Option<String>,
    /// Prompt and output tokens.
    pub usage: Option<(u64, u64)>,
    /// Since the request was to be sent.
    pub first_token: Option<Duration>,
    /// What is wrong with it; absent for a whole answer.
    pub fault: Option<String>,
    /// The fault came with advice: a refusal that says when to ask again, or an error event.
    pub announced: bool,
}

impl Answer {
    /// Whether the client had seen any of it.
    pub fn begun(&self) -> bool {
        self.first_token.is_some()
    }

    fn wrong(&mut self, fault: impl Into<String>) {
        self.fault.get_or_insert(fault.into());
    }

    /// Takes an event or a plain answer apart.
    fn take(&mut self, value: &Value) {
        if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
            let code = error["code"].as_str().or(error["type"].as_str()).unwrap_or("error");
            self.wrong(format!("error event: {code}"));
            self.announced = true;
        }
        for choice in value["choices"].as_array().into_iter().flatten() {
            let text = [&choice["text"], &choice["delta"]["content"], &choice["message"]["content"]];
            self.text.extend(text.into_iter().find_map(Value::as_str));
            self.finish = choice["finish_reason"].as_str().map(str::to_owned).or(self.finish.take());
        }
        let count = |name: &str| value["usage"][name].as_u64();
        self.usage = count("prompt_tokens").zip(count("completion_tokens")).or(self.usage);
    }
}

/// Sends a request on a connection of its own and reads its answer to the end,
/// or until `deadline`. Times count from `intended`.
pub async fn ask(
    endpoint: &Endpoint,
    request: Request<http_body_util::Full<Bytes>>,
    intended: Instant,
    deadline: Instant,
) -> Answer {
    let mut answer = Answer::default();
    if timeout_at(deadline, attempt(endpoint, request, intended, &mut answer)).await.is_err() {
        answer.wrong("timeout");
    }
    answer
}

async fn attempt(
    endpoint: &Endpoint,
    request: Request<http_body_util::Full<Bytes>>,
    intended: Instant,
    answer: &mut Answer,
) {
    let mut connection = match Connection::open(endpoint).await {
        Ok(connection) => connection,
        Err(error) => return answer.wrong(format!("no connection: {error}")),
    };
    let response = match connection.send(request).await {
        Ok(response) => response,
        Err(error) => return answer.wrong(format!("no answer: {error}")),
    };
    let (head, body) = response.into_parts();
    answer.status = Some(head.status.as_u16());
    let header = |name: &str| head.headers.get(name)?.to_str().ok().map(str::to_owned);
    answer.request_id = header("x-request-id");
    let repeatable = header("x-should-retry").is_some_and(|value| value == "true");
    answer.announced = !head.status.is_success() && (repeatable || header("retry-after").is_some());
    let is_stream = header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    if is_stream {
        read_stream(body, intended, answer).await;
    } else {
        read_whole(body, intended, answer).await;
    }
    if answer.finish.is_none() || answer.finish.as_deref() == Some("abort") {
        answer.wrong(format!("finish_reason {:?}", answer.finish));
    }
}

async fn read_whole(body: Incoming, intended: Instant, answer: &mut Answer) {
    let bytes = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return answer.wrong(format!("the answer broke: {error}")),
    };
    if answer.status != Some(200) {
        let text: String = String::from_utf8_lossy(&bytes).chars().take(MAX_SHOWN).collect();
        return answer.wrong(format!("status {}: {text}", answer.status.unwrap_or_default()));
    }
    match serde_json::from_slice(&bytes) {
        Ok(value) => answer.take(&value),
        Err(error) => answer.wrong(format!("no JSON: {error}")),
    }
    answer.first_token = Some(intended.elapsed());
}

async fn read_stream(mut body: Incoming, intended: Instant, answer: &mut Answer) {
    let (mut rest, mut done) = (Vec::new(), false);
    while let Some(frame) = body.frame().await {
        let data = match frame.map(hyper::body::Frame::into_data) {
            Ok(Ok(data)) => data,
            Ok(Err(_)) => continue,
            Err(error) => return answer.wrong(format!("the stream broke: {error}")),
        };
        rest.extend_from_slice(&data);
        while let Some(end) = memchr::memchr(b'\n', &rest) {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let Some(data) = line.strip_prefix(b"data: ").map(<[u8]>::trim_ascii_end) else { continue };
            if done {
                answer.wrong("an event after [DONE]");
            }
            done |= data == b"[DONE]";
            match serde_json::from_slice(data) {
                Ok(value) => answer.take(&value),
                Err(error) if !done => answer.wrong(format!("an event that is no JSON: {error}")),
                Err(_) => {}
            }
            if answer.first_token.is_none() && !(answer.text.is_empty() && answer.finish.is_none()) {
                answer.first_token = Some(intended.elapsed());
            }
        }
    }
    if !done {
        answer.wrong("no [DONE]");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_and_plain_answers_are_taken_apart() {
        let mut answer = Answer::default();
        answer.take(&json!({"choices": [{"delta": {"role": "assistant", "content": ""}}]}));
        answer.take(&json!({"choices": [{"delta": {"content": "a"}, "finish_reason": null}]}));
        answer.take(&json!({"choices": [{"text": "b", "finish_reason": "stop"}]}));
        answer.take(&json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}));
        assert_eq!((answer.text.as_str(), answer.finish.as_deref()), ("ab", Some("stop")));
        assert_eq!((answer.usage, &answer.fault), (Some((3, 2)), &None));
        answer.take(&json!({"error": {"code": "upstream_broken"}}));
        assert_eq!(answer.fault.as_deref(), Some("error event: upstream_broken"));
        assert!(answer.announced);
        let mut plain = Answer::default();
        plain.take(&json!({"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}));
        assert_eq!(plain.text, "x");
    }
}
