//! `models`: windows and aliases.

use std::collections::HashMap;

use crate::config::field::Field;
use crate::config::file::File;
use crate::config::settings::Settings;
use crate::config::validate::findings::Findings;
use crate::config::validate::pools::Served;
use crate::config::validate::{limits, names};
use crate::core::ids::ModelId;
use crate::core::policy::Model;
use crate::core::table::Table;

/// The public models.
#[derive(Debug)]
pub(super) struct Models {
    pub(super) table: Table<ModelId, Model>,
    /// Every name a client may use.
    pub(super) names: HashMap<String, ModelId>,
}

pub(super) fn validate(
    file: &File,
    served: &Served,
    previous: Option<&Settings>,
    findings: &mut Findings<'_>,
) -> Models {
    let section = Field::top("models");
    let mut table = previous.map(|old| Table::successor(&old.policy.models)).unwrap_or_default();
    let mut all = HashMap::new();
    for number in 0..served.model_ids.capacity() {
        let name = served.model_ids.name(ModelId::from(number));
        let id = table.reserve(name);
        let Some(pools) = served.pools_of.get(&id) else { continue };
        let max_model_len = file.models.get(name).and_then(|model| model.max_model_len);
        table.insert(name, Model { pools: pools.clone(), max_model_len });
        all.insert(name.to_owned(), id);
    }
    for (name, model) in file.models.iter() {
        let field = section.key(name);
        limits::at_least_one(model.max_model_len.map_or(1, u64::from), &field.key("max_model_len"), findings);
        let Some(id) = table.id(name) else {
            if findings.whole("pools") {
                let hint = "name it in `models` of a pool, or take it away here";
                findings.error(&field, "no pool serves this model", hint);
            }
            continue;
        };
        for (at, alias) in model.aliases.iter().enumerate() {
            let field = field.key("aliases").index(at);
            names::model(alias, &field, findings);
            if let Some(other) = all.insert(alias.clone(), id) {
                all.insert(alias.clone(), other);
                let message = format!("`{alias}` stands for `{}` already", table.name(other));
                findings.error(&field, message, "a name stands for one model");
            }
        }
    }
    Models { table, names: all }
}
