//! Request handler: the way of one request, from top to bottom.

use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::HeaderValue;
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use smallvec::SmallVec;
use tokio_util::task::TaskTracker;

use crate::auth::client::ConnectedClient;
use crate::auth::{Authenticator, Identity, PresentedCredential};
use crate::config::settings::Settings;
use crate::core::model::event::{Event, RejectReason, Rejection};
use crate::core::model::job::{JobSpec, JobUsage, TokenCounts};
use crate::dispatcher::{DispatchGrant, Dispatcher};
use crate::fleet::view::FleetView;
use crate::protocol::api::{Api, Dialect};
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::headers;
use crate::protocol::ids::random;
use crate::protocol::ids::request_id;
use crate::protocol::request::edit::EditedBody;
use crate::protocol::request::prefix::PrefixHasher;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::protocol::route::{Route, route};
use crate::proxy::body::{self, BodyBudget, BodyError, BodyReservation};
use crate::proxy::context::PromptCounter;
use crate::proxy::relay::continuation::{self, Continuation};
use crate::proxy::relay::engine_stream::EngineStream;
use crate::proxy::relay::itl::ItlCounters;
use crate::proxy::relay::memory::AnswerMemory;
use crate::proxy::request::session;
use crate::proxy::request::superseding::{LiveRequests, NumberedTry, SupersededNotice, SupersededTry};
use crate::proxy::request::{self, InferenceRequest};
use crate::proxy::response::body::AnswerBody;
use crate::proxy::response::error_response;
use crate::proxy::shadow::ShadowCopies;
use crate::proxy::summary::active::ActiveRequest;
use crate::proxy::summary::{DispatchedTo, RequestRecord};
use crate::proxy::upstream::Upstreams;
use crate::telemetry::Telemetry;
use crate::telemetry::event::RequestOutcome;
use crate::telemetry::request_history::RequestTrail;
use crate::telemetry::trace::TraceStart;
use crate::telemetry::wall;
use crate::tokens::CountSource;
use crate::usage::Journal;

mod attempts;

/// The data plane: everything that requests share.
pub struct Proxy {
    /// The scheduler's door.
    pub dispatcher: Arc<Dispatcher>,
    /// The rules in force.
    pub settings: Arc<ArcSwap<Settings>>,
    /// Checks credentials.
    pub authenticator: Authenticator,
    /// Connections to engines.
    pub upstreams: Upstreams,
    /// Bodies held.
    pub bodies: Arc<BodyBudget>,
    /// Answers held.
    pub answers: Arc<AnswerMemory>,
    /// The tasks that read streams from engines.
    pub pumps: TaskTracker,
    /// Where events go.
    pub telemetry: Telemetry,
    /// What counts prompts.
    pub token_counters: Arc<PromptCounter>,
    /// What the engines say of themselves.
    pub engines: Arc<FleetView>,
    /// Requests that may be repeated while they live.
    pub retries: Arc<LiveRequests>,
    /// Names the starts of prompts.
    pub prefixes: PrefixHasher,
    /// How fast the engines' streams go.
    pub itl_samplers: Arc<ItlCounters>,
    /// Copies of requests that run now.
    pub shadow_copies: Arc<ShadowCopies>,
    /// Where it is written down what requests used; absent = nowhere.
    pub journal: Option<Journal>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("dispatcher", &self.dispatcher).finish_non_exhaustive()
    }
}

/// What a refused request consumes.
pub(super) const NOTHING: JobUsage = JobUsage::Exact(TokenCounts { input: 0, cached: 0, output: 0 });

/// Why a request got no answer from its model.
#[derive(Debug)]
pub(super) enum ServeError {
    /// An engine refused it for a reason that is the client's.
    Refused(ApiError),
    /// The scheduler gave it up.
    Rejected(Rejection),
}

/// A request that may be queued.
#[derive(Debug)]
pub(super) struct CheckedRequest {
    pub(super) settings: Arc<Settings>,
    pub(super) order: InferenceRequest,
    /// The client's headers that go upstream.
    headers: HeaderMap,
    held: BodyReservation,
    /// Whether its client has sent it before.
    is_retry: bool,
}

/// What came of a request, before its client is told.
#[derive(Debug)]
pub(super) struct ServedRequest {
    pub(super) answered: Result<(ClientAnswer, Option<Continuation>), ApiError>,
    pub(super) request: ActiveRequest,
}

/// What a client gets that is not an error.
#[derive(Debug)]
pub(super) enum ClientAnswer {
    Stream { stream: Box<EngineStream>, head: HeaderMap, whole: Option<JobUsage> },
    Whole { status: StatusCode, head: HeaderMap, body: EditedBody },
}

impl Proxy {
    /// Answers one request. Dropping the future is how a client leaves.
    ///
    /// # Errors
    /// None: every failure is an answer.
    pub async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: &ConnectedClient,
    ) -> Result<Response<AnswerBody>, Infallible> {
        let id = request_id::from_client(request.headers())
            .unwrap_or_else(|| request_id::from_random(random::frequent()));
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

    /// Who is asking.
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
            taken = Box::pin(self.take(api, request, peer, &mut active.record)) => taken,
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

    /// Everything up to the moment when the request may be queued.
    async fn take(
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
        self.measure(&settings, &mut order, &parts.headers, record).await?;
        self.take_seat(&mut order, &parts.headers, record);
        let headers = headers::upstream_headers(&parts.headers);
        let is_retry = headers::retry_count(&parts.headers).is_some_and(|count| count > 0);
        Ok(CheckedRequest { settings, order, headers, held, is_retry })
    }

    /// Everything from there up to the moment when the client may be told.
    async fn serve(self: Arc<Self>, taken: CheckedRequest, mut request: ActiveRequest) -> ServedRequest {
        let CheckedRequest { settings, mut order, headers, held, is_retry } = taken;
        let notice = request.record.notice().map(Arc::clone);
        let answered = tokio::select! {
            biased;
            () = replaced(notice) => Err(request.record.superseded()),
            answered = self.by_any_model(&mut order, &headers, &held, settings, &mut request) => answered,
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

    /// Enters a request that says which try it is among those that may be
    /// repeated. A retry ends the try that it repeats at once, and has come
    /// when that one came.
    fn take_seat(&self, order: &mut InferenceRequest, client: &HeaderMap, record: &mut RequestRecord) {
        // The boundary of a form is another in each try.
        let Some(count) = headers::retry_count(client).filter(|_| !order.api.is_multipart()) else { return };
        let spec = &mut order.spec;
        let (seat, original) = self.retries.enter(NumberedTry {
            tenant: spec.tenant,
            key_id: record.identity.as_ref().and_then(|identity| identity.key_id.as_deref()),
            api: order.api,
            body: &order.body,
            count,
            job: spec.id,
            arrived: spec.arrived,
            request_id: &record.request_id,
        });
        record.seat = Some(seat);
        if let Some(SupersededTry { job, arrived, request_id }) = original {
            self.dispatcher.event(Event::ClientLeft { job, usage: JobUsage::Unknown });
            spec.arrived = arrived;
            record.replaces = Some(request_id);
        }
    }

    fn note_order(&self, order: &InferenceRequest, client: &HeaderMap, record: &mut RequestRecord) {
        record.class = Some(order.spec.class);
        record.model = Some(order.spec.model);
        record.requested_model.clone_from(&order.peek.model);
        record.stream = order.peek.stream;
        record.trail = Some(self.telemetry.history().begin(RequestTrail {
            request_id: record.request_id.clone(),
            job: order.spec.id,
            came: wall::now(),
            tenant: order.spec.tenant,
            class: order.spec.class,
            model: order.spec.model,
            fallback: None,
            api: order.api.upstream_path(),
            stream: order.peek.stream,
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

    /// Has the request served by its model, or else by the first of those that
    /// may serve in its place. Says whether another replica could go on with the
    /// answer.
    async fn by_any_model(
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
            let InferenceRequest { spec, peek, body, .. } = &*order;
            let prefix = self.prefixes.of(spec.model, peek, body, spec.prompt_tokens);
            request.admitted(self.dispatcher.admit(*spec, prefix, &settings.policy));
            order.asking = None;
            drop(settings);
            let nothing = can_go_on.then(PartialAnswer::default);
            match self.tries(order, headers, nothing.as_ref(), request).await {
                Ok(answered) => return Ok((answered, can_go_on)),
                Err(ServeError::Refused(error)) => return Err(error),
                Err(ServeError::Rejected(why)) => {
                    settings = self.settings.load_full();
                    let record = &mut request.record;
                    if !self.falls_back(&settings, order, why.reason, headers, record).await {
                        return Err(match why.reason {
                            RejectReason::TooManySequences { most } => order.peek.too_many_sequences(most),
                            _ => reject(why, &order.spec, record),
                        });
                    }
                }
            }
        }
    }
}

/// Waits until a retry takes the request's place.
pub(super) async fn replaced(notice: Option<Arc<SupersededNotice>>) {
    match notice {
        Some(notice) => notice.replaced().await,
        None => pending().await,
    }
}

pub(super) fn place(settings: &Settings, DispatchGrant { replica, why }: DispatchGrant) -> DispatchedTo {
    let pool = settings.policy.replicas.get(replica).map(|row| row.pool);
    let engine = pool.and_then(|pool| settings.edge.pools.get(pool)).map(|pool| pool.engine.name());
    DispatchedTo { pool, replica, engine, why }
}

/// A client that gives up its body has left, whatever it is still told.
fn not_read(unread: BodyError, record: &mut RequestRecord) -> ApiError {
    match unread {
        BodyError::Refused(error) => error,
        BodyError::BrokeOff => {
            record.ended(RequestOutcome::ClientGone, "body_cut_short");
            ApiError::new(ErrorKind::BadBody, "The request body broke off before its end.")
        }
    }
}

/// A wait that ended is a matter of its class, unless the client named the
/// deadline.
fn reject(rejection: Rejection, spec: &JobSpec, record: &mut RequestRecord) -> ApiError {
    if record.attempts > 0 {
        record.usage.get_or_insert(JobUsage::Unknown);
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
            ApiError::waited_out(rejection.retry_after)
        }
        _ => ApiError::from(rejection),
    }
}

#[cfg(test)]
mod tests;
