//! No-harm matrix: the fleets, kinds of requests and classes with which a
//! gateway is compared with the same clients sending straight to the engines.
//! Each cell has the least ratio of output tokens per second that the gateway
//! must reach.
//!
//! Two measurements share this definition: `loadtest no-harm` in real time over
//! HTTP, and its twin in virtual time.

use crate::sim::engine::profile::{StepLoad, StepProfile};

/// Engines of one kind in a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineGroup {
    /// Name of their step-time profile.
    pub profile: &'static str,
    /// Number of engines.
    pub count: u16,
}

/// Engines, and the clients that keep them busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixFleet {
    pub name: &'static str,
    pub groups: &'static [EngineGroup],
    /// Clients that send usual requests; each has one request open at any time.
    pub clients: u32,
    /// Prompt tokens of a usual request.
    pub prompt: u32,
    /// Output tokens of a usual request.
    pub output: u32,
}

/// Kind of requests that the clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Usual requests, as streams.
    Stream,
    /// Usual requests, as whole answers.
    Plain,
    /// Usual requests, half of them as streams.
    Half,
    /// Streams with two choices.
    Two,
    /// Streams that begin with one long system message; engines have prefix
    /// caches.
    Shared,
    /// Streams of 8,000-token prompts.
    Long,
    /// Whole answers of one token.
    OneToken,
}

/// Requests of a cell's clients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CellRequests {
    /// Number of clients.
    pub clients: u32,
    /// Share of requests for whole answers, `0.0..=1.0`.
    pub plain: f64,
    /// Prompt tokens, the shared ones included.
    pub prompt: u32,
    /// Prompt tokens that all requests share.
    pub shared: u32,
    /// Output tokens of each choice.
    pub output: u32,
    /// Choices per request.
    pub n: u32,
}

/// A built-in latency class with its ITL objective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CellClass {
    pub name: &'static str,
    /// TTFT objective in seconds.
    pub ttft_s: f64,
    /// ITL objective in milliseconds.
    pub itl_ms: f64,
    /// Seconds that the class's requests may wait.
    pub max_wait_s: f64,
}

/// Whether engines can meet a class's ITL objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectiveFit {
    /// The engines meet the objective under the cell's whole load.
    FullLoad,
    /// The engines meet the objective only under less load than the cell's.
    LightLoad,
    /// The engines miss the objective even with one request, so the objective
    /// must not affect dispatch.
    Never,
}

/// One cell of the matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatrixCell {
    pub fleet: &'static MatrixFleet,
    pub kind: RequestKind,
    pub class: &'static CellClass,
}

/// Share of an ITL objective that the mean ITL may use under a load that counts
/// as meeting the objective. The rest is for variation between steps.
const MARGIN: f64 = 0.8;

const fn group(profile: &'static str, count: u16) -> EngineGroup {
    EngineGroup { profile, count }
}

pub const FLEETS: [MatrixFleet; 6] = [
    MatrixFleet { name: "a100-8b", groups: &[group("a100-8b", 4)], clients: 128, prompt: 500, output: 150 },
    MatrixFleet { name: "h100-8b", groups: &[group("h100-8b", 1)], clients: 512, prompt: 500, output: 150 },
    MatrixFleet { name: "a10", groups: &[group("a10-8b", 2)], clients: 32, prompt: 500, output: 150 },
    MatrixFleet { name: "l4", groups: &[group("l4-8b", 2)], clients: 32, prompt: 200, output: 100 },
    MatrixFleet { name: "70b", groups: &[group("a100-70b-tp4", 2)], clients: 128, prompt: 500, output: 150 },
    MatrixFleet {
        name: "mixed",
        groups: &[group("a100-8b", 2), group("a10-8b", 1), group("l4-8b", 1)],
        clients: 96,
        prompt: 500,
        output: 150,
    },
];

pub const KINDS: [RequestKind; 7] = [
    RequestKind::Stream,
    RequestKind::Plain,
    RequestKind::Half,
    RequestKind::Two,
    RequestKind::Shared,
    RequestKind::Long,
    RequestKind::OneToken,
];

pub const CLASSES: [CellClass; 3] = [
    CellClass { name: "interactive", ttft_s: 1.0, itl_ms: 50.0, max_wait_s: 15.0 },
    CellClass { name: "standard", ttft_s: 5.0, itl_ms: 100.0, max_wait_s: 120.0 },
    CellClass { name: "batch", ttft_s: 60.0, itl_ms: 500.0, max_wait_s: 3600.0 },
];

/// All cells, fleet by fleet.
pub fn cells() -> impl Iterator<Item = MatrixCell> {
    FLEETS.iter().flat_map(|fleet| {
        let of = move |kind| CLASSES.iter().map(move |class| MatrixCell { fleet, kind, class });
        KINDS.into_iter().flat_map(of)
    })
}

impl RequestKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Plain => "plain",
            Self::Half => "half",
            Self::Two => "two",
            Self::Shared => "shared",
            Self::Long => "long",
            Self::OneToken => "one-token",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        KINDS.into_iter().find(|kind| kind.name() == name)
    }
}

impl MatrixFleet {
    pub fn named(name: &str) -> Option<&'static Self> {
        FLEETS.iter().find(|fleet| fleet.name == name)
    }

    /// The requests of this kind that the clients send. As many sequences are
    /// open as with usual requests; fewer only where prompts are long.
    pub fn requests(&self, kind: RequestKind) -> CellRequests {
        let Self { clients, prompt, output, .. } = *self;
        let usual = CellRequests { clients, plain: 0.0, prompt, shared: 0, output, n: 1 };
        match kind {
            RequestKind::Stream => usual,
            RequestKind::Plain => CellRequests { plain: 1.0, ..usual },
            RequestKind::Half => CellRequests { plain: 0.5, ..usual },
            RequestKind::Two => CellRequests { clients: clients / 2, n: 2, ..usual },
            RequestKind::Shared => CellRequests { prompt: 3000, shared: 2900, output: 100, ..usual },
            RequestKind::Long => CellRequests { clients: clients / 4, prompt: 8000, output: 100, ..usual },
            RequestKind::OneToken => CellRequests { plain: 1.0, output: 1, ..usual },
        }
    }

    /// Step-time profiles, one for each engine of the fleet.
    pub fn profiles(&self) -> impl Iterator<Item = StepProfile> {
        let each = |group: &'static EngineGroup| {
            let profile = StepProfile::named(group.profile);
            profile.into_iter().flat_map(|profile| std::iter::repeat_n(profile, usize::from(group.count)))
        };
        self.groups.iter().flat_map(each)
    }
}

impl CellClass {
    pub fn named(name: &str) -> Option<&'static Self> {
        CLASSES.iter().find(|class| class.name == name)
    }

    /// Whether the class would rather have requests refused than served long after its objective.
    fn is_urgent(&self) -> bool {
        self.name == "interactive"
    }
}

impl MatrixCell {
    /// Name of the cell: `fleet/requests/class`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.fleet.name, self.kind.name(), self.class.name)
    }

    /// The requests of the cell's clients.
    pub fn requests(&self) -> CellRequests {
        self.fleet.requests(self.kind)
    }

    /// Whether the class itself asks for refusals at engines that generate `tokens_per_second` in
    /// all, by Little's law: an answer takes longer than the class may wait, or clients of an urgent
    /// class ask for more than the engines can do within its objectives.
    pub fn asks_for_refusals(&self, tokens_per_second: f64) -> bool {
        let requests = self.requests();
        let open = f64::from(requests.clients * requests.n * requests.output);
        let answer_s = open / tokens_per_second.max(1e-9);
        let first_token_s = if requests.output == 1 { answer_s } else { 0.0 };
        let is_overloaded =
            first_token_s > self.class.ttft_s || self.objective_fit() == ObjectiveFit::LightLoad;
        answer_s > self.class.max_wait_s || (self.class.is_urgent() && is_overloaded)
    }

    /// Whether the cell's engines, each with an equal part of the load, meet
    /// the class's ITL objective. The fastest engines decide, because a gateway
    /// may prefer them.
    pub fn objective_fit(&self) -> ObjectiveFit {
        let requests = self.requests();
        let engines = self.fleet.groups.iter().map(|group| f64::from(group.count)).sum::<f64>();
        let sequences = f64::from(requests.clients * requests.n) / engines;
        let best = |sequences: f64| {
            self.fleet
                .profiles()
                .map(|one| mean_itl_ms(&one, &requests, sequences))
                .fold(f64::INFINITY, f64::min)
        };
        let loaded =
            self.fleet.profiles().map(|one| mean_itl_ms(&one, &requests, sequences)).fold(0.0, f64::max);
        match self.class.itl_ms {
            _ if requests.output == 1 => ObjectiveFit::FullLoad,
            objective if loaded <= objective * MARGIN => ObjectiveFit::FullLoad,
            objective if best(1.0) > objective => ObjectiveFit::Never,
            _ => ObjectiveFit::LightLoad,
        }
    }

    /// Least ratio of output tokens per second: through a gateway with its
    /// defaults, over straight at the engines.
    pub fn min_ratio(&self) -> f64 {
        match (self.class.is_urgent(), self.objective_fit()) {
            (true, ObjectiveFit::LightLoad) => 0.80,
            (true, ObjectiveFit::Never) => 0.95,
            _ => 0.97,
        }
    }
}

/// Mean ITL in milliseconds of a stream at an engine with `sequences`
/// sequences, whose prefills share the steps.
fn mean_itl_ms(profile: &StepProfile, requests: &CellRequests, sequences: f64) -> f64 {
    let (prompt, output) = (f64::from(requests.prompt - requests.shared), f64::from(requests.output));
    let rows = sequences.min(f64::from(profile.max_seqs));
    // Each sequence prefills its part of a prompt once in `output` steps.
    let read = rows * prompt / output / f64::from(requests.n);
    let load = StepLoad {
        prefill_tokens: read as u64,
        decodes: rows as u64,
        decode_kv: (rows * (f64::from(requests.prompt) + output / 2.0)) as u64,
        prefill_area: read * (f64::from(requests.prompt) - prompt / 2.0),
    };
    profile.step_ms(&load)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_engines_clients_and_a_name_of_its_own() {
        let cells: Vec<MatrixCell> = cells().collect();
        assert_eq!(cells.len(), 6 * 7 * 3);
        let mut names: Vec<String> = cells.iter().map(MatrixCell::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), cells.len());
        for cell in &cells {
            let requests = cell.requests();
            assert!(cell.fleet.profiles().count() > 0 && requests.clients > 0, "{}", cell.name());
            assert!(requests.shared < requests.prompt, "{}", cell.name());
            let least = cell.fleet.profiles().map(|one| one.kv_tokens).min().expect("an engine");
            assert!(u64::from(requests.prompt + requests.output) < least, "{}", cell.name());
        }
    }

    #[test]
    fn marks_follow_what_engines_can_keep() {
        let cell = |fleet: &str, kind, class: &str| MatrixCell {
            fleet: MatrixFleet::named(fleet).expect("a fleet"),
            kind,
            class: CellClass::named(class).expect("a class"),
        };
        let table = [
            ("a100-8b", RequestKind::Stream, "interactive", ObjectiveFit::FullLoad, 0.97),
            ("l4", RequestKind::Stream, "interactive", ObjectiveFit::Never, 0.95),
            ("l4", RequestKind::Plain, "standard", ObjectiveFit::FullLoad, 0.97),
            ("70b", RequestKind::Half, "interactive", ObjectiveFit::LightLoad, 0.80),
            ("70b", RequestKind::Half, "batch", ObjectiveFit::FullLoad, 0.97),
            ("l4", RequestKind::OneToken, "interactive", ObjectiveFit::FullLoad, 0.97),
        ];
        for (fleet, kind, class, keeps, mark) in table {
            let cell = cell(fleet, kind, class);
            assert_eq!(cell.objective_fit(), keeps, "{}", cell.name());
            assert!((cell.min_ratio() - mark).abs() < 1e-9, "{}", cell.name());
        }
    }
}
