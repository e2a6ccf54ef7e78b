//! Tenant context: what the check of a tenant looks up.

use std::net::SocketAddr;

use crate::config::file::ConfigFile;
use crate::config::settings::Settings;
use crate::config::validate::models::checked::CheckedModels;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{ClassId, PoolId};
use crate::core::model::policy::{Class, Pool};

/// What tenants refer to.
#[derive(Debug)]
pub(in crate::config::validate) struct TenantContext<'a> {
    pub(in crate::config::validate) file: &'a ConfigFile,
    pub(in crate::config::validate) previous: Option<&'a Settings>,
    pub(in crate::config::validate) listen: SocketAddr,
    pub(in crate::config::validate) classes: &'a IdTable<ClassId, Class>,
    pub(in crate::config::validate) models: &'a CheckedModels,
    pub(in crate::config::validate) pools: &'a IdTable<PoolId, Pool>,
}
