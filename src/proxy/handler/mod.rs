//! Request handler: the steps of one request, in order.

use std::convert::Infallible;
use std::sync::Arc;

use http::header::HeaderValue;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use smallvec::SmallVec;

use crate::auth::client::ConnectedClient;
use crate::auth::{Identity, PresentedCredential};
use crate::config::settings::Settings;
use crate::core::model::event::{Event, RejectReason, Rejection};
use crate::core::model::job::{JobSpec, JobUsage};
use crate::protocol::api::{Api, Dialect};
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::headers;
use crate::protocol::ids::random;
use crate::protocol::ids::request_id;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::protocol::route::{Route, route};
use crate::proxy::body::{self, BodyError, BodyReservation};
pub use crate::proxy::data_plane::Proxy;
use crate::proxy::relay::continuation::{self, Continuation};
pub(super) use crate::proxy::request::checked::CheckedRequest;
use crate::proxy::request::session;
pub(super) use crate::proxy::request::superseding::replaced;
use crate::proxy::request::superseding::{RetriableRequest, SupersededRequest};
use crate::proxy::request::{self, InferenceRequest};
use crate::proxy::response::body::AnswerBody;
pub(super) use crate::proxy::response::client_answer::ClientAnswer;
use crate::proxy::response::error_response;
pub(super) use crate::proxy::response::served::ServedRequest;
use crate::proxy::summary::RequestRecord;
use crate::proxy::summary::active::ActiveRequest;
use crate::telemetry::event::RequestOutcome;
use crate::telemetry::request_history::RequestTrail;
use crate::telemetry::trace::TraceStart;
use crate::telemetry::wall;
use crate::tokens::CountSource;

mod attempts;

/// Reason why a request got no answer from its model.
#[derive(Debug)]
pub(super) enum ServeError {
    /// The client's request is the reason, as for `AttemptResult::Refused`.
    Refused(ApiError),
    /// The scheduler rejected the job.
    Rejected(Rejection),
}

impl Proxy {
    /// Answers one request. hyper drops the future when the client leaves.
    ///
    /// # Errors
    /// None: every failure is an answer.
    pub async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: &ConnectedClient,
    ) -> Result<Response<AnswerBody>, Infallible> {
        let id = request_id::from_client(request.headers())
            .unwrap_or_else(|| request_id::from_random(random::buffered_bytes()));
        let path = request.uri().path();
        let answer = match route(request.method(), path) {
            Route::Api(api) => return Ok(self.call(api, request, peer, id).await),
            Route::Models => self.list_models(request.headers(), peer).await,
            Route::Model(name) => self.one_model(request.headers(), peer, &name).await,
            Route::Health => self.health(),
            Route::WrongMethod { allow } => Err(ApiError::method_not_allowed(allow)),
            Route::NotFound { hint } => Err(ApiError::not_found(path, hint)),
        };
        let dialect = Api::from_path(path).map_or(Dialect::OpenAi, Api::dialect);
        let mut answer = answer.unwrap_or_else(|error| error.into_response(dialect, &id));
        answer.headers_mut().insert(crate::protocol::headers::X_REQUEST_ID, id);
        Ok(answer.map(AnswerBody::from))
    }

    /// Authenticates the caller.
    pub(super) async fn identify(
        &self,
        settings: &Settings,
        headers: &HeaderMap,
        peer: &ConnectedClient,
    ) -> Result<Identity, ApiError> {
        let caller = PresentedCredential { headers, peer, now: self.dispatcher.clock().now() };
        self.authenticator.identify(&settings.edge.auth, caller, &self.telemetry).await
    }

    async fn call(
        self: &Arc<Self>,
        api: Api,
        request: Request<Incoming>,
        peer: &ConnectedClient,
        id: HeaderValue,
    ) -> Response<AnswerBody> {
        let record = RequestRecord::new(&self.telemetry, self.dispatcher.clock(), id, api);
        let mut active = ActiveRequest::new(record);
        active.record.journal.clone_from(&self.journal);
        let taken = tokio::select! {
            biased;
            taken = Box::pin(self.receive(api, request, peer, &mut active.record)) => taken,
            () = self.dispatcher.shutdown().expired() => Err(ApiError::from(RejectReason::Draining)),
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => return error_response(error, &mut active.record),
        };
        let early = self.early_head(&taken, &mut active.record);
        let serving = Box::pin(Arc::clone(self).serve(taken, active));
        match early {
            None => self.respond(serving.await),
            Some(early) => self.respond_early(serving, early).await,
        }
    }

    /// Reads and checks a request, up to the point where it may be queued.
    async fn receive(
        &self,
        api: Api,
        request: Request<Incoming>,
        peer: &ConnectedClient,
        record: &mut RequestRecord,
    ) -> Result<CheckedRequest, ApiError> {
        let settings = self.settings.load_full();
        let (parts, body) = request.into_parts();
        let identity = self.identify(&settings, &parts.headers, peer).await?;
        record.identity = Some(identity.clone());
        if self.dispatcher.shutdown().is_draining() {
            return Err(ApiError::from(RejectReason::Draining));
        }
        let patience = settings.startup.door.body_timeout;
        let held = self.bodies.hold(identity.tenant);
        let read = body::read(body, &settings.edge.requests, patience, held).await;
        let (body, held) = read.map_err(|unread| not_read(unread, record))?;
        let now = record.clock.now();
        let at = (self.dispatcher.next_job_id(), now);
        let mut order = request::read(&settings, &identity, api, &parts.headers, body, at)?;
        order.spec.session = session::of(&settings, &self.prefixes, &parts.headers, &order);
        order.spec.fingerprint = self.prefixes.fingerprint(&order.spec, api, &order.body);
        self.note_order(&order, &parts.headers, record);
        self.check_context(&settings, &mut order, &parts.headers, record).await?;
        self.register_retry(&mut order, &parts.headers, record);
        let headers = headers::upstream_headers(&parts.headers);
        let is_retry = headers::retry_count(&parts.headers).is_some_and(|count| count > 0);
        Ok(CheckedRequest { settings, order, headers, held, is_retry })
    }

    /// Queues and dispatches a checked request, up to the point where the client may be answered.
    async fn serve(self: Arc<Self>, taken: CheckedRequest, mut request: ActiveRequest) -> ServedRequest {
        let CheckedRequest { settings, mut order, headers, held, is_retry } = taken;
        let notice = request.record.notice().map(Arc::clone);
        let answered = tokio::select! {
            biased;
            () = replaced(notice) => Err(request.record.superseded()),
            answered = self.serve_with_fallback(&mut order, &headers, &held, settings, &mut request) => answered,
            () = self.dispatcher.shutdown().expired() => Err(ApiError::from(RejectReason::Draining)),
        };
        let (answered, can_go_on) = match answered {
            Ok(answered) => answered,
            Err(error) => return ServedRequest { answered: Err(error), request },
        };
        if !is_retry {
            self.copy(&order, &headers, &held, &mut request.record);
        }
        let continuation = can_go_on.then(|| Continuation { proxy: self, order, headers, held });
        ServedRequest { answered: Ok((answered, continuation)), request }
    }

    /// Registers a request that carries a retry count, so that a retry can supersede it. A retry
    /// ends the request that it repeats at once, and takes over its arrival time.
    fn register_retry(&self, order: &mut InferenceRequest, client: &HeaderMap, record: &mut RequestRecord) {
        // The boundary of a multipart form differs in each retry, so equal bodies look different.
        let Some(count) = headers::retry_count(client).filter(|_| !order.api.is_multipart()) else { return };
        let spec = &mut order.spec;
        let (seat, original) = self.retries.enter(RetriableRequest {
            tenant: spec.tenant,
            key_id: record.identity.as_ref().and_then(|identity| identity.key_id.as_deref()),
            api: order.api,
            body: &order.body,
            count,
            job: spec.id,
            arrived: spec.arrived,
            request_id: &record.request_id,
        });
        record.retry.live_guard = Some(seat);
        if let Some(SupersededRequest { job, arrived, request_id }) = original {
            self.dispatcher.event(Event::ClientLeft { job, usage: JobUsage::Unknown });
            spec.arrived = arrived;
            record.retry.replaces = Some(request_id);
        }
    }

    fn note_order(&self, order: &InferenceRequest, client: &HeaderMap, record: &mut RequestRecord) {
        record.work.class = Some(order.spec.class);
        record.work.model = Some(order.spec.model);
        record.work.requested_model.clone_from(&order.parsed.model);
        record.work.stream = order.parsed.stream;
        record.trail = Some(self.telemetry.history().begin(RequestTrail {
            request_id: record.request_id.clone(),
            job: order.spec.id,
            came: wall::now(),
            tenant: order.spec.tenant,
            class: order.spec.class,
            model: order.spec.model,
            fallback: None,
            api: order.api.upstream_path(),
            stream: order.parsed.stream,
            prompt_tokens: order.spec.prompt_tokens,
            prompt_source: CountSource::Estimate,
            tries: SmallVec::new(),
            forgotten_tries: 0,
            end: None,
        }));
        let policy = self.telemetry.policy();
        record.trace = Some(self.telemetry.tracer().start(TraceStart {
            headers: client,
            operation: order.api.operation_name(),
            model: Some(policy.models.name(order.spec.model)),
            arrived: record.started,
            now: record.clock.now(),
        }));
    }

    /// Has the request served by its model, or else by its fallback models in order. Also returns
    /// whether another replica could continue the answer.
    async fn serve_with_fallback(
        &self,
        order: &mut InferenceRequest,
        headers: &HeaderMap,
        held: &BodyReservation,
        mut settings: Arc<Settings>,
        request: &mut ActiveRequest,
    ) -> Result<(ClientAnswer, bool), ApiError> {
        loop {
            let can_go_on = continuation::is_possible(&settings, order, held);
            order.spec.resumable = can_go_on;
            let InferenceRequest { spec, parsed, body, .. } = &*order;
            let prefix = self.prefixes.prefix(spec.model, parsed, body, spec.prompt_tokens);
            request.admitted(self.dispatcher.admit(*spec, prefix, &settings.policy));
            order.asking = None;
            drop(settings);
            let nothing = can_go_on.then(PartialAnswer::default);
            match self.attempt_until_answered(order, headers, nothing.as_ref(), request).await {
                Ok(answered) => return Ok((answered, can_go_on)),
                Err(ServeError::Refused(error)) => return Err(error),
                Err(ServeError::Rejected(why)) => {
                    settings = self.settings.load_full();
                    let record = &mut request.record;
                    if !self.try_fallback(&settings, order, why.reason, headers, record).await {
                        return Err(match why.reason {
                            RejectReason::TooManySequences { most } => order.parsed.too_many_sequences(most),
                            _ => reject(why, &order.spec, record),
                        });
                    }
                }
            }
        }
    }
}

/// The error for a body that could not be read. A client that breaks off its body counts as gone,
/// whatever answer it still gets.
fn not_read(unread: BodyError, record: &mut RequestRecord) -> ApiError {
    match unread {
        BodyError::Refused(error) => error,
        BodyError::BrokeOff => {
            record.ended(RequestOutcome::ClientGone, "body_cut_short");
            ApiError::new(ErrorKind::BadBody, "The request body broke off before its end.")
        }
    }
}

/// The error for a rejection. A wait that ran out is an error of its class's deadline, unless the
/// client stated the deadline itself.
fn reject(rejection: Rejection, spec: &JobSpec, record: &mut RequestRecord) -> ApiError {
    if record.at_engine.attempts > 0 {
        record.end.usage.get_or_insert(JobUsage::Unknown);
    }
    if let RejectReason::Limited(why) = rejection.reason {
        record.met(why.rule);
    }
    let outcome = match rejection.reason {
        RejectReason::AttemptsExhausted(_) => RequestOutcome::Failed,
        _ => RequestOutcome::Rejected,
    };
    record.ended(outcome, rejection.reason.name());
    let named = spec.deadline >= spec.patience || record.clock.now() >= spec.patience;
    match rejection.reason {
        RejectReason::DeadlineExceeded | RejectReason::Unmeetable if !named => {
            ApiError::max_wait_reached(rejection.retry_after)
        }
        _ => ApiError::from(rejection),
    }
}

#[cfg(test)]
mod tests;
