//! Settings of identity: credentials and roles at each listener.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::keys::{HashedCredential, KeyDigest, KeyRing};
use crate::config::settings::shown;
use crate::core::model::ids::{ClassId, KeyId, ModelId, TenantId};

/// Who may come in.
#[derive(Debug, Clone)]
pub enum Auth {
    /// Everybody on loopback, as this tenant.
    Off(TenantId),
    /// Holders of a credential.
    Known(Arc<Credentials>),
}

/// Everything that admits a client.
#[derive(Debug, Default)]
pub struct Credentials {
    /// The generation of the file that they stand in: tells them from those of
    /// another one.
    pub epoch: u64,
    /// API keys by their public id.
    pub keys: KeyRing<KeyEntry>,
    /// Certificates by subject alternative name: `dns:`, `uri:` or `email:`
    /// and the name.
    pub certs: HashMap<String, Grant>,
    /// Identity providers.
    pub issuers: Vec<Arc<Issuer<ClientClaims>>>,
    /// How many failed attempts an address may make.
    pub failures: FailureLimits,
    /// The folder of key files; absent = there is none.
    pub key_folder: Option<KeyFolder>,
}

/// The folder of key files.
#[derive(Debug, Default)]
pub struct KeyFolder {
    /// Where it is.
    pub path: PathBuf,
    /// The text of each file when it was last good, by the file's name. A file that
    /// is broken now stays in force as it was.
    pub good: BTreeMap<String, Arc<str>>,
    /// What is wrong with files that are broken now.
    pub problems: Vec<String>,
}

/// What a credential stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Whose work it is.
    pub tenant: TenantId,
    /// The class of requests that ask for none; absent = the tenant's.
    pub class: Option<ClassId>,
    /// The classes it may use, of the tenant's; absent = all of those.
    pub classes: Option<Arc<BTreeSet<ClassId>>>,
    /// The models it may use, of the tenant's; absent = all of those.
    pub models: Option<Arc<BTreeSet<ModelId>>>,
    /// Its number among the credentials that have limits of their own.
    pub limited: Option<KeyId>,
}

impl Grant {
    /// All that the tenant may do.
    pub const fn whole(tenant: TenantId) -> Self {
        Self { tenant, class: None, classes: None, models: None, limited: None }
    }

    /// Whether it leaves the tenant the class.
    pub fn allows_class(&self, class: ClassId) -> bool {
        self.classes.as_ref().is_none_or(|classes| classes.contains(&class))
    }

    /// Whether it leaves the tenant the model.
    pub fn allows_model(&self, model: ModelId) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(&model))
    }
}

/// One API key.
#[derive(Debug, Clone)]
pub struct KeyEntry {
    /// Digest of the whole key text.
    pub digest: KeyDigest,
    /// What it stands for.
    pub grant: Grant,
    /// From when on it is not taken any more; absent = never.
    pub expires: Option<SystemTime>,
    /// Where it stands, and whose it is.
    pub origin: KeyOrigin,
}

/// Where a key stands, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyOrigin {
    /// The file in the folder of key files; absent = the configuration file.
    pub file: Option<Arc<str>>,
    /// Who holds it.
    pub note: Option<String>,
}

/// An identity provider, and what the claims of its tokens mean.
#[derive(Debug, PartialEq, Eq)]
pub struct Issuer<C> {
    /// Where its keys come from.
    pub source: KeySource,
    /// The audiences, one of which a token must name.
    pub audience: Vec<String>,
    /// How tokens may be signed, in the names of RFC 7518.
    pub algorithms: Vec<&'static str>,
    /// How far its clock may be off.
    pub leeway: Duration,
    /// Bytes of the longest token.
    pub max_token: usize,
    /// What its claims mean.
    pub claims: C,
}

/// Claims of clients' tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientClaims {
    /// The claim that says whose work it is, and what its values mean, the
    /// first one first.
    pub tenants: ClaimRule<TenantId>,
    /// The claim with the classes that a token may use; absent = all of its
    /// tenant's.
    pub classes: Option<ClaimRule<ClassId>>,
    /// The claim with the models that a token may use; absent = all of its
    /// tenant's.
    pub models: Option<ClaimRule<ModelId>>,
}

/// Claims of operators' tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct OperatorClaims {
    /// The claim that says what an operator may do; of several roles the highest counts.
    pub roles: ClaimRule<OperatorRole>,
    /// The claim with the operator's name in the audit log; without it, `sub`.
    pub name: String,
    /// The console as a client of the provider; absent = the console offers no sign-in there.
    pub console: Option<ConsoleClient>,
}

/// The console as a public client of an identity provider.
#[derive(Debug, PartialEq, Eq)]
pub struct ConsoleClient {
    pub id: String,
    /// What the console asks the provider for.
    pub scopes: Vec<String>,
}

/// Where a provider's public keys come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeySource {
    /// The provider's name for itself.
    pub issuer: String,
    /// Where its keys are; absent = where its discovery document says.
    pub jwks_url: Option<String>,
    /// The authorities (PEM) of its certificate; absent = those of the system.
    pub ca: Option<Arc<[u8]>>,
}

/// A claim, and what its values mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRule<T> {
    /// The claim's name; with dots it is inside others.
    pub claim: String,
    /// Values with their meaning, in the order of the file.
    pub values: Vec<(String, T)>,
}

/// How many failed attempts an address may make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FailureLimits {
    /// So many at once, at least 1.
    pub burst: u32,
    /// So many more in each minute; 0 = no limit at all.
    pub per_minute: u32,
}

/// The listeners' certificates, and who may use the operators' one.
#[derive(Debug, Clone, Default)]
pub struct Listeners {
    /// TLS of the client listener; absent = none.
    pub clients: Option<ListenerTls>,
    /// TLS of the operators' listener; absent = none.
    pub admin: Option<ListenerTls>,
    /// TLS of the scaler's listener; absent = none.
    pub scale: Option<ListenerTls>,
    /// Who may do what at the operators' listener.
    pub operators: Arc<Operators>,
}

/// TLS of one listener, ready for handshakes.
#[derive(Clone)]
pub struct ListenerTls {
    /// What handshakes are made with.
    pub config: Arc<rustls::ServerConfig>,
    /// When the certificate ends.
    pub ends: SystemTime,
    /// Hash of everything that it was made from; tells two apart.
    pub digest: [u8; 32],
}

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTls").field("ends", &self.ends).finish_non_exhaustive()
    }
}

impl PartialEq for ListenerTls {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// TLS of connections that the gateway opens, ready for handshakes.
#[derive(Clone)]
pub struct ClientTls {
    /// What handshakes are made with.
    pub config: Arc<rustls::ClientConfig>,
    /// The name that the other side's certificate must have; absent = the host of the URL.
    pub server_name: Option<Arc<str>>,
    /// Hash of the files that it was made from.
    pub digest: [u8; 32],
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl PartialEq for ClientTls {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest && self.server_name == other.server_name
    }
}

impl Eq for ClientTls {}

/// Who may do what at the operators' listener.
#[derive(Debug, Default)]
pub struct Operators {
    /// Tokens by their public id.
    pub tokens: KeyRing<TokenEntry>,
    /// Certificates by subject alternative name.
    pub certs: HashMap<String, OperatorRole>,
    /// Whether those on this machine need no credential.
    pub loopback: bool,
    /// Whether `/metrics` needs no credential.
    pub open_metrics: bool,
    /// Further names under which callers without a credential may ask.
    pub hosts: Vec<String>,
    /// The identity provider whose tokens are taken; absent = none.
    pub oidc: Option<Arc<Issuer<OperatorClaims>>>,
    /// The generation of the file that they stand in.
    pub epoch: u64,
}

impl Operators {
    /// Whether a credential can be asked for at all.
    pub fn are_known(&self) -> bool {
        !(self.tokens.is_empty() && self.certs.is_empty() && self.oidc.is_none())
    }

    /// The provider at which the console offers to sign in, and the console as its client.
    pub fn sign_in_provider(&self) -> Option<(&Issuer<OperatorClaims>, &ConsoleClient)> {
        let issuer = self.oidc.as_ref()?;
        Some((issuer, issuer.claims.console.as_ref()?))
    }
}

#[derive(Debug, Clone)]
pub struct TokenEntry {
    /// Digest of the whole token.
    pub digest: KeyDigest,
    /// What its holder may do.
    pub role: OperatorRole,
    /// From when on it is not taken any more; absent = never.
    pub expires: Option<SystemTime>,
}

/// What an operator may do; each role may do what the ones before it may.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OperatorRole {
    /// The operator may look: views and metrics.
    #[default]
    Read,
    /// The operator may look, use the verbs, and reload.
    Operate,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct AuditFile {
    /// Where it is.
    #[serde(serialize_with = "shown::path")]
    pub path: PathBuf,
    /// Bytes at which a new one is begun.
    #[serde(skip)]
    pub max_bytes: u64,
    /// Old files that are kept.
    #[serde(skip)]
    pub keep: u32,
}

impl HashedCredential for KeyEntry {
    fn digest(&self) -> &KeyDigest {
        &self.digest
    }

    fn expires(&self) -> Option<SystemTime> {
        self.expires
    }
}

impl HashedCredential for TokenEntry {
    fn digest(&self) -> &KeyDigest {
        &self.digest
    }

    fn expires(&self) -> Option<SystemTime> {
        self.expires
    }
}
