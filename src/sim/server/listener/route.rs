//! Request routing before the dialect: control paths, the body, and early
//! faults.

use std::future::pending;
use std::sync::Arc;

use http::{Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::json;

use crate::faults::{FaultKind, ResetPoint};
use crate::server::control;
use crate::server::core::ServerCore;
use crate::server::http::body::{BrokenBody, SimBody};
use crate::server::http::call::ServerCall;
use crate::server::http::conn::SimConn;
use crate::server::http::job::LateFault;
use crate::server::http::reply::{self, HandlerAnswer};
use crate::server::options::ServerDialect;
use crate::server::{tgi, vllm};

/// Largest body. vLLM has no limit; this one only bounds the simulator's
/// memory.
const MAX_BODY: usize = 64 << 20;

/// Answers one request of a connection.
pub(super) async fn answer(
    sim: Arc<ServerCore>,
    conn: Arc<SimConn>,
    control_only: bool,
    request: Request<Incoming>,
) -> HandlerAnswer {
    let busy = conn.busy();
    let mut response = route(sim, conn, control_only, request).await?;
    response.body_mut().busy = Some(busy);
    Ok(response)
}

async fn route(
    sim: Arc<ServerCore>,
    conn: Arc<SimConn>,
    control_only: bool,
    request: Request<Incoming>,
) -> HandlerAnswer {
    let (parts, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        return Ok(reply::value(400, &json!({"detail": "There was an error parsing the body"})));
    };
    let mut call = ServerCall {
        sim,
        conn,
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers,
        body: body.to_bytes(),
        late: None,
    };
    if control_only || call.path.starts_with("/sim/") || call.path == control::SPOT_PATH {
        return Ok(control::answer(&call));
    }
    let work = match call.sim.options.dialect {
        ServerDialect::Vllm => vllm::is_work(&call.path),
        ServerDialect::Tgi => tgi::is_work(&call.path),
    };
    if work
        && call.method == Method::POST
        && let Some(kind) = call.sim.faults.for_request(call.sim.now(), &call.path)
    {
        if let Some(response) = early_fault(&call, &kind).await? {
            return Ok(response);
        }
        call.late = LateFault::from_kind(&kind);
    }
    match call.sim.options.dialect {
        ServerDialect::Vllm => vllm::answer(call).await,
        ServerDialect::Tgi => tgi::answer(call).await,
    }
}

/// Applies the faults that come before any work; `None` for the others.
async fn early_fault(call: &ServerCall, kind: &FaultKind) -> Result<Option<Response<SimBody>>, BrokenBody> {
    match kind {
        FaultKind::Reset { at: ResetPoint::Request } => {
            call.conn.reset();
            Err(BrokenBody)
        }
        FaultKind::Silent { before_head: true, .. } => pending().await,
        FaultKind::Status { status, retry_after, message } => {
            let message = message.as_deref().unwrap_or("fault on request");
            let mut response = match call.sim.options.dialect {
                ServerDialect::Vllm => vllm::fault_status(&call.path, *status, message),
                ServerDialect::Tgi => tgi::fault_status(*status, message),
            };
            if let Some(seconds) = retry_after {
                response.headers_mut().insert(http::header::RETRY_AFTER, (*seconds).into());
            }
            Ok(Some(response))
        }
        _ => Ok(None),
    }
}
