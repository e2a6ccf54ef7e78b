//! Authentication and roles of operators at the admin port.

mod origin;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::admin::console;
use crate::admin::problem::problem;
use crate::admin::state::AdminState;
use crate::auth::operators::{OperatorTokenError, RefusedToken, TokenOperator, is_token};
use crate::auth::throttle::{FailureRate, FailureThrottle};
use crate::config::keys::KeyError;
use crate::config::settings::identity::{OperatorRole, Operators};
use crate::core::model::time::Tick;
use crate::protocol::headers;
use crate::telemetry::event::AdminRefused;
use crate::telemetry::wall;
use crate::tls::CertificateNames;
use crate::tls::address_group;

/// Failed attempts that one address may make.
const FAILURES: FailureRate = FailureRate { burst: 10, per_minute: 10 };

/// Paths that need no credentials.
const OPEN_PATHS: [&str; 4] = ["/", "/livez", "/readyz", "/healthz"];
const METRICS: &str = "/metrics";

const TOKEN_HINT: &str = "penstock's commands take it from --token-file or PENSTOCK_ADMIN_TOKEN, others send it as \
                   `Authorization: Bearer <token>`";

/// Name of callers of whom no credentials are required.
const LOCAL: &str = "local";

/// Caller of an admin request who is allowed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Operator {
    /// `token:<id>`, `oidc:<name>`, `cert:<name>`, or `local` where no credentials are required.
    pub(super) who: Arc<str>,
    /// Address of the caller.
    pub(super) from: SocketAddr,
    role: OperatorRole,
}

impl Operator {
    /// Caller of whom no credentials are required.
    pub(super) fn local(from: SocketAddr) -> Self {
        Self { who: LOCAL.into(), from, role: OperatorRole::Operate }
    }

    /// Whether no credentials were required.
    fn is_local(&self) -> bool {
        &*self.who == LOCAL
    }
}

/// State shared by the checks of all requests.
#[derive(Debug, Clone)]
pub(super) struct AdminGuard {
    state: Arc<AdminState>,
    failures: Arc<Mutex<FailureThrottle>>,
    started: Instant,
}

impl AdminGuard {
    pub(super) fn new(state: &Arc<AdminState>, started: Instant) -> Self {
        Self { state: Arc::clone(state), failures: Arc::default(), started }
    }
}

/// Reason why a caller is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AdminAuthError {
    NoCredentials,
    InvalidToken(KeyError),
    /// A token of the identity provider is refused.
    RefusedToken(OperatorTokenError),
    UnknownCertificate,
}

impl AdminAuthError {
    /// A stable code, and a message for the caller.
    fn words(self) -> (&'static str, String) {
        match self {
            Self::NoCredentials => {
                ("missing", format!("this port asks for a token; {TOKEN_HINT}; browsers open /console"))
            }
            Self::InvalidToken(KeyError::Expired) => ("expired", "the token has expired".to_owned()),
            Self::InvalidToken(_) => (
                "wrong",
                format!(
                    "the token is neither one of `admin.auth.tokens` nor of `admin.auth.oidc`; {TOKEN_HINT}"
                ),
            ),
            Self::RefusedToken(error) => (error.reason(), error.message().to_owned()),
            Self::UnknownCertificate => {
                ("certificate", "the certificate is not one of `admin.auth.client_certs`".to_owned())
            }
        }
    }

    /// Whether the failure counts against the caller's address: somebody may be guessing.
    fn counts(self) -> bool {
        match self {
            Self::InvalidToken(_) => true,
            Self::RefusedToken(error) => error.meaning() == RefusedToken::Invalid,
            Self::NoCredentials | Self::UnknownCertificate => false,
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::RefusedToken(error) => match error.meaning() {
                RefusedToken::NoRight => StatusCode::FORBIDDEN,
                RefusedToken::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
                RefusedToken::Invalid | RefusedToken::Expired => StatusCode::UNAUTHORIZED,
            },
            Self::NoCredentials | Self::InvalidToken(_) | Self::UnknownCertificate => {
                StatusCode::UNAUTHORIZED
            }
        }
    }
}

/// Authenticates and authorises a request. An allowed request goes on with its [`Operator`];
/// another is answered with an error.
pub(super) async fn check(
    State(guard): State<AdminGuard>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let settings = guard.state.settings();
    let operators = &settings.listeners.operators;
    let path = request.uri().path();
    let is_open = OPEN_PATHS.contains(&path)
        || console::is_open_path(path)
        || (operators.open_metrics && path == METRICS);
    if is_open {
        request.extensions_mut().insert(Operator::local(from));
        return next.run(request).await;
    }
    let names = request.extensions().get::<Arc<CertificateNames>>().cloned();
    let who = match identify(operators, request.headers(), names.as_deref(), from) {
        // Perhaps a token of the identity provider.
        Err(AdminAuthError::InvalidToken(KeyError::Malformed)) => {
            identify_token(&guard, operators, request.headers(), from).await
        }
        known => known,
    };
    match who {
        Ok(operator) if operator.role >= required_role(request.method()) => {
            let (method, headers) = (request.method(), request.headers());
            let origin = match operator.is_local() {
                true => origin::check(method, headers, &operators.hosts),
                false => origin::check_site(method, headers),
            };
            if let Err(foreign) = origin {
                AdminRefused { from, reason: foreign.label() }.emit(&guard.state.telemetry);
                return problem(StatusCode::FORBIDDEN, foreign.message());
            }
            request.extensions_mut().insert(operator);
            next.run(request).await
        }
        Ok(operator) => {
            AdminRefused { from, reason: "role" }.emit(&guard.state.telemetry);
            let message = format!("{} may only look; this needs the role `operate`", operator.who);
            problem(StatusCode::FORBIDDEN, &message)
        }
        Err(refusal) => refuse(&guard, from, refusal),
    }
}

/// The role that a request needs.
fn required_role(method: &Method) -> OperatorRole {
    if matches!(*method, Method::GET | Method::HEAD) { OperatorRole::Read } else { OperatorRole::Operate }
}

fn identify(
    operators: &Operators,
    headers: &HeaderMap,
    names: Option<&CertificateNames>,
    from: SocketAddr,
) -> Result<Operator, AdminAuthError> {
    if !operators.are_known() {
        return Ok(Operator::local(from));
    }
    if let Some(text) = headers::credentials(headers) {
        let (id, token) = operators.tokens.verify(text, wall::now).map_err(AdminAuthError::InvalidToken)?;
        return Ok(Operator { who: format!("token:{id}").into(), from, role: token.role });
    }
    let named = || names?.iter().find_map(|name| Some((name, *operators.certs.get(name)?)));
    if let Some((name, role)) = named() {
        return Ok(Operator { who: format!("cert:{name}").into(), from, role });
    }
    if operators.loopback && from.ip().to_canonical().is_loopback() {
        return Ok(Operator::local(from));
    }
    Err(if names.is_some() { AdminAuthError::UnknownCertificate } else { AdminAuthError::NoCredentials })
}

/// The operator whose token the identity provider gave.
async fn identify_token(
    guard: &AdminGuard,
    operators: &Operators,
    headers: &HeaderMap,
    from: SocketAddr,
) -> Result<Operator, AdminAuthError> {
    let malformed = AdminAuthError::InvalidToken(KeyError::Malformed);
    let text = headers::credentials(headers).filter(|text| is_token(text)).ok_or(malformed)?;
    let issuer = operators.oidc.as_ref().ok_or(malformed)?;
    let known = guard.state.operator_tokens.verify(issuer, operators.epoch, text).await;
    let TokenOperator { name, role } = known.map_err(AdminAuthError::RefusedToken)?;
    Ok(Operator { who: format!("oidc:{name}").into(), from, role })
}

fn refuse(guard: &AdminGuard, from: SocketAddr, refusal: AdminAuthError) -> Response {
    let (reason, message) = refusal.words();
    let now = Tick::ZERO + guard.started.elapsed();
    let heard = match refusal.counts() {
        true => guard.failures.lock().failed(address_group(from.ip()), now, FAILURES),
        false => Ok(()),
    };
    if let Err(wait) = heard {
        AdminRefused { from, reason: "throttled" }.emit(&guard.state.telemetry);
        let mut answer = problem(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens from this address");
        let seconds = wait.as_secs() + 1;
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        return answer;
    }
    AdminRefused { from, reason }.emit(&guard.state.telemetry);
    let status = refusal.status();
    let mut answer = problem(status, &message);
    if status == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::config::keys::{self, KeyDigest, NewKey};
    use crate::config::settings::identity::TokenEntry;

    const FAR: &str = "10.0.0.9:1";
    const NEAR: &str = "127.0.0.1:1";

    fn entry(key: &NewKey, role: OperatorRole, expires: Option<SystemTime>) -> TokenEntry {
        TokenEntry { digest: KeyDigest::Blake3(keys::digest(&key.text)), role, expires }
    }

    fn operators(keys: &[(&NewKey, OperatorRole)]) -> Operators {
        let tokens = keys.iter().map(|(key, role)| (key.id.clone(), entry(key, *role, None))).collect();
        Operators { tokens, loopback: true, ..Operators::default() }
    }

    fn asks(
        operators: &Operators,
        token: Option<&str>,
        from: &str,
    ) -> Result<(String, OperatorRole), AdminAuthError> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        }
        identify(operators, &headers, None, from.parse().unwrap())
            .map(|operator| (operator.who.to_string(), operator.role))
    }

    #[test]
    fn a_token_tells_who_it_is_and_what_they_may_do() {
        let (read, operate) = (keys::new(&[1; 40]), keys::new(&[2; 40]));
        let mut known = operators(&[(&read, OperatorRole::Read), (&operate, OperatorRole::Operate)]);
        let who = |key: &NewKey| format!("token:{}", key.id);
        assert_eq!(asks(&known, Some(&read.text), FAR), Ok((who(&read), OperatorRole::Read)));
        assert_eq!(asks(&known, Some(&operate.text), FAR), Ok((who(&operate), OperatorRole::Operate)));
        assert_eq!(
            asks(&known, Some(&read.text), NEAR),
            Ok((who(&read), OperatorRole::Read)),
            "not more than it"
        );
        assert_eq!(asks(&known, None, FAR), Err(AdminAuthError::NoCredentials));
        let other = keys::new(&[3; 40]);
        for from in [FAR, NEAR] {
            assert_eq!(
                asks(&known, Some(&other.text), from),
                Err(AdminAuthError::InvalidToken(KeyError::Unknown))
            );
        }
        for from in [NEAR, "[::1]:9", "[::ffff:127.0.0.1]:9"] {
            assert_eq!(asks(&known, None, from), Ok(("local".to_owned(), OperatorRole::Operate)));
        }
        known.loopback = false;
        assert_eq!(asks(&known, None, NEAR), Err(AdminAuthError::NoCredentials));
        known.tokens.insert(&read.id, entry(&read, OperatorRole::Read, Some(SystemTime::UNIX_EPOCH)));
        assert_eq!(asks(&known, Some(&read.text), FAR), Err(AdminAuthError::InvalidToken(KeyError::Expired)));
        assert_eq!(asks(&operators(&[]), Some("x"), FAR), Ok(("local".to_owned(), OperatorRole::Operate)));
    }

    #[test]
    fn only_a_look_needs_no_more_than_the_role_read() {
        assert_eq!(required_role(&Method::GET), OperatorRole::Read);
        assert_eq!(required_role(&Method::HEAD), OperatorRole::Read);
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            assert_eq!(required_role(&method), OperatorRole::Operate);
        }
        assert!(OperatorRole::Operate > OperatorRole::Read);
    }
}
