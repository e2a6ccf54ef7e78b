//! CPU time and memory of a process, read from `/proc`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

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
/// Steps of 10 ms, so compare over seconds.
///
/// # Errors
/// When a process is gone or its stat file has another form.
pub fn cpu_micros(pids: &[u32]) -> Result<u64> {
    let mut ticks = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        ticks += stat_ticks(&text).with_context(|| format!("{path} has an unknown form"))?;
    }
    Ok(ticks * (1_000_000 / TICKS_PER_SECOND))
}

/// Busy and all ticks of the machine's cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineTicks {
    busy: u64,
    all: u64,
}

impl MachineTicks {
    /// Part of the time that was busy; 0 of no time.
    #[must_use]
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

/// Resident memory of all `pids` together, in KiB.
///
/// # Errors
/// When a process is gone or has no memory of its own.
pub fn rss_kib(pids: &[u32]) -> Result<u64> {
    let mut sum = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/status");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        sum += status_rss(&text).with_context(|| format!("{path} has no VmRSS"))?;
    }
    Ok(sum)
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

fn status_rss(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
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
    }

    #[test]
    fn status_and_limits() {
        assert_eq!(status_rss("Name:\tx\nVmRSS:\t   5120 kB\nThreads:\t1\n"), Some(5120));
        assert_eq!(status_rss("Name:\tkthread\n"), None);
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
    }

    #[test]
    fn own_process_has_memory_and_burns_cpu() {
        let own = [std::process::id()];
        assert!(rss_kib(&own).expect("own status") > 100);
        let before = cpu_micros(&own).expect("own stat");
        let mut n = 0u64;
        while cpu_micros(&own).expect("own stat") < before + 20_000 {
            n = n.wrapping_add(1);
        }
        assert!(n > 0);
        assert!(cpu_micros(&[u32::MAX]).is_err());
    }
}
