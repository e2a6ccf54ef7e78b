//! Processor cores: which of them a process may use.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this thread may use, lowest first.
pub(crate) fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("read the cores of this process")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Runs `start` while this thread is on these cores. A process or thread that `start` makes
/// stays on them.
pub(crate) fn started_on<T>(cores: &[usize], start: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = sched_getaffinity(None).context("read the cores of this process")?;
    sched_setaffinity(None, &set_of(cores)?).with_context(|| format!("use the cores {cores:?}"))?;
    let started = start();
    sched_setaffinity(None, &before).context("return to the cores from before")?;
    started
}

/// Moves all threads of a process to these cores.
pub(crate) fn move_process(pid: u32, cores: &[usize]) -> Result<()> {
    let set = set_of(cores)?;
    let mut moved = BTreeSet::new();
    // A thread that started meanwhile may have its cores from one that had not moved yet.
    loop {
        let new: Vec<i32> = threads(pid)?.into_iter().filter(|thread| !moved.contains(thread)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for thread in new {
            moved.insert(thread);
            match sched_setaffinity(Pid::from_raw(thread), &set) {
                // It ended meanwhile.
                Err(rustix::io::Errno::SRCH) => {}
                result => result.with_context(|| format!("move process {pid} to the cores {cores:?}"))?,
            }
        }
    }
}

fn threads(pid: u32) -> Result<Vec<i32>> {
    let path = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(&path).with_context(|| format!("read {path}"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

fn set_of(cores: &[usize]) -> Result<CpuSet> {
    let mut set = CpuSet::new();
    for &core in cores {
        ensure!(core < CpuSet::MAX_CPU, "there is no core {core}");
        set.set(core);
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_stays_on_its_core() {
        let before = allowed().expect("cores");
        let last = *before.last().expect("a core");
        let thread = started_on(&[last], || Ok(std::thread::spawn(|| allowed().expect("cores"))));
        assert_eq!(thread.expect("started").join().expect("ended"), [last]);
        assert_eq!(allowed().expect("cores"), before);
    }

    #[test]
    fn a_process_moves_with_all_its_threads() {
        let last = *allowed().expect("cores").last().expect("a core");
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        move_process(sleeper.id(), &[last]).expect("moved");
        let pid = Pid::from_raw(i32::try_from(sleeper.id()).expect("a process id"));
        let set = sched_getaffinity(pid).expect("cores");
        sleeper.kill().expect("ended");
        sleeper.wait().expect("ended");
        assert!(set.is_set(last) && set.count() == 1, "{set:?}");
        assert!(move_process(u32::MAX, &[last]).is_err());
        assert!(started_on(&[CpuSet::MAX_CPU], || Ok(())).is_err());
    }
}
