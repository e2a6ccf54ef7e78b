//! Tenant context: what the check of a tenant looks up.

use std::net::SocketAddr;

use crate::config::file::ConfigFile;
use crate::config::sections::models::checked::CheckedModels;
use crate::config::settings::Settings;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{ClassId, PoolId};
use crate::core::model::policy::{Class, Pool};

/// What tenants refer to.
#[derive(Debug)]
pub(in crate::config) struct TenantContext<'a> {
    pub(in crate::config) file: &'a ConfigFile,
    pub(in crate::config) previous: Option<&'a Settings>,
    /// Generation of the file.
    pub(in crate::config) generation: u64,
    pub(in crate::config) listen: SocketAddr,
    pub(in crate::config) classes: &'a IdTable<ClassId, Class>,
    pub(in crate::config) models: &'a CheckedModels,
    pub(in crate::config) pools: &'a IdTable<PoolId, Pool>,
}
