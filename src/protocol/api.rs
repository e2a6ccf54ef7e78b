//! API calls: the calls that clients may make, with the path, dialect and protocol of each.

/// An API call of the data port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages`.
    Messages,
    /// `POST /v1/messages/count_tokens`.
    CountTokens,
    /// `POST /rerank`, `/v1/rerank` or `/v2/rerank`.
    Rerank(RerankPath),
    /// `POST /score` or `/v1/score`.
    Score,
    /// `POST /pooling`.
    Pooling,
    /// `POST /classify`.
    Classify,
    /// `POST /v1/audio/transcriptions`.
    Transcriptions,
    /// `POST /v1/audio/translations`.
    Translations,
    /// `POST /tokenize`.
    Tokenize,
    /// `POST /detokenize`.
    Detokenize,
    /// TGI's `POST /generate`.
    TgiGenerate,
    /// TGI's `POST /generate_stream`.
    TgiGenerateStream,
}

/// The path by which a client asked for a rerank. Engines answer each path in a shape of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RerankPath {
    /// `/rerank`.
    Plain,
    /// `/v1/rerank`.
    V1,
    /// `/v2/rerank`.
    V2,
}

/// The shape of errors that the client of a call understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `{"error":{message,type,param,code}}`.
    OpenAi,
    /// The shape of `OpenAi`, and typed events inside streams.
    Responses,
    /// `{"type":"error","error":{type,message}}`.
    Anthropic,
    /// `{"error":"..","error_type":".."}`.
    Tgi,
}

/// The structure of an engine's stream for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    /// `choices` in every event, `[DONE]` at the end.
    Chunks,
    /// Anthropic's typed events, `message_stop` at the end.
    Messages,
    /// Typed events, `response.completed` or `response.incomplete` at the end.
    Responses,
    /// One token per event, `generated_text` in the last.
    Tgi,
}

impl Api {
    /// Every call, with each engine path once.
    pub const ALL: [Self; 18] = [
        Self::Chat,
        Self::Completions,
        Self::Embeddings,
        Self::Responses,
        Self::Messages,
        Self::CountTokens,
        Self::Rerank(RerankPath::Plain),
        Self::Rerank(RerankPath::V1),
        Self::Rerank(RerankPath::V2),
        Self::Score,
        Self::Pooling,
        Self::Classify,
        Self::Transcriptions,
        Self::Translations,
        Self::Tokenize,
        Self::Detokenize,
        Self::TgiGenerate,
        Self::TgiGenerateStream,
    ];

    /// The call's path at the engine.
    pub const fn upstream_path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::Rerank(RerankPath::Plain) => "/rerank",
            Self::Rerank(RerankPath::V1) => "/v1/rerank",
            Self::Rerank(RerankPath::V2) => "/v2/rerank",
            Self::Score => "/score",
            Self::Pooling => "/pooling",
            Self::Classify => "/classify",
            Self::Transcriptions => "/v1/audio/transcriptions",
            Self::Translations => "/v1/audio/translations",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
            Self::TgiGenerate => "/generate",
            Self::TgiGenerateStream => "/generate_stream",
        }
    }

    /// The call for a client's path; absent for an unknown path.
    pub fn from_path(path: &str) -> Option<Self> {
        if path == "/v1/score" {
            return Some(Self::Score);
        }
        Self::ALL.into_iter().find(|api| api.upstream_path() == path)
    }

    /// `gen_ai.operation.name` of the OpenTelemetry conventions. Calls that have no name there get
    /// one of Penstock's own.
    pub const fn operation_name(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages | Self::Responses => "chat",
            Self::Completions | Self::TgiGenerate | Self::TgiGenerateStream => "text_completion",
            Self::Embeddings => "embeddings",
            Self::CountTokens => "count_tokens",
            Self::Rerank(_) => "rerank",
            Self::Score => "score",
            Self::Pooling => "pooling",
            Self::Classify => "classify",
            Self::Transcriptions => "transcription",
            Self::Translations => "translation",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
        }
    }

    /// The dialect of errors for the client of this call.
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Messages | Self::CountTokens => Dialect::Anthropic,
            Self::TgiGenerate | Self::TgiGenerateStream => Dialect::Tgi,
            Self::Responses => Dialect::Responses,
            _ => Dialect::OpenAi,
        }
    }

    /// Whether the engine decodes tokens for the call. Other calls are prefill only, or do not run
    /// the model.
    pub const fn generates(self) -> bool {
        matches!(
            self,
            Self::Chat
                | Self::Completions
                | Self::Responses
                | Self::Messages
                | Self::Transcriptions
                | Self::Translations
                | Self::TgiGenerate
                | Self::TgiGenerateStream
        )
    }

    /// Whether the answer can be a stream of events.
    pub const fn can_stream(self) -> bool {
        self.generates() && !matches!(self, Self::TgiGenerate)
    }

    /// Whether the call runs the model. Tokenizer calls need only the model's tokenizer.
    pub const fn runs_model(self) -> bool {
        !matches!(self, Self::Tokenize | Self::Detokenize | Self::CountTokens)
    }

    /// Whether the body is `multipart/form-data`, not JSON.
    pub const fn is_multipart(self) -> bool {
        matches!(self, Self::Transcriptions | Self::Translations)
    }

    /// Whether the call has the field `stream_options`.
    pub const fn has_stream_options(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }

    /// The request field that an error names when the prompt is at fault.
    pub const fn prompt_field(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages | Self::CountTokens => "messages",
            Self::Completions | Self::Tokenize => "prompt",
            Self::TgiGenerate | Self::TgiGenerateStream => "inputs",
            Self::Rerank(_) => "documents",
            Self::Score => "text_2",
            Self::Transcriptions | Self::Translations => "file",
            Self::Detokenize => "tokens",
            Self::Embeddings | Self::Responses | Self::Pooling | Self::Classify => "input",
        }
    }

    pub(crate) const fn protocol(self) -> Protocol {
        match self {
            Self::Messages => Protocol::Messages,
            Self::Responses => Protocol::Responses,
            Self::TgiGenerate | Self::TgiGenerateStream => Protocol::Tgi,
            _ => Protocol::Chunks,
        }
    }
}
