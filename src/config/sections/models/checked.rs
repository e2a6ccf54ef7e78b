//! Checked models: the models of the file, by number.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::config::file::ConfigFile;
use crate::config::settings::names::ModelNames;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::names;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::ModelId;
use crate::core::model::policy::Model;

/// The public models.
#[derive(Debug)]
pub(in crate::config) struct CheckedModels {
    pub(in crate::config) table: IdTable<ModelId, Model>,
    /// Every name a client may use, but for the tenants' own.
    pub(in crate::config) names: ModelNames,
}

impl CheckedModels {
    pub(in crate::config) fn aliases(&mut self, file: &ConfigFile, findings: &mut Findings<'_>) {
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
    pub(in crate::config) fn served(
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
