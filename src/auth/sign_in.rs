//! Addresses at which the console signs in, asked of a provider apart from its keys: tokens are
//! checked also while these are not known.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::auth::provider::ProviderClient;
use crate::auth::provider_error::ProviderError;
use crate::config::settings::identity::KeySource;
use crate::telemetry::Telemetry;
use crate::telemetry::event::SignInNotKnown;

/// Interval between questions that no page asked for.
const REFRESH: Duration = Duration::from_secs(300);
/// Wait after the first failure, which doubles with each further one up to [`REFRESH`]; also the
/// shortest interval, however often pages ask.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Where a browser signs in at a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignInEndpoints {
    /// The page that asks the user.
    pub authorization: String,
    /// Where the page's answer is exchanged for a token.
    pub token: String,
    /// Scheme, host and port of `token`, for a page's security policy.
    pub token_origin: String,
}

impl SignInEndpoints {
    /// Both addresses must be plain URLs, which a page may be told of.
    pub(super) fn new(authorization: String, token: String) -> Result<Self, ProviderError> {
        let token_origin = origin(&token).ok_or(ProviderError::NoAddress("token_endpoint"))?;
        origin(&authorization).ok_or(ProviderError::NoAddress("authorization_endpoint"))?;
        Ok(Self { authorization, token, token_origin })
    }
}

/// Scheme, host and port of a URL, if they are plain enough for a header.
fn origin(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?.as_str());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    let is_web = matches!(scheme, "http" | "https");
    (is_web && authority.bytes().all(is_plain)).then(|| format!("{scheme}://{authority}"))
}

/// The addresses of one provider, with the task that asks for them. Dropping the value ends the
/// task.
#[derive(Debug)]
pub(super) struct SignInDiscovery {
    source: KeySource,
    shared: Arc<SharedEndpoints>,
    _questions: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct SharedEndpoints {
    /// As last told; `None` while the provider has not.
    known: ArcSwapOption<SignInEndpoints>,
    wanted: Notify,
}

impl SignInDiscovery {
    pub(super) fn start(source: KeySource, telemetry: Telemetry) -> Self {
        let shared = Arc::new(SharedEndpoints::default());
        let run = Arc::clone(&shared).run(source.clone(), telemetry);
        Self { source, shared, _questions: AbortOnDropHandle::new(tokio::spawn(run)) }
    }

    pub(super) fn is_of(&self, source: &KeySource) -> bool {
        self.source == *source
    }

    /// The addresses. While they are not known, each call asks for them soon.
    pub(super) fn endpoints(&self) -> Option<Arc<SignInEndpoints>> {
        let known = self.shared.known.load_full();
        if known.is_none() {
            self.shared.wanted.notify_one();
        }
        known
    }
}

impl SharedEndpoints {
    /// Asks again and again, until the task is aborted.
    async fn run(self: Arc<Self>, source: KeySource, telemetry: Telemetry) {
        let issuer = source.issuer.clone();
        let client = ProviderClient::new(source);
        let mut retry = FIRST_RETRY;
        loop {
            let addresses = client.sign_in_addresses().await;
            let told =
                addresses.and_then(|(authorization, token)| SignInEndpoints::new(authorization, token));
            let wait = match told {
                Ok(endpoints) => {
                    self.known.store(Some(Arc::new(endpoints)));
                    retry = FIRST_RETRY;
                    REFRESH
                }
                Err(error) => {
                    let (problem, first) = (error.to_string(), retry == FIRST_RETRY);
                    SignInNotKnown { issuer: &issuer, problem: &problem, first }.emit(&telemetry);
                    let wait = retry;
                    retry = (retry * 2).min(REFRESH);
                    wait
                }
            };
            sleep(FIRST_RETRY).await;
            tokio::select! {
                () = sleep(wait - FIRST_RETRY) => {}
                () = self.wanted.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_addresses_are_told() {
        let new = |authorization: &str, token: &str| SignInEndpoints::new(authorization.into(), token.into());
        let good = new("https://id.test/a?x=1", "https://[::1]:8443/t").unwrap();
        assert_eq!(good.token_origin, "https://[::1]:8443");
        for odd in
            ["", "/token", "ftp://id.test/t", "https://a@id.test/t", "https://id.test;x/t", "javascript:x"]
        {
            assert_eq!(
                new("https://id.test/a", odd),
                Err(ProviderError::NoAddress("token_endpoint")),
                "{odd}"
            );
            let error = ProviderError::NoAddress("authorization_endpoint");
            assert_eq!(new(odd, "https://id.test/t"), Err(error), "{odd}");
        }
    }
}
