//! Arguments of `penstock import`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::output::ResultOutput;

/// `penstock import`
#[derive(Debug, Subcommand)]
pub enum ImportCommand {
    /// Import the configuration of a LiteLLM proxy.
    ///
    /// Entries of `model_list` that are alike become the replicas of a pool. LiteLLM
    /// keeps keys and teams in its database, and of each key the SHA-256: with --keys
    /// and --teams clients go on with the keys that they have. Values that stand in the
    /// environment (`os.environ/...`) stay there, but for addresses.
    #[command(
        after_help = "Examples:\n  penstock import litellm config.yaml -o imported.yaml\n  penstock import litellm config.yaml --keys keys.json --teams teams.json\n\nThe two files, from a running proxy:\n  curl -H \"$AUTH\" \"$LITELLM/key/list?return_full_object=true&size=100\" > keys.json\n  curl -H \"$AUTH\" \"$LITELLM/team/list\" > teams.json"
    )]
    Litellm(LiteLlmArgs),
    /// Import the manifests of llm-d or the Gateway API Inference Extension.
    ///
    /// Reads InferencePool, InferenceModel, InferenceObjective and HTTPRoute, and the
    /// Deployments whose pods a pool selects, from one YAML file.
    #[command(
        name = "llm-d",
        after_help = "Example:\n  penstock import llm-d manifests.yaml -o imported.yaml"
    )]
    LlmD(PlainImportArgs),
    /// Import upstreams of an nginx configuration.
    ///
    /// An `upstream` becomes a pool; keys in `map $http_authorization` become keys of
    /// tenants.
    #[command(
        after_help = "Example:\n  penstock import nginx nginx.conf --model llama-3.3-70b -o imported.yaml"
    )]
    Nginx(PlainImportArgs),
}

/// Where what was made goes.
#[derive(Debug, Clone, Args)]
pub struct ImportForm {
    /// Write the configuration here, and the report to standard output; absent =
    /// the configuration to standard output, and the report to standard error. A
    /// file that is there already stays as it is.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// How to print the report.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ResultOutput::Table)]
    pub report: ResultOutput,
    /// The same as `--report json`.
    #[arg(long, hide = true, conflicts_with = "report")]
    pub json: bool,
}

impl ImportForm {
    /// Whether the report is printed for programs.
    pub const fn is_json(&self) -> bool {
        self.json || matches!(self.report, ResultOutput::Json)
    }
}

/// `penstock import litellm`
#[derive(Debug, Args)]
pub struct LiteLlmArgs {
    /// The proxy's configuration.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Its keys: what GET /key/list?return_full_object=true answers, or one key a
    /// line; may be given more than once.
    #[arg(long, value_name = "FILE")]
    pub keys: Vec<PathBuf>,
    /// Its teams: what GET /team/list answers; may be given more than once.
    #[arg(long, value_name = "FILE")]
    pub teams: Vec<PathBuf>,
    /// Where the result goes.
    #[command(flatten)]
    pub form: ImportForm,
}

/// `penstock import llm-d` and `penstock import nginx`
#[derive(Debug, Args)]
pub struct PlainImportArgs {
    /// The file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A model that the engines serve, where the file does not say; may be given more
    /// than once.
    #[arg(long, value_name = "NAME")]
    pub model: Vec<String>,
    /// Where the result goes.
    #[command(flatten)]
    pub form: ImportForm,
}
