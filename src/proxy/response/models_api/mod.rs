//! Models API: answers about models that need no engine.

pub(in crate::proxy) mod cache;
pub(in crate::proxy) mod list;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response};
use serde_json::{Value, json};

use crate::auth::ConnectedClient;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::proxy::Proxy;

impl Proxy {
    /// GET /v1/models.
    pub(in crate::proxy) async fn list_models(
        &self,
        headers: &HeaderMap,
        peer: &ConnectedClient,
    ) -> Result<Response<Bytes>, ApiError> {
        let settings = self.settings.load_full();
        let identity = self.identify(&settings, self.caller(&settings, headers, peer)).await?;
        let (grant, now) = (&identity.grant, self.dispatcher.clock().now());
        let make = || Bytes::from(list::list(&settings, grant, &self.engines).to_string());
        Ok(json_body(self.cached.model_lists.body(&settings, grant, now, make)))
    }

    /// GET /v1/models/{name}.
    pub(in crate::proxy) async fn one_model(
        &self,
        headers: &HeaderMap,
        peer: &ConnectedClient,
        name: &str,
    ) -> Result<Response<Bytes>, ApiError> {
        let settings = self.settings.load_full();
        let identity = self.identify(&settings, self.caller(&settings, headers, peer)).await?;
        let model = list::one(&settings, &identity.grant, name, &self.engines);
        let model = model.ok_or_else(|| ApiError::model_not_found(name))?;
        Ok(json_response(&model))
    }

    /// GET /health: whether a request sent now could wait or run.
    pub(in crate::proxy) fn health(&self) -> Result<Response<Bytes>, ApiError> {
        if self.dispatcher.shutdown().is_draining() {
            return Err(ApiError::new(ErrorKind::Draining, "The gateway is shutting down."));
        }
        if !self.dispatcher.can_queue() {
            return Err(ApiError::new(ErrorKind::QueueFull, "The queue is full."));
        }
        Ok(json_response(&json!({ "status": "ok" })))
    }
}

pub(in crate::proxy) fn json_response(value: &Value) -> Response<Bytes> {
    json_body(Bytes::from(value.to_string()))
}

fn json_body(body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
