//! Check of `models`: windows and names.

use crate::config::file::ConfigFile;
use crate::config::sections::models::checked::CheckedModels;
use crate::config::sections::models::fallbacks;
use crate::config::sections::pools::check::CheckedPools;
use crate::config::settings::Settings;
use crate::config::settings::names::ModelNames;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::ModelId;
use crate::core::model::policy::Model;

pub(in crate::config) fn validate(
    file: &ConfigFile,
    served: &CheckedPools,
    previous: Option<&Settings>,
    findings: &mut Findings<'_>,
) -> CheckedModels {
    let mut table = previous.map(|old| IdTable::successor(&old.policy.models)).unwrap_or_default();
    let mut names = ModelNames::default();
    for number in 0..served.model_ids.capacity() {
        let name = served.model_ids.name(ModelId::from(number));
        let id = table.id_or_new(name);
        let Some(pools) = served.pools_of.get(&id) else { continue };
        let max_model_len = file.models.get(name).and_then(|model| model.max_model_len);
        table.insert(name, Model { pools: pools.clone(), max_model_len });
        names.models.insert(name.to_owned(), id);
    }
    for (name, model) in file.models.iter() {
        let field = FieldPath::top("models").key(name);
        numbers::at_least_one(
            model.max_model_len.map_or(1, u64::from),
            &field.key("max_model_len"),
            findings,
        );
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
