//! Request handler: the steps of one request, in order.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use smallvec::SmallVec;
use tokio::task::spawn_blocking;

use crate::auth::{ConnectedClient, Identity, PresentedCredential};
use crate::config::settings::{ProxyHeader, Settings};
use crate::core::model::event::{Event, RejectReason, Rejection};
use crate::core::model::ids::JobId;
use crate::core::model::job::JobUsage;
use crate::core::model::time::Tick;
use crate::protocol::api::{Api, Dialect};
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::headers;
use crate::protocol::ids::random;
use crate::protocol::ids::request_id::AssignedIds;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::protocol::route::{Route, route};
use crate::proxy::Proxy;
use crate::proxy::active_request::ActiveRequest;
use crate::proxy::attempt::EngineAnswer;
use crate::proxy::body::{self, BodyError, RequestBody};
use crate::proxy::listener::ClientConnection;
use crate::proxy::listener::workers::turn::{self, Step};
use crate::proxy::request::guardrail::{check_answer, check_prompt};
use crate::proxy::request::superseding::{RetriableRequest, SupersededRequest, replaced};
use crate::proxy::request::{self, InferenceRequest};
pub use crate::proxy::response::caller_status::cache::CallerStatusCache;
use crate::proxy::response::early_head::{EarlyHead, Serving};
use crate::proxy::response::{AnswerBody, ServedRequest, caller_page, caller_status};
use crate::proxy::summary::RequestRecord;
use crate::telemetry::event::RequestOutcome;
use crate::telemetry::request_history::RequestTrail;
use crate::telemetry::trace::TraceStart;
use crate::telemetry::wall;
use crate::tokens::CountSource;

mod attempt_loop;

/// Largest body that a worker thread parses itself, in bytes.
const MAX_INLINE_BYTES: usize = 1 << 20;

/// Reason why a request got no answer from its model.
#[derive(Debug)]
pub(super) enum ServeError {
    /// The client's request is the reason, as for `AttemptError::Refused`.
    Refused(ApiError),
    /// The scheduler rejected the job.
    Rejected(Rejection),
}

impl Proxy {
    /// Answers one request. When the client leaves, hyper drops the future, and `Drop for
    /// ActiveRequest` ends the job and writes the record.
    ///
    /// # Errors
    /// None: every failure is an answer.
    pub async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        connection: &ClientConnection,
    ) -> Result<Response<AnswerBody>, Infallible> {
        let peer = &connection.client;
        let ids = AssignedIds::new(request.headers(), random::buffered_bytes());
        let path = request.uri().path();
        // hyper keeps room for this future in each connection, so the rare ones are boxed.
        let answer = match route(request.method(), path) {
            Route::Api(api) => return Ok(self.call(api, request, connection, ids).await),
            Route::Models => Box::pin(self.list_models(request.headers(), peer)).await,
            Route::Model(name) => Box::pin(self.one_model(request.headers(), peer, &name)).await,
            Route::Me => Box::pin(caller_status::me(&self, request.headers(), peer)).await,
            Route::CallerPage(file) => Ok(caller_page::answer(file)),
            Route::Health => self.health(),
            Route::WrongMethod { allow } => Err(ApiError::method_not_allowed(allow)),
            Route::NotFound { hint } => Err(ApiError::not_found(path, hint)),
        };
        let dialect = Api::from_path(path).map_or(Dialect::OpenAi, Api::dialect);
        let mut answer = answer.unwrap_or_else(|error| error.into_response(dialect, &ids.request));
        answer.headers_mut().insert(headers::X_REQUEST_ID, ids.request);
        Ok(answer.map(AnswerBody::from))
    }

    /// The caller as it presents itself. Its address is that of the client, which load balancers in
    /// front tell if the settings trust them.
    pub(super) fn caller<'a>(
        &self,
        settings: &Settings,
        headers: &'a HeaderMap,
        peer: &'a ConnectedClient,
    ) -> PresentedCredential<'a> {
        let proxies = &settings.startup.listener.proxies;
        let is_proxy = |address| proxies.trusts(address, ProxyHeader::ForwardedFor);
        let address = headers::client_address(headers, peer.address.ip(), is_proxy);
        PresentedCredential { headers, peer, address, now: self.dispatcher.clock().now() }
    }

    /// Authenticates the caller.
    pub(super) async fn identify(
        &self,
        settings: &Settings,
        caller: PresentedCredential<'_>,
    ) -> Result<Identity, ApiError> {
        self.authenticator.identify(&settings.edge.auth, caller, &self.telemetry).await
    }

    async fn call(
        self: &Arc<Self>,
        api: Api,
        request: Request<Incoming>,
        connection: &ClientConnection,
        ids: AssignedIds,
    ) -> Response<AnswerBody> {
        match Box::pin(self.begin(api, request, connection, ids)).await {
            (serving, None) => self.respond(serving.await),
            (serving, Some(early)) => Box::pin(self.respond_early(serving, early)).await,
        }
    }

    /// Reads and checks a request, and prepares the rest of its work.
    async fn begin(
        self: &Arc<Self>,
        api: Api,
        request: Request<Incoming>,
        connection: &ClientConnection,
        ids: AssignedIds,
    ) -> (Serving, Option<EarlyHead>) {
        let mut record = RequestRecord::new(&self.telemetry, self.dispatcher.clock(), ids.request, api);
        record.caller.gateway_id = ids.gateway;
        let mut active = ActiveRequest::new(record);
        active.record.journal.clone_from(&self.journal);
        let read = tokio::select! {
            biased;
            read = Box::pin(self.receive(api, request, connection, &mut active.record)) => read,
            () = self.dispatcher.shutdown().expired() => Err(ApiError::from(RejectReason::Draining)),
        };
        let request = match read {
            Ok(request) => request,
            Err(error) => {
                let refused = ServedRequest { answer: Err(error), active, request: None };
                return (Box::pin(ready(refused)), None);
            }
        };
        let early = self.early_head(&request, &mut active.record);
        (Box::pin(Arc::clone(self).serve(request, active)), early)
    }

    /// Reads and checks a request, up to the point where it may be queued.
    async fn receive(
        &self,
        api: Api,
        request: Request<Incoming>,
        connection: &ClientConnection,
        record: &mut RequestRecord,
    ) -> Result<Box<InferenceRequest>, ApiError> {
        let settings = self.settings.load_full();
        let (head, body) = request.into_parts();
        let form = settings.startup.telemetry.client_address;
        let caller = self.caller(&settings, &head.headers, &connection.client);
        record.caller.address = form.shown(caller.address);
        let identity = self.identify(&settings, caller).await?;
        record.caller.identity = Some(identity.clone());
        if self.dispatcher.shutdown().is_draining() {
            return Err(ApiError::from(RejectReason::Draining));
        }
        let idle_timeout = settings.startup.listener.body_timeout;
        let held = self.memory.bodies.hold(identity.tenant);
        let body = body::read(body, &settings.edge.requests, idle_timeout, held, &connection.bodies);
        let body = body.await.map_err(|unread| not_read(unread, record))?;
        let (id, now) = (self.dispatcher.next_job_id(), record.clock.now());
        let mut request = read_request(&settings, identity, api, &head.headers, body, id, now).await?;
        request.recognise(&settings, &self.prefixes, &head.headers);
        self.note_request(&request, &head.headers, record);
        let repeats =
            retriable(&request, &head.headers, record).is_some_and(|this| self.live_requests.repeats(this));
        check_prompt(self, &settings, &mut request, record, repeats).await?;
        self.check_context(&settings, &mut request, record).await?;
        self.register_retry(&mut request, &head.headers, record);
        Ok(request)
    }

    /// Queues and dispatches a checked request, up to the point where the client may be answered.
    async fn serve(
        self: Arc<Self>,
        mut request: Box<InferenceRequest>,
        mut active: ActiveRequest,
    ) -> ServedRequest {
        let notice = active.record.notice().map(Arc::clone);
        let answer = tokio::select! {
            biased;
            () = replaced(notice) => Err(active.record.end_as_superseded()),
            answer = self.serve_with_fallback(&mut request, &mut active) => answer,
            () = self.dispatcher.shutdown().expired() => Err(ApiError::from(RejectReason::Draining)),
        };
        let (answer, can_continue) = match answer {
            Ok(answer) => answer,
            Err(error) => return ServedRequest { answer: Err(error), active, request: None },
        };
        if !active.record.retry.is_retry {
            self.start_shadow_copy(&request, &mut active.record);
        }
        ServedRequest { answer: Ok(answer), active, request: can_continue.then_some(request) }
    }

    /// Registers a request that carries a retry count, so that a retry can supersede it. A retry
    /// ends the request that it repeats at once, and takes over its arrival time.
    fn register_retry(&self, request: &mut InferenceRequest, client: &HeaderMap, record: &mut RequestRecord) {
        let Some(count) = headers::retry_count(client) else { return };
        record.retry.is_retry = count > 0;
        let Some(this) = retriable(request, client, record) else { return };
        let (guard, original) = self.live_requests.enter(this);
        record.retry.live_guard = Some(guard);
        if let Some(SupersededRequest { job, arrived, request_id }) = original {
            self.dispatcher.event(Event::Abandoned { job, usage: JobUsage::Unknown });
            request.arrived = arrived;
            record.retry.replaces = Some(request_id);
        }
    }

    /// Begins the request's trail and trace.
    fn note_request(&self, request: &InferenceRequest, client: &HeaderMap, record: &mut RequestRecord) {
        let (api, model) = (request.parsed.api, request.model());
        record.work.class = Some(request.class);
        record.work.model = Some(model);
        record.work.requested_model.clone_from(&request.parsed.model);
        record.work.stream = request.parsed.stream;
        record.trail = Some(self.telemetry.history().begin(RequestTrail {
            request_id: record.request_id.clone(),
            gateway_id: record.caller.gateway_id.clone(),
            job: request.id,
            came: wall::now(),
            tenant: request.tenant,
            class: request.class,
            model,
            fallback: None,
            api: api.upstream_path(),
            stream: request.parsed.stream,
            prompt_tokens: request.tokens.prompt,
            prompt_source: CountSource::Estimate,
            tries: SmallVec::new(),
            forgotten_tries: 0,
            guardrails: Vec::new(),
            end: None,
        }));
        let policy = self.telemetry.policy();
        record.trace = Some(self.telemetry.tracer().start(TraceStart {
            headers: client,
            operation: api.operation_name(),
            model: Some(policy.models.name(model)),
            arrived: record.started,
            now: record.clock.now(),
        }));
    }

    /// Has the request served by its model, or else by its fallback models in order. Also returns
    /// whether another replica could continue the answer.
    async fn serve_with_fallback(
        &self,
        request: &mut InferenceRequest,
        active: &mut ActiveRequest,
    ) -> Result<(EngineAnswer, bool), ApiError> {
        loop {
            turn::take_together(Step::Admit).await;
            let settings = self.settings.load_full();
            let can_continue = request.can_continue(&settings);
            let prefix = request.prefix(&self.prefixes);
            let ticket = request.entry.refused.take().unwrap_or_else(|| {
                self.dispatcher.admit(request.job(can_continue), prefix, &settings.policy)
            });
            active.attach_ticket(ticket);
            request.entry.asking = None;
            drop(settings);
            let nothing = can_continue.then(PartialAnswer::default);
            match self.attempt_until_answered(request, nothing.as_ref(), active).await {
                Ok(answer) => {
                    let settings = self.settings.load_full();
                    check_answer(self, &settings, request, &answer, &mut active.record).await?;
                    return Ok((answer, can_continue));
                }
                Err(ServeError::Refused(error)) => return Err(error),
                Err(ServeError::Rejected(why)) => {
                    let (settings, record) = (self.settings.load_full(), &mut active.record);
                    if !self.try_fallback(&settings, request, why.reason, record).await? {
                        return Err(match why.reason {
                            RejectReason::TooManySequences { most } => {
                                request.parsed.too_many_sequences(most)
                            }
                            _ => reject(why, request, record),
                        });
                    }
                }
            }
        }
    }

    /// After the refusal `why`, moves the request to the next fallback model whose window fits.
    /// Returns false if no fallback model is left that may help.
    ///
    /// # Errors
    /// The prompt, unchecked until now, did not pass the guardrails.
    async fn try_fallback(
        &self,
        settings: &Settings,
        request: &mut InferenceRequest,
        why: RejectReason,
        record: &mut RequestRecord,
    ) -> Result<bool, ApiError> {
        while request.take_next_model(why, record.clock.now()) {
            let is_retry = record.retry.is_retry;
            check_prompt(self, settings, request, record, is_retry).await?;
            if self.check_context(settings, request, record).await.is_ok() {
                record.fell_back(request.model(), why);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The request as one that may be a retry. `None` without a retry count, and for a multipart form: its
/// boundary differs in each retry, so equal bodies look different.
fn retriable<'a>(
    request: &'a InferenceRequest,
    client: &HeaderMap,
    record: &'a RequestRecord,
) -> Option<RetriableRequest<'a>> {
    let count = headers::retry_count(client).filter(|_| !request.parsed.api.is_multipart())?;
    Some(RetriableRequest {
        tenant: request.tenant,
        key_id: record.caller.identity.as_ref().and_then(|identity| identity.key_id.as_deref()),
        api: request.parsed.api,
        body: &request.body.bytes,
        count,
        job: request.id,
        arrived: request.arrived,
        request_id: &record.request_id,
    })
}

/// Parses and checks a request. A large body is read on a thread of its own, so that it delays no
/// other request of the worker thread.
async fn read_request(
    settings: &Arc<Settings>,
    identity: Identity,
    api: Api,
    headers: &HeaderMap,
    body: RequestBody,
    id: JobId,
    now: Tick,
) -> Result<Box<InferenceRequest>, ApiError> {
    if body.bytes.len() <= MAX_INLINE_BYTES {
        return request::read(settings, &identity, api, headers, body, id, now);
    }
    let (settings, headers) = (Arc::clone(settings), headers.clone());
    let reading = spawn_blocking(move || request::read(&settings, &identity, api, &headers, body, id, now));
    let broken = "The request could not be read.";
    reading.await.unwrap_or_else(|_| Err(ApiError::new(ErrorKind::Internal, broken)))
}

/// The error for a body that could not be read. A client that breaks off its body counts as gone,
/// whatever answer it still gets.
fn not_read(unread: BodyError, record: &mut RequestRecord) -> ApiError {
    match unread {
        BodyError::Refused(error) => error,
        BodyError::BrokeOff => {
            record.set_outcome(RequestOutcome::ClientGone, "body_cut_short");
            ApiError::new(ErrorKind::BadBody, "The request body broke off before its end.")
        }
    }
}

/// The error for a rejection. A wait that ran out is an error of its class's deadline, unless the
/// client stated the deadline itself.
fn reject(rejection: Rejection, request: &InferenceRequest, record: &mut RequestRecord) -> ApiError {
    if record.at_engine.attempts > 0 {
        record.end.usage.get_or_insert(JobUsage::Unknown);
    }
    if let RejectReason::Limited(why) = rejection.reason {
        record.end.limit = Some(why.rule);
    }
    let outcome = match rejection.reason {
        RejectReason::AttemptsExhausted(_) => RequestOutcome::Failed,
        _ => RequestOutcome::Rejected,
    };
    record.set_outcome(outcome, rejection.reason.name());
    let is_client_deadline =
        request.deadline >= request.client_deadline || record.clock.now() >= request.client_deadline;
    match rejection.reason {
        RejectReason::DeadlineExceeded | RejectReason::Unmeetable if !is_client_deadline => {
            ApiError::max_wait_reached(rejection.retry_after)
        }
        _ => ApiError::from(rejection),
    }
}

#[cfg(test)]
mod large_body_tests;
#[cfg(test)]
mod tests;
