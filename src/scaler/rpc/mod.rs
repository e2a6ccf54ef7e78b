//! External scaler service: the five calls of KEDA's contract. The signal cache holds the numbers
//! of every answer. A metric's name and target come from the trigger and the configuration alone.

pub(super) mod activity;
pub(super) mod answers;

use std::sync::Arc;

use tokio::time::Instant;
use tonic::{Code, Request, Response, Status};

use crate::scaler::answer::{TriggerAnswer, answer};
use crate::scaler::history::{MAX_NAME, ScaleQuestion};
use crate::scaler::proto::external_scaler_server::ExternalScaler;
use crate::scaler::proto::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricValue,
    ScaledObjectRef,
};
pub(super) use crate::scaler::rpc::answers::{Answers, spec_of};
use crate::scaler::signal_cache::{MissingSignal, SignalCache};
use crate::scaler::trigger::{TriggerError, TriggerMode, TriggerQuery};
use crate::telemetry::event::ScalerAsked;
use crate::telemetry::wall;

#[derive(Debug)]
pub(super) struct ScalerService(pub(super) Arc<SignalCache>);

impl ScalerService {
    fn parse_query(&self, of: &ScaledObjectRef) -> Result<TriggerQuery, Status> {
        let keys = of.scaler_metadata.iter().map(|(key, value)| (&**key, &**value));
        self.0.parse_query(keys).map_err(status_of)
    }

    /// Answers a trigger now.
    fn answer(&self, ask: &TriggerQuery) -> Result<TriggerAnswer, Status> {
        let now = Instant::now();
        let row = self.0.signal(&ask.pool, now).map_err(unavailable)?;
        match self.0.missing_peers() {
            Some(alone) => Err(unavailable(alone)),
            None => Ok(answer(ask, &row, now)),
        }
    }

    fn spec(&self, of: &ScaledObjectRef) -> Result<GetMetricSpecResponse, Status> {
        self.parse_query(of).map(|ask| spec_of(&ask))
    }

    fn is_active_now(&self, of: &ScaledObjectRef) -> Result<IsActiveResponse, Status> {
        let ask = self.parse_query(of)?;
        let (result, _) = self.0.activity(&ask, Instant::now()).map_err(unavailable)?;
        Ok(IsActiveResponse { result })
    }

    fn metrics(&self, request: &GetMetricsRequest) -> Result<GetMetricsResponse, Status> {
        let of = request.scaled_object_ref.as_ref();
        let of = of.ok_or_else(|| Status::invalid_argument("scaledObjectRef is missing"))?;
        let ask = self.parse_query(of)?;
        let name = ask.mode.metric();
        if request.metric_name != name {
            return Err(Status::invalid_argument(format!("the metric of this trigger is called {name}")));
        }
        let told = self.answer(&ask)?;
        let Some(value) = told.value else { return Err(unavailable(MissingSignal::NotYetKnown)) };
        self.log(&ask, of, told, value);
        #[expect(clippy::cast_precision_loss, reason = "the contract's type")]
        let metric_value_float = value as f64;
        let metric_value = i64::try_from(value).unwrap_or(i64::MAX);
        let value = MetricValue { metric_name: name.to_owned(), metric_value, metric_value_float };
        Ok(GetMetricsResponse { metric_values: vec![value] })
    }

    fn log(&self, ask: &TriggerQuery, of: &ScaledObjectRef, told: TriggerAnswer, value: u64) {
        self.0.history.lock().asked(ScaleQuestion {
            pool: ask.pool.clone(),
            scaled_object: format!("{}/{}", of.namespace, of.name).chars().take(MAX_NAME).collect(),
            value,
            active: told.active,
            reason: told.reason.to_string(),
            at_unix: wall::unix_seconds(wall::now()),
            times: 1,
        });
        crate::telemetry::event::ScalerAnswered {
            pool: &ask.pool,
            scaled_object: &of.name,
            namespace: &of.namespace,
            value,
            active: told.active,
            reason: told.reason.name,
            clamped: told.reason.clamped,
            raw: ask.mode != TriggerMode::Desired,
        }
        .emit(&self.0.telemetry);
    }

    /// Opens a stream with `open`, unless `scale.max_streams` are open.
    fn stream<T>(
        &self,
        of: &ScaledObjectRef,
        open: impl FnOnce(Arc<SignalCache>, TriggerQuery, activity::StreamPermit) -> Answers<T>,
    ) -> Result<Answers<T>, Status> {
        let ask = self.parse_query(of)?;
        let permit = Arc::clone(&self.0.streams).try_acquire_owned();
        let permit = permit
            .map_err(|_| Status::resource_exhausted("too many streams are open (scale.max_streams)"))?;
        Ok(open(Arc::clone(&self.0), ask, permit))
    }

    fn respond<T>(&self, method: &'static str, done: Result<T, Status>) -> Result<Response<T>, Status> {
        let code = done.as_ref().err().map_or(Code::Ok, Status::code);
        ScalerAsked { method, code: code_name(code), problem: done.as_ref().err().map(Status::message) }
            .emit(&self.0.telemetry);
        done.map(Response::new)
    }
}

#[tonic::async_trait]
impl ExternalScaler for ScalerService {
    type StreamIsActiveStream = Answers<IsActiveResponse>;
    type StreamMetricSpecStream = Answers<GetMetricSpecResponse>;

    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        self.respond("IsActive", self.is_active_now(request.get_ref()))
    }

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        self.respond("StreamIsActive", self.stream(request.get_ref(), activity::activity_stream))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        self.respond("GetMetricSpec", self.spec(request.get_ref()))
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        self.respond("GetMetrics", self.metrics(request.get_ref()))
    }

    async fn stream_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamMetricSpecStream>, Status> {
        self.respond("StreamMetricSpec", self.stream(request.get_ref(), activity::spec_stream))
    }
}

fn status_of(refusal: TriggerError) -> Status {
    match refusal {
        TriggerError::NotFound(message) => Status::not_found(message),
        TriggerError::Invalid(message) => Status::invalid_argument(message),
    }
}

fn unavailable(blank: MissingSignal) -> Status {
    Status::unavailable(blank.to_string())
}

/// Name of a status code, for metrics.
const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::InvalidArgument => "invalid_argument",
        Code::NotFound => "not_found",
        Code::ResourceExhausted => "resource_exhausted",
        Code::Unavailable => "unavailable",
        _ => "other",
    }
}
