//! One request, from top to bottom.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::config::settings::Settings;
use crate::core::event::{Outcome, RejectReason};
use crate::core::job::Usage;
use crate::proxy::attempt::{Attempt, Tries};
use crate::proxy::auth::{self, Identity};
use crate::proxy::body::AnswerBody;
use crate::proxy::gate::{Gate, Placement, Ticket};
use crate::proxy::grace::Grace;
use crate::proxy::intake::{self, BodyBudget};
use crate::proxy::models::{self, Windows};
use crate::proxy::order::{self, Order};
use crate::proxy::record::{Place, Record};
use crate::proxy::relay::Relay;
use crate::proxy::upstream::Upstreams;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{RequestOutcome, RequestRequeued};
use crate::telemetry::trace::{Phase, TraceStart};
use crate::wire::api::{Api, Dialect};
use crate::wire::catalogue::Kind;
use crate::wire::error::ApiError;
use crate::wire::headers;
use crate::wire::route::{Route, route};
use crate::wire::{random, request_id};

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// When a client may come back that found the gateway draining.
const DRAIN_RETRY: Duration = Duration::from_secs(1);

/// The data plane: everything that requests share.
#[derive(derive_more::Debug)]
pub struct Proxy {
    /// The scheduler's door.
    pub gate: Arc<Gate>,
    /// The rules in force.
    pub settings: Arc<ArcSwap<Settings>>,
    /// Connections to engines.
    pub upstreams: Upstreams,
    /// Bodies held.
    pub bodies: Arc<BodyBudget>,
    /// Where events go.
    pub telemetry: Telemetry,
    /// What the engines say of their context windows.
    pub windows: Windows,
    /// How far the shutdown has come.
    pub grace: Grace,
}

/// An error and how its client wants to read it.
type Refusal = ApiError;

impl Proxy {
    /// Answers one request. Dropping the future is how a client leaves.
    ///
    /// # Errors
    /// None: every failure is an answer.
    pub async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, Infallible> {
        let request_id = request_id::from_client(request.headers())
            .unwrap_or_else(|| request_id::from_random(random::bytes()));
        let path = request.uri().path().to_owned();
        Ok(match route(request.method(), &path) {
            Route::Api(api) => self.call(api, request, request_id).await,
            other => self.small(&other, &request, &path, &request_id),
        })
    }
}
