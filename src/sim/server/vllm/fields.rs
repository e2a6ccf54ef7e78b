//! JSON fields of a request body, checked like vLLM's schema check and with its
//! error texts.

use serde_json::{Map, Value};

use super::error::VllmError;
use crate::server::http::call::ServerCall;

#[derive(Debug)]
pub(crate) struct JsonFields(pub(crate) Map<String, Value>);

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("<list of {} items>", items.len()),
        Value::Object(map) => format!("<dict of {} items>", map.len()),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
    }
}

/// Reads the body; an error names the mistake.
pub(super) fn parse(call: &ServerCall) -> Result<JsonFields, VllmError> {
    let json = call.header("content-type").is_some_and(|value| value.starts_with("application/json"));
    if !json {
        return Err(VllmError::invalid(None, "Unsupported Media Type: Only 'application/json' is allowed"));
    }
    if call.body.is_empty() {
        return Err(VllmError::field("missing", "body", "Field required", "None"));
    }
    match serde_json::from_slice(&call.body) {
        Ok(Value::Object(map)) => Ok(JsonFields(map)),
        Ok(other) => {
            let message = "Input should be a valid dictionary or object to extract fields from";
            Err(VllmError::field("model_attributes_type", "body", message, &describe(&other)))
        }
        Err(error) => Err(invalid_json(&call.body, &error)),
    }
}

fn invalid_json(body: &[u8], error: &serde_json::Error) -> VllmError {
    let lines = body.split(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
    let offset = lines.map(|line| line.len() + 1).sum::<usize>() + error.column();
    let loc = format!("body.{offset}");
    let detail = format!(
        "{{'type': 'json_invalid', 'loc': '{loc}', 'msg': 'JSON decode error', \
         'input': '<dict of 0 items>', 'ctx': {{'error': 'Expecting value'}}}}"
    );
    VllmError::invalid(Some(&loc), &detail)
}

impl JsonFields {
    /// The field, unless it is absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn required(&self, name: &str) -> Result<&Value, VllmError> {
        let missing = || {
            let input = format!("<dict of {} items>", self.0.len());
            VllmError::field("missing", &format!("body.{name}"), "Field required", &input)
        };
        self.get(name).ok_or_else(missing)
    }

    fn mismatch(name: &str, kind: &str, message: &str, value: &Value) -> VllmError {
        VllmError::field(kind, &format!("body.{name}"), message, &describe(value))
    }

    pub(crate) fn int(&self, name: &str) -> Result<Option<i64>, VllmError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
        let read = match value {
            Value::Number(number) => number.as_i64().or_else(|| number.as_f64().and_then(whole)),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        match (read, value) {
            (Some(number), _) => Ok(Some(number)),
            (None, Value::String(_)) => {
                let message = "Input should be a valid integer, unable to parse string as an integer";
                Err(Self::mismatch(name, "int_parsing", message, value))
            }
            (None, _) => Err(Self::mismatch(name, "int_type", "Input should be a valid integer", value)),
        }
    }

    pub(crate) fn float(&self, name: &str) -> Result<Option<f64>, VllmError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value {
            Value::Number(number) => Ok(number.as_f64()),
            _ => Err(Self::mismatch(name, "float_type", "Input should be a valid number", value)),
        }
    }

    pub(crate) fn bool(&self, name: &str) -> Result<bool, VllmError> {
        let Some(value) = self.get(name) else { return Ok(false) };
        let message = "Input should be a valid boolean, unable to interpret input";
        value.as_bool().ok_or_else(|| Self::mismatch(name, "bool_parsing", message, value))
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&str>, VllmError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let wrong = || Self::mismatch(name, "string_type", "Input should be a valid string", value);
        value.as_str().map(Some).ok_or_else(wrong)
    }

    pub(crate) fn list(&self, name: &str) -> Result<&[Value], VllmError> {
        let value = self.required(name)?;
        let wrong = || Self::mismatch(name, "list_type", "Input should be a valid list", value);
        value.as_array().map(Vec::as_slice).ok_or_else(wrong)
    }

    /// Checks that the field is a string or a list.
    pub(crate) fn string_or_list(&self, name: &str) -> Result<(), VllmError> {
        match self.get(name) {
            None | Some(Value::String(_) | Value::Array(_)) => Ok(()),
            Some(other) => Err(VllmError::either(&format!("body.{name}"), &describe(other))),
        }
    }
}
