//! Model info: an engine's statements about itself and the models that it serves.

use serde::Deserialize;
use serde_json::Value;

/// Models of an engine, and its fixed bounds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelInfo {
    /// Names that the engine lists, including aliases and adapters.
    pub names: Vec<ServedName>,
    /// Context window in tokens, common to all models of the engine. `None` when the engine does
    /// not report it or the models differ.
    pub max_model_len: Option<u32>,
    /// Sequences that the engine can run at once, at least 1.
    pub slots: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedName {
    pub name: String,
    /// Context window in tokens. An adapter has the window of its base model.
    pub max_model_len: Option<u32>,
}

/// The answer is not the expected document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer is not what was asked for")]
pub struct InfoError;

impl ModelInfo {
    /// Context window, in tokens, of the engine's model `name`: its own, else the one common to all
    /// models.
    pub fn window(&self, name: &str) -> Option<u32> {
        let listed = self.names.iter().find(|served| served.name == name);
        listed.and_then(|served| served.max_model_len).or(self.max_model_len)
    }
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelEntry>,
}

#[derive(Deserialize)]
struct ModelEntry {
    id: String,
    #[serde(default)]
    parent: Value,
    #[serde(default)]
    max_model_len: Value,
}

/// Reads the OpenAI model list with vLLM's `max_model_len` and `parent`.
pub(super) fn read_models(body: &[u8], info: &mut ModelInfo) -> Result<(), InfoError> {
    let models: ModelList = serde_json::from_slice(body).map_err(|_| InfoError)?;
    let own = |entry: &ModelEntry| size(&entry.max_model_len);
    let of_base = |entry: &ModelEntry| {
        let parent = entry.parent.as_str()?;
        models.data.iter().find(|base| base.id == parent).and_then(own)
    };
    let names = models
        .data
        .iter()
        .map(|entry| ServedName {
            name: entry.id.clone(),
            max_model_len: own(entry).or_else(|| of_base(entry)),
        })
        .collect();
    info.names = names;
    let mut windows = info.names.iter().filter_map(|served| served.max_model_len);
    if let Some(first) = windows.next() {
        info.max_model_len = windows.all(|window| window == first).then_some(first);
    }
    Ok(())
}

/// A JSON object.
pub(super) fn object(body: &[u8]) -> Result<Value, InfoError> {
    let value: Value = serde_json::from_slice(body).map_err(|_| InfoError)?;
    if value.is_object() { Ok(value) } else { Err(InfoError) }
}

/// A size of at least 1; `None` when `value` is no such number.
pub(super) fn size(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|size| u32::try_from(size).ok()).filter(|size| *size > 0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::engines::EngineSpec;

    /// The body of a recorded answer.
    pub(in crate::engines) fn body(record: &str) -> &str {
        record.split_once(">>>>\n").and_then(|(_, answer)| answer.split_once("\r\n\r\n")).unwrap().1
    }

    pub(in crate::engines) fn read(spec: &EngineSpec, bodies: &[&str]) -> ModelInfo {
        let mut info = ModelInfo::default();
        assert_eq!(spec.info.len(), bodies.len());
        for (doc, body) in spec.info.iter().zip(bodies) {
            (doc.read)(body.as_bytes(), &mut info).unwrap();
        }
        info
    }

    fn models(text: &str) -> Result<ModelInfo, InfoError> {
        let mut info = ModelInfo::default();
        read_models(text.as_bytes(), &mut info).map(|()| info)
    }

    #[test]
    fn windows_that_differ_have_no_common_one() {
        let info =
            models(r#"{"data":[{"id":"a","max_model_len":10},{"id":"b","max_model_len":20}]}"#).unwrap();
        assert_eq!((info.max_model_len, info.window("b"), info.window("c")), (None, Some(20), None));
    }

    #[test]
    fn odd_windows_are_absent() {
        for odd in ["null", "0", "-1", "1.5", "\"2048\"", "99999999999"] {
            let info = models(&format!(r#"{{"data":[{{"id":"a","max_model_len":{odd}}}]}}"#)).unwrap();
            assert_eq!((info.names.len(), info.window("a")), (1, None), "{odd}");
        }
    }

    #[test]
    fn what_is_no_model_list_is_refused() {
        for bad in ["", "[]", "{}", "<html>", r#"{"data":[{}]}"#, r#"{"data":null}"#] {
            assert_eq!(models(bad), Err(InfoError), "{bad}");
        }
        assert_eq!(object(b"[1]"), Err(InfoError));
    }

    #[test]
    fn an_adapter_that_names_itself_as_parent_has_no_window() {
        let info = models(r#"{"data":[{"id":"a","parent":"a"}]}"#).unwrap();
        assert_eq!(info.window("a"), None);
    }
}
