//! The figures of the rules and their exceptions, each with its reason. The rules hold for `src`.
//! `loadtest` is not checked, for type names used twice neither: each of its commands is a program of
//! its own, with a `Report` and a `Plan` that no other one sees.

/// The modules of one layer may use those of the layers after it, and
/// themselves.
pub(crate) const LAYERS: [&[&str]; 10] = [
    &["main", "cli", "app", "fuzzing"],
    &["admin", "record"],
    &["studies"],
    &["proxy", "scaler", "sim"],
    &["auth", "cluster", "fleet"],
    &["dispatcher"],
    &["usage"],
    &["config", "protocol", "tls", "telemetry"],
    &["engines", "tokens"],
    &["core"],
];

/// Arrows between two modules of a layer. What the operator chose for logs and
/// traces is a section of the settings: telemetry takes those types instead of a
/// copy of them.
pub(crate) const ALLOWED_ARROWS: [(&str, &str); 1] = [("telemetry", "config::settings")];

/// What would make the core depend on anything but its inputs.
pub(crate) const IMPURE: [&str; 17] = [
    "tokio",
    "hyper",
    "reqwest",
    "axum",
    "tracing",
    "metrics",
    "rand",
    "getrandom",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::env",
    "std::thread",
    "std::net",
    "std::fs",
    "std::io",
    "std::process",
    "dashmap",
];

/// Code lines of a file, tests not counted.
pub(crate) const MAX_LINES: usize = 400;

/// Modules inside a module.
pub(crate) const MAX_CHILDREN: usize = 12;

/// Modules that may hold more: the file, how many, why.
pub(crate) const MANY_CHILDREN: [(&str, usize, &str); 2] = [
    ("core/scheduler/tests/mod.rs", 33, "one file of tests for each rule of the scheduler"),
    ("lib.rs", 20, "the layers themselves"),
];

/// Fields of a struct.
pub(crate) const MAX_FIELDS: usize = 16;

/// Structs that may have more fields: the name, how many, why.
pub(crate) const MANY_FIELDS: [(&str, usize, &str); 6] = [
    ("ConfigFile", 20, "one field for each section of the file"),
    (
        "PoolSection",
        27,
        "one field for each key of a pool; serde flattens no struct that refuses unknown keys",
    ),
    (
        "ScenarioFleet",
        17,
        "one field for each key of an engine; serde flattens no struct that refuses unknown keys",
    ),
    ("JobSpec", 19, "one field for each thing that the proxy tells of a request"),
    (
        "StreamRow",
        28,
        "one field for each key of a stream; serde flattens no struct that refuses unknown keys",
    ),
    ("UsageRow", 25, "one field for each column of the usage table"),
];

/// Files with methods of one type, methods of traits not counted.
pub(crate) const MAX_IMPLS: usize = 3;

/// Types whose methods may stand in more files: the name, how many, why.
pub(crate) const MANY_IMPLS: [(&str, usize, &str); 4] = [
    ("Fleet", 9, "one file for each kind of question to the replicas"),
    ("Proxy", 8, "one file for each step of a request"),
    ("Scheduler", 25, "one file for each rule that needs queue, jobs, groups and replicas together"),
    ("World", 4, "one file each for the loop, exchanges, engines and autoscaling"),
];

/// Words that begin no noun phrase, and so no file.
pub(crate) const NO_NOUNS: [&str; 7] = ["What", "Who", "Where", "How", "Whether", "When", "Why"];

/// Functions that are named like questions and take `&mut self`: the file, the name, why.
pub(crate) const ACTING_PREDICATES: [(&str, &str, &str); 1] =
    [("sim/server/tests/client.rs", "is_silent", "reads from the socket")];

/// Files that import each other in a circle and are still to be taken apart.
pub(crate) const TANGLED: &[&[&str]] = &[];
