//! `models`: windows and names.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::config::field::FieldPath;
use crate::config::file::ConfigFile;
use crate::config::settings::Settings;
use crate::config::settings::names::ModelNames;
use crate::config::validate::fallbacks;
use crate::config::validate::findings::Findings;
use crate::config::validate::pools::CheckedPools;
use crate::config::validate::{limits, names};
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::ModelId;
use crate::core::model::policy::Model;

/// The public models.
#[derive(Debug)]
pub(super) struct CheckedModels {
    pub(super) table: IdTable<ModelId, Model>,
    /// Every name a client may use, but for the tenants' own.
    pub(super) names: ModelNames,
}

pub(super) fn validate(
    file: &ConfigFile,
    served: &CheckedPools,
    previous: Option<&Settings>,
    findings: &mut Findings<'_>,
) -> CheckedModels {
    let mut table = previous.map(|old| IdTable::successor(&old.policy.models)).unwrap_or_default();
    let mut names = ModelNames::default();
    for number in 0..served.model_ids.capacity() {
        let name = served.model_ids.name(ModelId::from(number));
        let id = table.reserve(name);
        let Some(pools) = served.pools_of.get(&id) else { continue };
        let max_model_len = file.models.get(name).and_then(|model| model.max_model_len);
        table.insert(name, Model { pools: pools.clone(), max_model_len });
        names.models.insert(name.to_owned(), id);
    }
    for (name, model) in file.models.iter() {
        let field = FieldPath::top("models").key(name);
        limits::at_least_one(model.max_model_len.map_or(1, u64::from), &field.key("max_model_len"), findings);
        if table.id(name).is_none() && model.split.is_empty() && findings.whole("pools") {
            let hint = "name it in `models` of a pool, or take it away here";
            findings.error(&field, "no pool serves this model", hint);
        }
    }
    let mut models = CheckedModels { table, names };
    models.aliases(file, findings);
    fallbacks::validate(file, &mut models, findings);
    models
}

impl CheckedModels {
    fn aliases(&mut self, file: &ConfigFile, findings: &mut Findings<'_>) {
        let all = file.models.iter();
        let splits = all.filter(|(_, model)| !model.split.is_empty()).map(|(name, _)| (name, name));
        let mut taken: HashMap<&str, &str> =
            splits.chain(self.table.iter().map(|(_, name, _)| (name, name))).collect();
        let is_known = |name: &str| self.table.id(name).is_some();
        for (name, model) in file.models.iter().filter(|(name, row)| is_known(name) || !row.split.is_empty())
        {
            for (at, alias) in model.aliases.iter().enumerate() {
                let field = FieldPath::top("models").key(name).key("aliases").index(at);
                names::model(alias, &field, findings);
                match taken.entry(alias) {
                    Entry::Occupied(other) => {
                        let message = format!("`{alias}` stands for `{}` already", other.get());
                        findings.error(&field, message, "a name stands for one model");
                    }
                    Entry::Vacant(free) => {
                        free.insert(name);
                        self.names.models.extend(self.table.id(name).map(|id| (alias.clone(), id)));
                    }
                }
            }
        }
    }

    /// The model of that name, which pools serve. Reports a name that is not
    /// one.
    pub(super) fn served(
        &self,
        name: &str,
        file: &ConfigFile,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> Option<ModelId> {
        if let Some(id) = self.table.id(name) {
            return Some(id);
        }
        if let Some(id) = self.names.models.get(name) {
            let hint = format!("write `{}`", self.table.name(*id));
            findings.error(field, format!("`{name}` is an alias"), hint);
        } else if let Some(model) = file.models.get(name).filter(|model| !model.split.is_empty()) {
            let targets: Vec<&str> = model.split.names().collect();
            let hint = format!("name some of these: {}", targets.join(", "));
            findings.error(field, format!("the requests for `{name}` are split"), hint);
        } else if findings.whole("pools") && findings.whole("models") {
            names::unknown("model", name, self.table.iter().map(|(_, name, _)| name), field, findings);
        }
        None
    }
}
