//! CPU time, memory and wake-ups of a process, read from `/proc`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Clock ticks a second in `/proc/PID/stat` (`USER_HZ`), fixed on Linux.
const TICKS_PER_SECOND: u64 = 100;

/// Arguments of `loadtest cpu`.
#[derive(Debug, Clone, Args)]
pub struct CpuArgs {
    /// Process to look at; may be given several times.
    #[arg(long = "pid", required = true)]
    pub pids: Vec<u32>,
    /// Watch for this long and print the CPU used meanwhile.
    #[arg(long)]
    pub seconds: Option<f64>,
}

/// The gateway's program: `named`, or `penstock` beside this program.
///
/// # Errors
/// The system does not tell where this program is.
pub fn gateway_program(named: Option<&Path>) -> Result<PathBuf> {
    match named {
        Some(path) => Ok(path.to_owned()),
        None => Ok(std::env::current_exe().context("find this program")?.with_file_name("penstock")),
    }
}

/// The same, if the file is there.
///
/// # Errors
/// There is no such file.
pub fn built_gateway_program(named: Option<&Path>) -> Result<PathBuf> {
    let program = gateway_program(named)?;
    ensure!(
        program.exists(),
        "there is no {}; build it in the same profile, or name it with --penstock",
        program.display()
    );
    Ok(program)
}

/// A number of seconds, by the name of its argument.
///
/// # Errors
/// The number is negative, or no number.
pub(crate) fn seconds(value: f64, name: &str) -> Result<Duration> {
    Duration::try_from_secs_f64(value)
        .with_context(|| format!("{name} must be a number of seconds, 0 or more"))
}

/// Runs `loadtest cpu`.
///
/// # Errors
/// When a process cannot be read.
pub async fn command(args: &CpuArgs) -> Result<()> {
    let before = cpu_micros(&args.pids)?;
    let Some(seconds) = args.seconds else {
        println!("cpu_seconds {:.2}  rss_kib {}", before as f64 / 1e6, rss_kib(&args.pids)?);
        return Ok(());
    };
    let pause = Duration::try_from_secs_f64(seconds).context("--seconds must be a positive number")?;
    tokio::time::sleep(pause).await;
    let used = cpu_micros(&args.pids)?.saturating_sub(before) as f64 / 1e6;
    let share = if seconds > 0.0 { 100.0 * used / seconds } else { 0.0 };
    println!("cpu_seconds {used:.2}  cores_percent {share:.1}  rss_kib {}", rss_kib(&args.pids)?);
    Ok(())
}

/// User and system time of all `pids` together, in microseconds.
///
/// `/proc/PID/stat` has the whole time in steps of 10 ms, rounded down; the threads' own files
/// have nanoseconds, but not the time of threads that ended. The larger one is closer.
///
/// # Errors
/// When a process is gone or its stat file has another form.
pub fn cpu_micros(pids: &[u32]) -> Result<u64> {
    let mut micros = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let ticks = stat_ticks(&text).with_context(|| format!("{path} has an unknown form"))?;
        let threads: u64 =
            thread_files(*pid, "schedstat").iter().filter_map(|text| schedstat_nanos(text)).sum();
        micros += (ticks * (1_000_000 / TICKS_PER_SECOND)).max(threads / 1000);
    }
    Ok(micros)
}

/// How often the threads of all `pids` gave up their core to wait. One that ended does not count.
pub fn voluntary_switches(pids: &[u32]) -> u64 {
    let texts = pids.iter().flat_map(|pid| thread_files(*pid, "status"));
    texts.filter_map(|text| status_number(&text, "voluntary_ctxt_switches:")).sum()
}

/// A process and its children, the process first.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn with_children(pid: u32) -> Result<Vec<u32>> {
    let is_child = |other: &u32| {
        let text = fs::read_to_string(format!("/proc/{other}/stat")).unwrap_or_default();
        stat_parent(&text) == Some(pid)
    };
    let entries = fs::read_dir("/proc").context("cannot read /proc")?;
    let others = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(std::iter::once(pid).chain(others.filter(is_child)).collect())
}

/// A file of each thread of a process.
fn thread_files(pid: u32, name: &str) -> Vec<String> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join(name)).ok()).collect()
}

/// Busy and all ticks of the machine's cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineTicks {
    busy: u64,
    all: u64,
}

impl MachineTicks {
    /// Part of the time that was busy; 0 of no time.
    pub fn share(self) -> f64 {
        if self.all > 0 { self.busy as f64 / self.all as f64 } else { 0.0 }
    }
}

impl std::ops::Sub for MachineTicks {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        let busy = self.busy.saturating_sub(earlier.busy);
        MachineTicks { busy, all: self.all.saturating_sub(earlier.all) }
    }
}

/// Ticks of all cores since the machine started.
///
/// # Errors
/// When `/proc/stat` cannot be read or has another form.
pub fn machine_ticks() -> Result<MachineTicks> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    machine_line(&text).context("/proc/stat has an unknown form")
}

/// `cpu user nice system idle iowait irq softirq steal ...`
fn machine_line(text: &str) -> Option<MachineTicks> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().take(8);
    let ticks: Vec<u64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all: u64 = ticks.iter().sum();
    Some(MachineTicks { busy: all - idle, all })
}

/// Time that programs and other machines had of a core since the start, in microseconds; time of
/// interrupts is not in it.
///
/// # Errors
/// When `/proc/stat` cannot be read or has no such core.
pub fn core_micros(core: usize) -> Result<u64> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let ticks = core_ticks(&text, core).with_context(|| format!("/proc/stat has no core {core}"))?;
    Ok(ticks * (1_000_000 / TICKS_PER_SECOND))
}

/// `cpuN user nice system idle iowait irq softirq steal ...`
fn core_ticks(text: &str, core: usize) -> Option<u64> {
    let name = format!("cpu{core} ");
    let fields = text.lines().find_map(|line| line.strip_prefix(&name))?.split_ascii_whitespace();
    let ticks: Vec<u64> = fields.take(8).map(|field| field.parse().ok()).collect::<Option<_>>()?;
    Some(ticks.get(..3)?.iter().sum::<u64>() + ticks.get(7).unwrap_or(&0))
}

/// Resident memory of all `pids` together, in KiB.
///
/// # Errors
/// When a process is gone or has no memory of its own.
pub fn rss_kib(pids: &[u32]) -> Result<u64> {
    let mut sum = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/status");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        sum += status_number(&text, "VmRSS:").with_context(|| format!("{path} has no VmRSS"))?;
    }
    Ok(sum)
}

/// Memory of all `pids` together, in KiB. Of a page that several processes share, each has its
/// part (proportional set size).
///
/// # Errors
/// When a process is gone, or belongs to another user.
pub fn pss_kib(pids: &[u32]) -> Result<u64> {
    let mut sum = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        sum += status_number(&text, "Pss:").with_context(|| format!("{path} has no Pss"))?;
    }
    Ok(sum)
}

/// Raises the soft limit of open files to `needed`, if it is lower. Children inherit it.
///
/// # Errors
/// When the hard limit is lower.
pub fn raise_open_files(needed: usize) -> Result<()> {
    let needed = needed as u64;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        limit.current = Some(needed);
        setrlimit(Resource::Nofile, limit)
            .with_context(|| format!("{needed} open files are needed; the limit is {limit:?}"))?;
    }
    Ok(())
}

/// Checks that this process may hold `needed` open files.
///
/// # Errors
/// When the soft limit is lower; the message says how to raise it.
pub fn require_open_files(needed: usize) -> Result<()> {
    let text = fs::read_to_string("/proc/self/limits").context("cannot read /proc/self/limits")?;
    let limit = open_file_limit(&text).unwrap_or(usize::MAX);
    if limit < needed {
        bail!("{needed} open files are needed but the limit is {limit}; run `ulimit -n {needed}` first");
    }
    Ok(())
}

/// `utime + stime`: fields 14 and 15; the name in field 2 may hold spaces and
/// parentheses, so counting starts after its last `)`.
fn stat_ticks(text: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// The parent's process id: field 4.
fn stat_parent(text: &str) -> Option<u32> {
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Time on a core: field 1.
fn schedstat_nanos(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

fn status_number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn open_file_limit(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_an_odd_process_name() {
        let text = "71 (a) b (c)) S 1 71 71 0 -1 4194560 1 2 3 4 250 50 9 9 20 0 1 0 5 6 7";
        assert_eq!(stat_ticks(text), Some(300));
        assert_eq!(stat_ticks("71 (a) S 1"), None);
        assert_eq!((stat_parent(text), stat_parent("71 (a) S")), (Some(1), None));
        assert_eq!(schedstat_nanos("45712532 73795289 174\n"), Some(45_712_532));
    }

    #[test]
    fn status_and_limits() {
        let status = "Name:\tx\nVmRSS:\t   5120 kB\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(status_number(status, "VmRSS:"), Some(5120));
        assert_eq!(status_number(status, "voluntary_ctxt_switches:"), None);
        assert_eq!(
            open_file_limit("Max open files            1024                 4096  files\n"),
            Some(1024)
        );
        assert_eq!(open_file_limit("Max open files            unlimited   unlimited files\n"), None);
    }

    #[test]
    fn busy_share_of_the_machine() {
        let ticks = |text: &str| machine_line(text).expect("a line");
        let (before, after) =
            (ticks("cpu  10 0 10 70 10 0 0 0 5 5\ncpu0 1"), ticks("cpu  30 0 20 120 30 0 0 0 9 9"));
        assert!(((after - before).share() - 0.3).abs() < 1e-9);
        assert_eq!((before - before).share(), 0.0);
        assert_eq!(machine_line("cpu 1 2"), None);
        assert!(machine_ticks().is_ok());
        let text = "cpu  1 1 1 1 1 1 1 1\ncpu1 9 9 9 9\ncpu12 30 1 20 120 30 5 6 7 9 9\n";
        assert_eq!(
            (core_ticks(text, 12), core_ticks(text, 1), core_ticks(text, 2)),
            (Some(58), Some(27), None)
        );
    }

    #[test]
    fn own_process_has_memory_and_burns_cpu() {
        let own = [std::process::id()];
        assert!(rss_kib(&own).expect("own status") > 100);
        assert!(pss_kib(&own).expect("own smaps") > 100);
        let before = cpu_micros(&own).expect("own stat");
        // Reading its own files is the work; other tests of the process may do some, too.
        while cpu_micros(&own).expect("own stat") < before + 20_000 {}
        assert!(cpu_micros(&[u32::MAX]).is_err());
    }

    #[test]
    fn children_are_found_and_their_wake_ups_counted() {
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let family = with_children(std::process::id()).expect("processes");
        assert_eq!(family[0], std::process::id());
        assert!(family.contains(&sleeper.id()), "{family:?}");
        let end = tokio::time::Instant::now() + Duration::from_secs(10);
        while voluntary_switches(&[sleeper.id()]) == 0 && tokio::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(voluntary_switches(&[sleeper.id()]) > 0);
        sleeper.kill().expect("ended");
        sleeper.wait().expect("ended");
        assert_eq!(voluntary_switches(&[u32::MAX]), 0);
    }
}
