//! Parameters of a generation request, without its prompt.

use serde_json::Value;

use crate::server::options::{SimOptions, VllmFlags};
use crate::server::vllm::error::VllmError;
use crate::server::vllm::fields::JsonFields;

/// A function that the answer must call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForcedTool {
    pub(super) name: String,
    /// Name of a parameter to fill in, if the function has one.
    pub(super) parameter: Option<String>,
}

/// Parameters of a generation request.
#[derive(Debug, Clone, Default)]
pub(super) struct Params {
    /// Model name in the answer.
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) n: i64,
    pub(super) max_tokens: Option<i64>,
    pub(super) min_tokens: u32,
    pub(super) ignore_eos: bool,
    pub(super) logprobs: Option<u32>,
    pub(super) priority: i64,
    pub(super) seed: i64,
    pub(super) echo: bool,
    pub(super) salt: String,
    pub(super) truncate: Option<u32>,
    pub(super) temperature: f64,
    pub(super) top_p: f64,
}

impl Params {
    /// Reads the fields that chat and completions share. `limits` are the
    /// fields that may hold the output limit, the strongest first.
    pub(super) fn read(
        fields: &JsonFields,
        options: &SimOptions,
        limits: &[&str],
    ) -> Result<Self, VllmError> {
        let mut max_tokens = None;
        for name in limits {
            max_tokens = max_tokens.or(fields.int(name)?);
        }
        fields.string_or_list("stop")?;
        let count = |name| fields.int(name).map(|number| number.map(to_u32));
        let (include_usage, continuous_usage) = stream_options(fields)?;
        let force = options.vllm.force_include_usage;
        Ok(Self {
            stream: fields.bool("stream")?,
            include_usage: include_usage || force,
            continuous_usage: (include_usage && continuous_usage) || force,
            n: fields.int("n")?.unwrap_or(1),
            max_tokens,
            min_tokens: count("min_tokens")?.unwrap_or(0),
            ignore_eos: fields.bool("ignore_eos")?,
            logprobs: logprobs(fields)?,
            priority: fields.int("priority")?.unwrap_or(0),
            seed: fields.int("seed")?.unwrap_or(0),
            echo: fields.bool("echo")?,
            salt: fields.string("cache_salt")?.unwrap_or_default().to_owned(),
            truncate: count("truncate_prompt_tokens")?,
            temperature: fields.float("temperature")?.unwrap_or(1.0),
            top_p: fields.float("top_p")?.unwrap_or(1.0),
            model: model(fields, options)?,
        })
    }

    /// The parameters with an output of exactly this many tokens.
    pub(super) fn with_exact_output(self, tokens: i64) -> Self {
        Self { max_tokens: Some(tokens), ignore_eos: true, temperature: 1.0, top_p: 1.0, ..self }
    }

    /// Checks that vLLM makes after counting the prompt.
    pub(super) fn check_sampling(&self) -> Result<(), VllmError> {
        const MAX_N: i64 = 16_384;
        if self.n < 1 {
            return Err(VllmError::bad(format!("n must be at least 1, got {}.", self.n)));
        }
        if self.n > MAX_N {
            let hint = "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.";
            return Err(VllmError::bad(format!("n must be at most {MAX_N}, got {}. {hint}", self.n)));
        }
        if self.temperature < 0.0 {
            let message = format!("temperature must be non-negative, got {:?}.", self.temperature);
            return Err(VllmError::parameter("temperature", &message, format!("{:?}", self.temperature)));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            let message = format!("top_p must be in (0, 1], got {:?}.", self.top_p);
            return Err(VllmError::parameter("top_p", &message, format!("{:?}", self.top_p)));
        }
        Ok(())
    }
}

fn to_u32(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

/// Model name for the answer: the first served name, or the adapter's own name.
pub(in crate::server::vllm) fn model(fields: &JsonFields, options: &SimOptions) -> Result<String, VllmError> {
    let Some(name) = fields.string("model")?.filter(|name| !name.is_empty()) else {
        return Ok(options.model().to_owned());
    };
    if options.loras.iter().any(|lora| lora == name) {
        return Ok(name.to_owned());
    }
    if options.names().any(|known| known == name) {
        return Ok(options.model().to_owned());
    }
    Err(VllmError::unknown_model(name, options.models.iter().map(String::as_str)))
}

fn stream_options(fields: &JsonFields) -> Result<(bool, bool), VllmError> {
    let Some(options) = fields.get("stream_options") else { return Ok((false, false)) };
    if !fields.bool("stream")? {
        let message =
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)".to_owned();
        return Err(VllmError::bad(message).about("stream_options"));
    }
    let on = |name: &str| options.get(name).and_then(Value::as_bool).unwrap_or(false);
    Ok((on("include_usage"), on("continuous_usage_stats")))
}

/// Chat has `logprobs: true, top_logprobs: n`, completions `logprobs: n`.
fn logprobs(fields: &JsonFields) -> Result<Option<u32>, VllmError> {
    const MOST: i64 = 20;
    let asked = match fields.get("logprobs") {
        None | Some(Value::Bool(false)) => return Ok(None),
        Some(Value::Bool(true)) => fields.int("top_logprobs")?.unwrap_or(0),
        Some(_) => fields.int("logprobs")?.unwrap_or(0),
    };
    if asked > MOST {
        let message =
            format!("Requested sample logprobs of {asked}, which is greater than max allowed: {MOST}");
        return Err(VllmError::bad(message));
    }
    Ok(Some(to_u32(asked)))
}

/// The function to call; `None` unless the tool choice demands a call.
pub(super) fn tool(fields: &JsonFields, flags: &VllmFlags) -> Result<Option<ForcedTool>, VllmError> {
    let Some(tools) = fields.get("tools").and_then(Value::as_array).filter(|tools| !tools.is_empty()) else {
        return Ok(None);
    };
    let choice = fields.get("tool_choice");
    let named = match choice {
        Some(Value::String(mode)) if mode == "none" => return Ok(None),
        Some(Value::String(mode)) if mode == "required" => None,
        Some(Value::Object(_)) => {
            choice.and_then(|choice| choice.pointer("/function/name")).and_then(Value::as_str)
        }
        _ if flags.auto_tool_choice => return Ok(None),
        _ => {
            let message =
                "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set";
            return Err(VllmError::bad(message));
        }
    };
    let name = |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str).map(str::to_owned);
    let chosen = tools.iter().find(|tool| named.is_none() || name(tool).as_deref() == named);
    let Some((tool, name)) = chosen.and_then(|tool| Some((tool, name(tool)?))) else {
        return Err(VllmError::bad(
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
        ));
    };
    let parameters = tool.pointer("/function/parameters/properties").and_then(Value::as_object);
    let parameter = parameters.and_then(|parameters| parameters.keys().next().cloned());
    Ok(Some(ForcedTool { name, parameter }))
}
