//! One try at one replica, up to the point where the client may be told.

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::time::{Instant, timeout_at};

use crate::config::settings::{EngineKind, PoolEdge, Settings};
use crate::core::event::Fault;
use crate::core::ids::ReplicaId;
use crate::core::job::Usage;
use crate::proxy::order::Order;
use crate::proxy::record::{Place, Record};
use crate::proxy::stream::{EngineStream, Step};
use crate::proxy::upstream::{Call, Exchange, Sent, Upstreams};
use crate::wire::error::ApiError;
use crate::wire::judge::{Answer, EngineError, StreamJudge, judge_answer};
use crate::wire::splice::{Edits, Spliced, edit};

/// Bytes that may be held back before the first token; a stream that says
/// more without one is relayed.
const MAX_HELD_BYTES: usize = 1024 * 1024;

/// What came of a try.
#[derive(Debug)]
pub(super) enum Attempt {
    /// A stream whose first token is here; with its usage when it is whole.
    Stream(Box<EngineStream>, Option<Usage>),
    /// A whole answer.
    Answer(Parts, Spliced, Usage, Option<String>),
    /// The engine refuses the request for a reason that is the client's.
    Refused(ApiError),
    /// The engine failed; the client has seen nothing.
    Failed(Fault),
}

/// What stays the same over all tries of a request.
#[derive(Debug)]
pub(super) struct Tries<'a> {
    pub(super) upstreams: &'a Upstreams,
    pub(super) order: &'a Order,
    pub(super) headers: &'a HeaderMap,
}

impl Tries<'_> {
    /// Sends the request to the replica that `record.place` names.
    pub(super) async fn at(&self, settings: &Settings, place: Place, record: &mut Record) -> Attempt {
        let deadline = Instant::now() + settings.edge.upstream.first_token_timeout;
        let trying = self.send(settings, place, record);
        match timeout_at(deadline, Box::pin(trying)).await {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(EngineError::Fault(fault))) => Attempt::Failed(fault),
            Ok(Err(EngineError::Client(error))) => Attempt::Refused(error),
            Err(_late) => Attempt::Failed(Fault::Silent),
        }
    }

    async fn send(
        &self,
        settings: &Settings,
        place: Place,
        record: &mut Record,
    ) -> Result<Attempt, EngineError> {
        let gone = EngineError::Fault(Fault::Refused);
        let edge = &settings.edge;
        let (Some(pool), Some(replica)) = (edge.pools.get(place.pool), edge.replicas.get(place.replica)) else {
            return Err(gone);
        };
        let headers = self.headers_for(pool, record);
        let call = Call {
            method: Method::POST,
            path: self.order.api.upstream_path(),
            headers: &headers,
            body: self.body_for(pool),
        };
        let replica = self.upstreams.replica(place.replica, replica);
        let begun = Instant::now();
        let sent = replica.send(&call, &edge.upstream).await.map_err(|error| {
            tracing::debug!(replica = settings.policy.replicas.name(place.replica), %error, "upstream failed");
            EngineError::Fault(error.fault())
        })?;
        let Sent { exchange, connect } = sent;
        if let Some((from, to)) = connect {
            record.connect = Some(to - from);
            record.trace.phase("connect", from, to);
        }
        let attempt = if self.order.peek.stream && is_event_stream(&exchange) {
            self.first_token(exchange, settings.policy.models.name(self.order.model)).await?
        } else {
            self.whole(exchange, edge.requests.max_answer_bytes).await?
        };
        record.trace.phase("first_token", begun, Instant::now());
        Ok(attempt)
    }

    async fn first_token(&self, exchange: Exchange, _model: &str) -> Result<Attempt, EngineError> {
        let order = self.order;
        let judge = StreamJudge::new(order.api, order.peek.sequences(), self.shown_model(), self.strips_usage());
        let mut stream = Box::new(EngineStream::new(exchange, judge));
        loop {
            match poll_fn(|cx| stream.poll_step(cx)).await {
                Step::More if stream.has_token() || stream.held_bytes() > MAX_HELD_BYTES => {
                    return Ok(Attempt::Stream(stream, None));
                }
                Step::More => {}
                Step::Complete(usage) => return Ok(Attempt::Stream(stream, Some(usage))),
                Step::Failed(error) => return Err(error),
            }
        }
    }

    async fn whole(&self, mut exchange: Exchange, limit: u64) -> Result<Attempt, EngineError> {
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(data) = exchange.data().await {
            let data = data.map_err(|_| EngineError::Fault(Fault::Reset))?;
            if (first.len() + rest.len() + data.len()) as u64 > limit {
                return Err(EngineError::Fault(Fault::Malformed));
            }
            if first.is_empty() && rest.is_empty() {
                first = data;
                continue;
            }
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&data);
        }
        let body = if rest.is_empty() { first } else { rest.freeze() };
        todo!()
    }
}

fn is_event_stream(exchange: &Exchange) -> bool {
    let content_type = exchange.head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    exchange.head.status == StatusCode::OK
        && content_type.is_some_and(|value| value.starts_with("text/event-stream"))
}
