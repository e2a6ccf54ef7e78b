//! `/admin/v1/keys`: API keys that are made, replaced and revoked while the gateway runs.

mod store;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use self::store::KeyStore;
use crate::admin::auth::Operator;
use crate::admin::operate::{VerbError, bad_request};
use crate::admin::state::AdminState;
use crate::config::keys::{self, KeyDigest};
use crate::config::report::problem::nearest;
use crate::config::sections::identity::Moment;
use crate::config::sections::identity::key_files::KeyFile;
use crate::config::sections::tenants::KeySection;
use crate::config::sections::tenants::usage_limits::LimitsSection;
use crate::config::settings::Settings;
use crate::config::settings::identity::{Auth, Credentials, KeyEntry};
use crate::config::syntax::units::Span;
use crate::config::watch::ReloadOutcome;
use crate::protocol::ids::random;
use crate::telemetry::event::{EXPIRES_SOON, KeyChanged};
use crate::telemetry::wall;

/// How long a replaced key goes on without `overlap`.
const USUAL_OVERLAP: Duration = Duration::from_secs(24 * 3600);
/// Most bytes of a note.
const MAX_NOTE: usize = 200;

/// One key, without anything secret.
#[derive(Debug, Serialize)]
pub(super) struct KeyRow {
    id: String,
    tenant: String,
    /// `active`, `expiring` (within 14 days) or `expired`.
    state: &'static str,
    expires: Option<String>,
    class: Option<String>,
    classes: Option<Vec<String>>,
    models: Option<Vec<String>>,
    note: Option<String>,
    /// File in `auth.keys_dir`; `null` = the configuration file.
    file: Option<String>,
}

/// Body of `POST /admin/v1/keys`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct KeyRequest {
    /// Whose key it is; absent = as `replaces`.
    tenant: Option<String>,
    /// The class of requests that ask for none.
    class: Option<String>,
    /// The classes it may use.
    classes: Option<Vec<String>>,
    /// The models it may use.
    models: Option<Vec<String>>,
    /// What may be used with it.
    limits: Option<LimitsSection>,
    /// From when on it opens nothing: a day or a time.
    expires: Option<Moment>,
    /// How long it opens, such as `90d`, in place of `expires`.
    #[serde(rename = "for")]
    lasts: Option<String>,
    /// Who holds it.
    note: Option<String>,
    /// The digest of a secret that its holder has already; absent = a new key.
    digest: Option<String>,
    /// The public id beside `digest`; absent = one made of the digest.
    id: Option<String>,
    /// Id of a key that was made here: the new one takes over what it may do.
    replaces: Option<String>,
    /// How long the replaced key still opens; absent = 24h.
    overlap: Option<String>,
}

/// Answer to `POST /admin/v1/keys`.
#[derive(Debug, Serialize)]
pub(super) struct MadeKey {
    /// The key itself, shown only here; absent where the caller brought its digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    id: String,
    tenant: String,
    expires: Option<String>,
    /// File in `auth.keys_dir`.
    file: String,
    /// The key that it replaces, with the end of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaces: Option<ReplacedKey>,
}

#[derive(Debug, Serialize)]
struct ReplacedKey {
    id: String,
    expires: String,
}

/// The keys in force, by id.
pub(super) fn list(settings: &Settings) -> Vec<KeyRow> {
    let Auth::Known(known) = &settings.edge.auth else { return Vec::new() };
    let now = wall::now();
    let mut rows: Vec<KeyRow> = known.keys.iter().map(|(id, key)| row(id, key, settings, now)).collect();
    rows.sort_by(|a, b| a.id.cmp(&b.id));
    rows
}

fn row(id: &str, key: &KeyEntry, settings: &Settings, now: SystemTime) -> KeyRow {
    let policy = &settings.policy;
    let class = |id| policy.classes.name(id).to_owned();
    let state = match key.expires {
        Some(end) if end <= now => "expired",
        Some(end) if end <= now + EXPIRES_SOON => "expiring",
        _ => "active",
    };
    KeyRow {
        id: id.to_owned(),
        tenant: policy.tenants.name(key.grant.tenant).to_owned(),
        state,
        expires: key.expires.map(text_of),
        class: key.grant.class.map(class),
        classes: key.grant.classes.as_ref().map(|ids| ids.iter().map(|id| class(*id)).collect()),
        models: key
            .grant
            .models
            .as_ref()
            .map(|ids| ids.iter().map(|id| policy.models.name(*id).to_owned()).collect()),
        note: key.origin.note.clone(),
        file: key.origin.file.as_ref().map(ToString::to_string),
    }
}

/// Makes and revokes keys, one at a time.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyMaker(Arc<Mutex<()>>);

impl KeyMaker {
    /// `POST /admin/v1/keys`: the key is in force when the answer comes.
    ///
    /// # Errors
    /// The body is invalid, there is no folder, or the configuration would not take the key.
    pub(super) async fn create(
        &self,
        state: &AdminState,
        who: &Operator,
        body: &[u8],
    ) -> Result<MadeKey, VerbError> {
        let ask: KeyRequest = serde_json::from_slice(body).map_err(|problem| {
            bad_request(format!("the body is not what this asks for: {problem}; send {{\"tenant\": ...}}"))
        })?;
        let _alone = self.0.lock().await;
        let settings = state.settings();
        let store = store_of(known(&settings)?)?;
        let now = moment(wall::now());
        let old = match ask.replaces.clone() {
            Some(id) if !keys::is_id(&id) => {
                return Err(bad_request(format!("`replaces`: {id:?} is no id of a key")));
            }
            Some(id) => {
                let store = store.clone();
                Some(blocking(move || store.read(&id)).await?)
            }
            None => None,
        };
        let (key, file) = new_file(&ask, old.as_ref(), &settings, now)?;
        let id = file.keys[0].id.clone();
        let ending = old.as_ref().map(|old| ended(old, &ask, now)).transpose()?;
        put(&store, &file).await?;
        if let Some(ending) = &ending
            && let Err(error) = put(&store, ending).await
        {
            take_back(&store, &id, None, state, who).await;
            return Err(error);
        }
        if let Err(error) = in_force(state, who, &id, true).await {
            take_back(&store, &id, old, state, who).await;
            return Err(error);
        }
        let replaced = ending.map(|ending| ReplacedKey {
            id: ending.keys[0].id.clone(),
            expires: ending.keys[0].expires.map(|end| end.0.to_string()).unwrap_or_default(),
        });
        KeyChanged {
            who: &who.who,
            from: who.from,
            verb: "key_create",
            key_id: &id,
            tenant: &file.tenant,
            replaces: replaced.as_ref().map(|old| &*old.id),
        }
        .emit(&state.telemetry);
        let expires = file.keys[0].expires.map(|end| end.0.to_string());
        Ok(MadeKey { key, file: KeyStore::name(&id), id, tenant: file.tenant, expires, replaces: replaced })
    }

    /// `DELETE /admin/v1/keys/{id}`: the key opens nothing any more when the answer comes.
    ///
    /// # Errors
    /// There is no such key, or it was not made here.
    pub(super) async fn revoke(&self, state: &AdminState, who: &Operator, id: &str) -> Result<(), VerbError> {
        let _alone = self.0.lock().await;
        let settings = state.settings();
        let known = known(&settings)?;
        if !keys::is_id(id) || known.keys.get(id).is_none() {
            return Err(VerbError(
                StatusCode::NOT_FOUND,
                format!("there is no key {id}; GET /admin/v1/keys lists them"),
            ));
        }
        let store = store_of(known)?;
        let (there, own) = (store.clone(), id.to_owned());
        let file = blocking(move || {
            let file = there.read(&own)?;
            there.remove(&own).map(|()| file)
        })
        .await?;
        KeyChanged {
            who: &who.who,
            from: who.from,
            verb: "key_revoke",
            key_id: id,
            tenant: &file.tenant,
            replaces: None,
        }
        .emit(&state.telemetry);
        in_force(state, who, id, false).await
    }
}

fn known(settings: &Settings) -> Result<&Credentials, VerbError> {
    match &settings.edge.auth {
        Auth::Known(known) => Ok(known),
        Auth::Off(_) => {
            let message = "nobody is asked for a key: the configuration has `auth: {mode: off}`";
            Err(VerbError(StatusCode::CONFLICT, message.to_owned()))
        }
    }
}

fn store_of(known: &Credentials) -> Result<KeyStore, VerbError> {
    let folder = known.key_folder.as_ref().map(|folder| KeyStore(folder.path.clone()));
    folder.ok_or_else(|| {
        let message = "there is no folder for keys: name one in `auth.keys_dir` of the configuration";
        VerbError(StatusCode::CONFLICT, message.to_owned())
    })
}

/// The new key, and its file.
fn new_file(
    ask: &KeyRequest,
    old: Option<&KeyFile>,
    settings: &Settings,
    now: jiff::Timestamp,
) -> Result<(Option<String>, KeyFile), VerbError> {
    let Some(tenant) = ask.tenant.clone().or_else(|| old.map(|old| old.tenant.clone())) else {
        return Err(bad_request("`tenant` is missing: whose key is it?".to_owned()));
    };
    let tenants = || settings.policy.tenants.iter().map(|(_, name, _)| name);
    if !tenants().any(|name| name == tenant) {
        let near =
            nearest(&tenant, tenants()).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        return Err(bad_request(format!("there is no tenant `{tenant}`{near}")));
    }
    let note = ask.note.as_deref().map(str::trim).filter(|note| !note.is_empty());
    if note.is_some_and(|note| note.len() > MAX_NOTE || note.contains(char::is_control)) {
        return Err(bad_request(format!("`note` must be one line of at most {MAX_NOTE} bytes")));
    }
    let lasts = ask.lasts.as_deref().map(|text| span("for", text)).transpose()?;
    let expires = match (ask.expires, lasts) {
        (Some(_), Some(_)) => return Err(bad_request("write `expires` or `for`".to_owned())),
        (expires, None) => expires,
        (None, Some(lasts)) => Some(later(now, lasts)?),
    };
    if expires.is_some_and(|end| end.0 <= now) {
        return Err(bad_request("`expires` is over already".to_owned()));
    }
    let KeyIdentity { text, id, digest } = identity(ask)?;
    let ring = &known(settings)?.keys;
    let same = || ring.id_with(&KeyDigest::parse(&digest)?);
    if let Some(known) = ring.get(&id).map(|_| &*id).or_else(same) {
        let message = format!("the key {known} has this id or digest already");
        return Err(VerbError(StatusCode::CONFLICT, message));
    }
    let base = old.and_then(|old| old.keys.first()).cloned().unwrap_or_default();
    if base.expires.is_some() && expires.is_none() {
        return Err(bad_request(
            "the replaced key has an end: write `expires` or `for` for the new one".to_owned(),
        ));
    }
    let section = KeySection {
        id,
        digest,
        class: ask.class.clone().or(base.class),
        limits: ask.limits.clone().unwrap_or(base.limits),
        classes: ask.classes.clone().or(base.classes),
        models: ask.models.clone().or(base.models),
        expires,
        note: note.map(str::to_owned).or(base.note),
    };
    Ok((text, KeyFile { tenant, keys: vec![section] }))
}

/// What names a key.
struct KeyIdentity {
    /// The key itself, if it is new.
    text: Option<String>,
    id: String,
    digest: String,
}

fn identity(ask: &KeyRequest) -> Result<KeyIdentity, VerbError> {
    let Some(text) = &ask.digest else {
        if ask.id.is_some() {
            return Err(bad_request(
                "`id` stands beside `digest` only: a new key has its id in it".to_owned(),
            ));
        }
        let key = keys::new(&random::bytes());
        return Ok(KeyIdentity { text: Some(key.text), id: key.id, digest: key.digest });
    };
    let Some(digest) = KeyDigest::parse(text) else {
        return Err(bad_request("`digest` must be what `penstock keys hash` printed".to_owned()));
    };
    let id = ask.id.clone().unwrap_or_else(|| digest.derived_id());
    if !keys::is_id(&id) {
        return Err(bad_request("`id` must be 8 to 12 lower-case letters and digits".to_owned()));
    }
    Ok(KeyIdentity { text: None, id, digest: digest.to_string() })
}

/// The replaced key's file, with an end.
fn ended(old: &KeyFile, ask: &KeyRequest, now: jiff::Timestamp) -> Result<KeyFile, VerbError> {
    let overlap = ask.overlap.as_deref().map_or(Ok(USUAL_OVERLAP), |text| span("overlap", text))?;
    let end = later(now, overlap)?;
    let mut file = old.clone();
    for key in &mut file.keys {
        key.expires = Some(key.expires.filter(|before| before.0 < end.0).unwrap_or(end));
    }
    Ok(file)
}

async fn put(store: &KeyStore, file: &KeyFile) -> Result<(), VerbError> {
    let (store, file) = (store.clone(), file.clone());
    let salt = u64::from_ne_bytes(random::bytes());
    blocking(move || store.write(&file, &format!("{salt:016x}"))).await
}

/// Reloads the configuration and says whether the key is in force as it should be.
async fn in_force(state: &AdminState, who: &Operator, id: &str, wanted: bool) -> Result<(), VerbError> {
    let unavailable = |message: &str| VerbError(StatusCode::SERVICE_UNAVAILABLE, message.to_owned());
    let report = state.reload.reload(Arc::clone(&who.who)).await;
    let report = report.ok_or_else(|| unavailable("the gateway is shutting down"))?;
    let settings = state.settings();
    if known(&settings)?.keys.get(id).is_some() == wanted {
        return Ok(());
    }
    if report.outcome == ReloadOutcome::Failed {
        let message = "the configuration has errors, so no change of a key takes effect; GET /admin/v1/status says which";
        return Err(VerbError(StatusCode::CONFLICT, message.to_owned()));
    }
    let about = report.problems.iter().filter(|problem| problem.path.contains(id));
    let said: Vec<String> = about.map(ToString::to_string).collect();
    let message = format!("the configuration does not take it: {}", said.join("; "));
    Err(VerbError(StatusCode::UNPROCESSABLE_ENTITY, message))
}

/// Undoes a creation that did not work out.
async fn take_back(store: &KeyStore, id: &str, old: Option<KeyFile>, state: &AdminState, who: &Operator) {
    let (there, id) = (store.clone(), id.to_owned());
    // What cannot be undone is seen by whoever lists the keys.
    let _ = blocking(move || there.remove(&id)).await;
    if let Some(old) = old {
        let _ = put(store, &old).await;
    }
    let _ = state.reload.reload(Arc::clone(&who.who)).await;
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VerbError> + Send + 'static,
) -> Result<T, VerbError> {
    let failed =
        |error: tokio::task::JoinError| VerbError(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    spawn_blocking(work).await.map_err(failed)?
}

fn span(field: &str, text: &str) -> Result<Duration, VerbError> {
    let read = text.parse::<Span>();
    read.map(|span| span.0)
        .map_err(|problem| bad_request(format!("`{field}`: {}", problem.replace('\n', "; "))))
}

fn later(now: jiff::Timestamp, span: Duration) -> Result<Moment, VerbError> {
    let end = now.checked_add(span).ok().and_then(|end| end.round(jiff::Unit::Second).ok());
    end.map(Moment).ok_or_else(|| bad_request("the time is too far away".to_owned()))
}

fn moment(at: SystemTime) -> jiff::Timestamp {
    jiff::Timestamp::try_from(at).unwrap_or(jiff::Timestamp::MAX)
}

fn text_of(at: SystemTime) -> String {
    moment(at).to_string()
}
