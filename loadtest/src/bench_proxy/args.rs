//! Arguments of `loadtest bench-proxy`: targets, rows, cores, files.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};

use super::rows::Row;

/// Arguments of `loadtest bench-proxy`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  cargo build --release --workspace
  target/release/loadtest bench-proxy --json bench.json --html bench.html

Every proxy stands in front of the same four engines, which answer at once. A proxy has one
core for itself; engines and load share another. In each round the proxies start afresh, and
each row is measured with one target after the other; which is first turns with the rows and
rounds. Figures are medians of the rounds, ratios are to nginx in the same round. Exit code 1
when a request failed.")]
pub struct BenchProxyArgs {
    /// Who is measured: direct (the engines themselves), nginx (least_conn, keep-alive), penstock
    /// (keys and log lines on), penstock-full (the same with the usage database and the scaler).
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    #[arg(default_values_t = TargetKind::ALL)]
    pub targets: Vec<TargetKind>,
    /// Another proxy that runs already, in front of --engine-port and the three ports after it,
    /// model `m`; may be given several times. All its threads are moved to --proxy-cpu.
    #[arg(long = "proxy", value_name = "NAME=URL,PID[,KEY]", value_parser = OtherProxy::parse)]
    pub proxies: Vec<OtherProxy>,
    /// What is measured; absent = all.
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    pub rows: Vec<Row>,
    /// Rounds; absent = 3, and 1 with --quick.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: Option<u32>,
    /// One short round of about 2 minutes; the whole measurement takes about 12.
    #[arg(long)]
    pub quick: bool,
    /// The proxies' core; absent = the first that this process may use.
    #[arg(long, value_name = "CORE")]
    pub proxy_cpu: Option<usize>,
    /// Cores of the engines and the load; absent = the second that this process may use.
    #[arg(long, value_name = "CORE", value_delimiter = ',')]
    pub load_cpu: Vec<usize>,
    /// Port of the first of the four engines; 0 takes free ones.
    #[arg(long, value_name = "PORT", default_value_t = 19100)]
    pub engine_port: u16,
    /// The gateway's program; absent = `penstock` beside this one.
    #[arg(long, value_name = "FILE")]
    pub penstock: Option<PathBuf>,
    /// nginx's program; absent = `nginx` of PATH or /usr/sbin.
    #[arg(long, value_name = "FILE")]
    pub nginx: Option<PathBuf>,
    /// Keep configurations and logs in this folder.
    #[arg(long, value_name = "FOLDER")]
    pub keep: Option<PathBuf>,
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the ratios as a bar chart.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write table and chart as a page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// A target that this command starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TargetKind {
    /// The engines themselves.
    Direct,
    /// nginx.
    Nginx,
    /// The gateway with its defaults.
    Penstock,
    /// The gateway with its usage database and its scaler.
    PenstockFull,
}

impl TargetKind {
    /// All of them, as they are measured by default.
    pub const ALL: [TargetKind; 4] =
        [TargetKind::Direct, TargetKind::Nginx, TargetKind::Penstock, TargetKind::PenstockFull];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            TargetKind::Direct => "direct",
            TargetKind::Nginx => "nginx",
            TargetKind::Penstock => "penstock",
            TargetKind::PenstockFull => "penstock-full",
        }
    }
}

impl std::fmt::Display for TargetKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A proxy that somebody else started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherProxy {
    /// Its name in tables.
    pub name: String,
    /// Base URL.
    pub url: String,
    /// Its process; children count as well.
    pub pid: u32,
    /// A key that it asks for.
    pub key: Option<String>,
}

impl OtherProxy {
    /// Reads `NAME=URL,PID[,KEY]`.
    fn parse(text: &str) -> Result<Self, String> {
        let form = || format!("{text} must be NAME=URL,PID or NAME=URL,PID,KEY");
        let (name, rest) = text.split_once('=').ok_or_else(form)?;
        let mut parts = rest.splitn(3, ',');
        let (url, pid) = parts.next().zip(parts.next()).ok_or_else(form)?;
        let pid = pid.parse().map_err(|_| format!("{pid} is not a process id"))?;
        if name.is_empty() || TargetKind::from_str(name, false).is_ok() {
            return Err(format!("`{name}` cannot be the name of a proxy; choose another"));
        }
        Ok(OtherProxy {
            name: name.to_owned(),
            url: url.to_owned(),
            pid,
            key: parts.next().map(str::to_owned),
        })
    }
}

/// Which cores are whose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cores {
    pub(super) proxy: usize,
    pub(super) load: Vec<usize>,
}

impl BenchProxyArgs {
    /// How many rounds.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// The rows, in the order in which they are measured.
    pub fn rows(&self) -> Vec<Row> {
        let asked = |row: &Row| self.rows.is_empty() || self.rows.contains(row);
        Row::ALL.into_iter().filter(asked).collect()
    }

    /// Names of all targets.
    ///
    /// # Errors
    /// When a name comes twice.
    pub fn names(&self) -> Result<Vec<String>> {
        let own = self.targets.iter().map(|target| target.name().to_owned());
        let names: Vec<String> = own.chain(self.proxies.iter().map(|proxy| proxy.name.clone())).collect();
        for (place, name) in names.iter().enumerate() {
            ensure!(!names[..place].contains(name), "{name} is named twice");
        }
        Ok(names)
    }

    /// The cores: what was asked for, else the first two of `allowed`.
    pub(super) fn cores(&self, allowed: &[usize]) -> Result<Cores> {
        let proxy =
            self.proxy_cpu.or_else(|| allowed.iter().copied().find(|core| !self.load_cpu.contains(core)));
        let other = allowed.iter().copied().find(|core| Some(*core) != proxy);
        let load = if self.load_cpu.is_empty() { other.into_iter().collect() } else { self.load_cpu.clone() };
        let Some(proxy) = proxy.filter(|_| !load.is_empty()) else {
            bail!("two cores are needed, and this process may use {allowed:?} only");
        };
        for core in load.iter().chain([&proxy]) {
            ensure!(
                allowed.contains(core),
                "core {core} is not one of {allowed:?}, which this process may use"
            );
        }
        ensure!(!load.contains(&proxy), "core {proxy} cannot be both the proxies' and the load's");
        Ok(Cores { proxy, load })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: BenchProxyArgs,
    }

    fn parse(words: &[&str]) -> BenchProxyArgs {
        Cli::try_parse_from(["bench-proxy"].iter().chain(words)).expect("arguments").args
    }

    #[test]
    fn other_proxies_have_a_name_an_address_and_a_process() {
        let args = parse(&["--proxy", "envoy=http://h:1,71", "--proxy", "x=http://h:2/v1,72,sk-a,b"]);
        let [envoy, x] = &args.proxies[..] else { panic!("{:?}", args.proxies) };
        assert_eq!((envoy.name.as_str(), envoy.url.as_str(), envoy.pid), ("envoy", "http://h:1", 71));
        assert_eq!((envoy.key.as_deref(), x.key.as_deref()), (None, Some("sk-a,b")));
        for wrong in ["http://h:1,71", "x=http://h:1", "x=http://h:1,it", "nginx=http://h:1,7", "=http://h,7"]
        {
            assert!(OtherProxy::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn targets_rows_and_rounds_are_chosen() {
        let args = parse(&[]);
        assert_eq!(args.names().expect("names"), ["direct", "nginx", "penstock", "penstock-full"]);
        assert_eq!((args.rounds(), args.rows().len()), (3, Row::ALL.len()));
        let args = parse(&["--quick", "--targets", "penstock,nginx", "--rows", "flood,idle"]);
        assert_eq!(args.names().expect("names"), ["penstock", "nginx"]);
        assert_eq!((args.rounds(), args.rows()), (1, vec![Row::Idle, Row::Flood]));
        assert_eq!(parse(&["--quick", "--rounds", "2"]).rounds(), 2);
        assert!(parse(&["--targets", "nginx,nginx"]).names().is_err());
        assert!(Cli::try_parse_from(["bench-proxy", "--rows", "floods"]).is_err());
    }

    #[test]
    fn proxies_and_load_never_share_a_core() {
        let cores = |words: &[&str], allowed: &[usize]| parse(words).cores(allowed).ok();
        let both = |proxy, load: &[usize]| Some(Cores { proxy, load: load.to_vec() });
        assert_eq!(cores(&[], &[0, 1]), both(0, &[1]));
        assert_eq!(cores(&[], &[4, 5, 6]), both(4, &[5]));
        assert_eq!(cores(&["--proxy-cpu", "1"], &[0, 1]), both(1, &[0]));
        assert_eq!(cores(&["--load-cpu", "0,2"], &[0, 1, 2]), both(1, &[0, 2]));
        assert_eq!(cores(&["--load-cpu", "1", "--proxy-cpu", "1"], &[0, 1]), None);
        assert_eq!(cores(&["--load-cpu", "9"], &[0, 1]), None);
        assert_eq!(cores(&[], &[0]), None);
    }
}
