//! Circles of files that import each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::Source;

/// The circles among the files that are not of tests, the largest first, each
/// sorted by path.
pub(crate) fn circles(sources: &[Source]) -> Vec<Vec<&str>> {
    let files: Vec<&Source> = sources
        .iter()
        .filter(|source| !source.of_tests && !matches!(&*source.path, "lib.rs" | "main.rs"))
        .collect();
    let by_module: BTreeMap<&[String], usize> =
        files.iter().enumerate().map(|(index, source)| (&source.module[..], index)).collect();
    let file_of =
        |path: &[String]| (1..=path.len()).rev().find_map(|end| by_module.get(&path[..end]).copied());
    let arrows: Vec<BTreeSet<usize>> = files
        .iter()
        .enumerate()
        .map(|(from, source)| {
            source.own_paths().filter_map(|path| file_of(&path)).filter(|to| *to != from).collect()
        })
        .collect();
    let reached: Vec<BTreeSet<usize>> = (0..files.len()).map(|from| reach(&arrows, from)).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for from in 0..files.len() {
        let circle: Vec<usize> =
            reached[from].iter().copied().filter(|to| reached[*to].contains(&from)).collect();
        if !circle.is_empty() && seen.insert(circle.clone()) {
            let mut paths: Vec<&str> = circle.into_iter().map(|index| &*files[index].path).collect();
            paths.sort_unstable();
            found.push(paths);
        }
    }
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

/// What can be reached from `from` by one arrow or more.
fn reach(arrows: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<usize> = arrows[from].iter().copied().collect();
    while let Some(to) = next.pop() {
        if reached.insert(to) {
            next.extend(arrows[to].iter().copied());
        }
    }
    reached
}
