//! Tests of reading requests: classes, tiers and context windows.

use std::path::Path;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{InferenceRequest, read};
use crate::auth::Identity;
use crate::config::load::load_str_with;
use crate::config::secret::MachineSecrets;
use crate::config::settings::Settings;
use crate::config::settings::identity::Grant;
use crate::core::model::ids::{JobId, TenantId};
use crate::core::model::time::Tick;
use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::proxy::body::RequestBody;

const FILE: &str = "
version: 1
auth: {mode: off, tenant: every}
tenants:
  every: {}
  quick: {classes: [interactive, standard], default_class: interactive}
pools:
  p: {engine: vllm, models: [m], max_seqs: 1, replicas: ['http://127.0.0.1:9']}
";

struct World {
    settings: Settings,
}

impl World {
    fn new() -> Self {
        let outcome = load_str_with(FILE, "test", Path::new("."), None, &MachineSecrets);
        Self { settings: outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings }
    }

    fn read(
        &self,
        tenant: &str,
        key: Option<&str>,
        tier: &str,
        header: Option<&'static str>,
    ) -> Result<Box<InferenceRequest>, ApiError> {
        let headers = header.map(|name| ("x-penstock-class", name));
        self.read_with(tenant, key, tier, headers)
    }

    fn read_with(
        &self,
        tenant: &str,
        key: Option<&str>,
        tier: &str,
        more: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) -> Result<Box<InferenceRequest>, ApiError> {
        let policy = &self.settings.policy;
        let tenant: TenantId = policy.tenants.id(tenant).unwrap();
        let class = key.and_then(|name| policy.classes.id(name));
        let grant = Grant { class, ..Grant::whole(tenant) };
        let identity = Identity { tenant, key_id: None, grant };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(
            more.into_iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))),
        );
        let body = Bytes::from(format!(r#"{{"model":"m","messages":[],"service_tier":{tier}}}"#));
        let body = RequestBody::for_test(tenant, body);
        read(&self.settings, &identity, Api::Chat, &headers, body, JobId::new(1), Tick::ZERO)
    }

    fn class(&self, tenant: &str, key: Option<&str>, tier: &str) -> &str {
        let request = self.read(tenant, key, tier, None).unwrap();
        self.settings.policy.classes.name(request.class)
    }
}

#[test]
fn tiers_are_wishes_for_a_class() {
    let world = World::new();
    for (tier, class) in [
        ("null", "standard"),
        (r#""auto""#, "standard"),
        (r#""default""#, "standard"),
        (r#""scale""#, "standard"),
        (r#""flex""#, "batch"),
        (r#""priority""#, "interactive"),
        (r#""fast""#, "interactive"),
        (r#""""#, "standard"),
        (r#""Flex""#, "standard"),
        (r#""platinum""#, "standard"),
    ] {
        assert_eq!(world.class("every", None, tier), class, "{tier}");
    }
}

#[test]
fn a_tier_that_the_tenant_may_not_have_falls_back_to_the_key_and_then_the_tenant() {
    let world = World::new();
    assert_eq!(world.class("quick", None, r#""flex""#), "interactive");
    assert_eq!(world.class("quick", Some("standard"), r#""flex""#), "standard");
    assert_eq!(world.class("every", Some("interactive"), r#""auto""#), "interactive");
    assert_eq!(world.class("every", Some("interactive"), r#""flex""#), "batch");
}

#[test]
fn a_client_is_answered_some_time_before_it_gives_up() {
    let world = World::new();
    for (announced, patience) in [("4", 3_800), ("600", 599_500)] {
        let header = [("x-stainless-read-timeout", announced)];
        let request = world.read_with("every", None, "null", header).unwrap();
        assert_eq!(request.client_deadline, Tick::from_millis(patience));
        assert!(request.deadline <= request.client_deadline);
    }
}

fn completion(file: &str, body: String) -> Result<Box<InferenceRequest>, ApiError> {
    let outcome = load_str_with(file, "test", Path::new("."), None, &MachineSecrets);
    let settings = outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings;
    let tenant = settings.policy.tenants.id("every").unwrap();
    let identity = Identity { tenant, key_id: None, grant: Grant::whole(tenant) };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = RequestBody::for_test(tenant, Bytes::from(body));
    read(&settings, &identity, Api::Completions, &headers, body, JobId::new(1), Tick::ZERO)
}

#[test]
fn only_what_surely_fits_no_window_is_refused() {
    let small = FILE.replace("max_seqs: 1", "max_seqs: 1, max_model_len: 8");
    let large = "  q: {engine: vllm, models: [m], max_model_len: 16, replicas: ['http://127.0.0.1:8']}";
    let ids = |count| format!("[{}]", vec!["1"; count].join(","));
    let asks = |file: &str, prompt: &str, limit: u32, more: &str| {
        let body = format!(r#"{{"model":"m","prompt":{prompt},"max_tokens":{limit}{more}}}"#);
        completion(file, body).map(|request| request.context())
    };
    let text = format!(r#""{}""#, "word ".repeat(100));
    assert_eq!(asks(&small, &ids(8), 8, ""), Ok(16), "vLLM lowers the limit");
    assert!(asks(&small, &text, 8, "").is_ok(), "an estimate is not sure");
    for (prompt, limit, field) in [(ids(9), 1, "prompt"), (ids(1), 9, "max_tokens")] {
        let error = asks(&small, &prompt, limit, "").unwrap_err();
        assert_eq!((error.kind(), error.param()), (ErrorKind::ContextLength, Some(field)));
        assert!(asks(&format!("{small}{large}"), &prompt, limit, "").is_ok(), "the other pool has room");
        assert!(asks(FILE, &prompt, limit, "").is_ok(), "nothing is known");
    }
    assert!(asks(&small, &ids(9), 1, r#","truncate_prompt_tokens":4"#).is_ok());
    assert!(asks(&small.replace("vllm", "llamacpp"), &ids(1), 9, "").is_ok(), "it stops at its end");
    let own = small.replace("every: {}", "every: {placement: {pools: [p]}}");
    assert!(asks(&format!("{own}{large}"), &ids(9), 1, "").is_err(), "the tenant may not use the other");
}

#[test]
fn a_tier_that_is_no_text_is_refused_and_the_header_decides_before_it() {
    let world = World::new();
    let error = world.read("every", None, "7", None).unwrap_err();
    assert_eq!((error.kind(), error.param()), (ErrorKind::InvalidRequest, Some("service_tier")));
    let request = world.read("every", None, r#""flex""#, Some("interactive")).unwrap();
    assert_eq!(world.settings.policy.classes.name(request.class), "interactive");
    let error = world.read("quick", None, r#""priority""#, Some("batch")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ClassForbidden);
}
