//! Rules of the source tree that the compiler does not check: which module may
//! use which, what the core may touch, and how large modules, files and types
//! may grow. [`rules`] holds the figures and the exceptions.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod captures;
mod circles;
mod rules;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use circles::circles;
use rules::{
    ACTING_PREDICATES, ALLOWED_ARROWS, IMPURE, LAYERS, MANY_CHILDREN, MANY_FIELDS, MANY_IMPLS, MAX_CHILDREN,
    MAX_FIELDS, MAX_IMPLS, MAX_LINES, NO_NOUNS, TANGLED,
};
use tree::{Source, sources};

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// Arrows that do not point downwards.
fn wrong_arrows(source: &Source) -> Vec<String> {
    let from = source.top();
    if from == "lib" {
        return Vec::new();
    }
    let Some(own) = layer(from) else {
        return vec![
            source.offence(&format!("`{from}` is in no layer; add it to LAYERS in tests/tidy/rules.rs")),
        ];
    };
    let is_allowed = |path: &[String]| {
        let path = path.join("::");
        ALLOWED_ARROWS.iter().any(|(who, to)| *who == from && path.starts_with(to))
    };
    let used = source.own_paths().filter(|path| !path.is_empty() && !is_allowed(path));
    let upwards = used.map(|path| path[0].clone()).filter(|to| {
        let same = to == from || (own == 0 && layer(to) == Some(0));
        layer(to).is_some_and(|layer| layer <= own) && !same
    });
    let upwards: BTreeSet<String> = upwards.collect();
    upwards.into_iter().map(|to| source.offence(&format!("`{from}` must not use `{to}`"))).collect()
}

/// What the core must not touch.
fn impurities(source: &Source) -> Vec<String> {
    if source.top() != "core" {
        return Vec::new();
    }
    let is_used = |name: &&&str| {
        let wanted: Vec<&str> = name.split("::").collect();
        let starts = |path: &Vec<String>| {
            path.iter().map(|segment| &**segment).take(wanted.len()).eq(wanted.iter().copied())
        };
        source.paths.iter().any(|path| (path.len() > 1 || wanted.len() > 1) && starts(path))
    };
    let found = IMPURE.iter().filter(is_used);
    found.map(|name| source.offence(&format!("the core must not use `{name}`"))).collect()
}

/// `use something::*`.
fn globs(source: &Source) -> Vec<String> {
    let stars = source.paths.iter().filter(|path| path.last().is_some_and(|last| last == "*"));
    stars
        .map(|path| source.offence(&format!("`use {}` hides where names come from", path.join("::"))))
        .collect()
}

/// A file that has grown too large.
fn oversize(source: &Source) -> Vec<String> {
    let lines = source.lines;
    let what = format!("{lines} code lines; at most {MAX_LINES}, split it");
    (lines > MAX_LINES).then(|| source.offence(&what)).into_iter().collect()
}

/// A file that does not say what it is, by a noun phrase.
fn undocumented(source: &Source) -> Vec<String> {
    let word = &*source.first_word;
    let what = match word {
        "" => "starts without a `//!` line that says what it is".to_owned(),
        _ if NO_NOUNS.contains(&word) => format!("starts with `{word}`; start with a noun for what it is"),
        _ => return Vec::new(),
    };
    vec![source.offence(&what)]
}

/// Questions that change what they ask.
fn acting_predicates(source: &Source) -> Vec<String> {
    let asks = |name: &&String| ["is_", "has_", "was_", "can_"].iter().any(|start| name.starts_with(start));
    let known = |name: &&String| {
        ACTING_PREDICATES.iter().any(|(path, of, _)| (*path, *of) == (&*source.path, &***name))
    };
    let found = source.changing.iter().filter(asks).filter(|name| !known(name));
    found
        .map(|name| source.offence(&format!("`{name}` takes `&mut self`; name it by what it does")))
        .collect()
}

/// A module with more children than a reader keeps in mind.
fn crowded(source: &Source) -> Vec<String> {
    let children = source.children.len();
    let allowed = MANY_CHILDREN
        .iter()
        .find(|(path, ..)| *path == source.path)
        .map_or(MAX_CHILDREN, |(_, most, _)| *most);
    let what = format!("{children} modules inside; at most {allowed}, group them");
    (children > allowed).then(|| source.offence(&what)).into_iter().collect()
}

/// Types with more fields than a reader keeps in mind.
fn wide(source: &Source) -> Vec<String> {
    let allowed =
        |name: &str| MANY_FIELDS.iter().find(|(of, ..)| *of == name).map_or(MAX_FIELDS, |(_, most, _)| *most);
    let wide = source.types.iter().filter(|(name, fields)| *fields > allowed(name));
    wide.map(|(name, fields)| {
        source.offence(&format!("`{name}` has {fields} fields; at most {}, split it", allowed(name)))
    })
    .collect()
}

/// Types whose methods stand in too many files.
fn scattered(sources: &[Source]) -> Vec<String> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.of_tests) {
        for name in &source.impls {
            files.entry(name).or_default().push(&source.path);
        }
    }
    let allowed =
        |name: &str| MANY_IMPLS.iter().find(|(of, ..)| *of == name).map_or(MAX_IMPLS, |(_, most, _)| *most);
    let scattered = files.iter().filter(|(name, files)| files.len() > allowed(name));
    scattered
        .map(|(name, files)| {
            format!(
                "`{name}` has methods in {} files; at most {}: {}",
                files.len(),
                allowed(name),
                files.join(", ")
            )
        })
        .collect()
}

/// Names that two types have.
fn twice(sources: &[Source]) -> Vec<String> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.of_tests) {
        for (name, _) in &source.types {
            files.entry(name).or_default().push(&source.path);
        }
    }
    let twice = files.iter().filter(|(_, files)| files.len() > 1);
    twice
        .map(|(name, files)| format!("`{name}` is the name of {} types: {}", files.len(), files.join(", ")))
        .collect()
}

/// Files that import each other in a circle.
fn tangled(sources: &[Source]) -> Vec<String> {
    let known: BTreeSet<&str> = TANGLED.iter().copied().flatten().copied().collect();
    let found = circles(sources);
    let in_one: BTreeSet<&str> = found.iter().flatten().copied().collect();
    let new = found.iter().filter(|circle| circle.iter().any(|path| !known.contains(path)));
    let mut offences: Vec<String> =
        new.map(|circle| format!("these files import each other: {}", circle.join(", "))).collect();
    let mended = known.difference(&in_one);
    offences
        .extend(mended.map(|path| format!("src/{path} is in no circle any more; take it out of TANGLED")));
    offences
}

/// Fails with every offence that `check` finds in one file.
fn hold(check: fn(&Source) -> Vec<String>) {
    let offences: Vec<String> = sources().iter().flat_map(check).collect();
    assert!(offences.is_empty(), "\n{}", offences.join("\n"));
}

/// Fails with every offence that `check` finds in all files together.
fn hold_together(check: fn(&[Source]) -> Vec<String>) {
    let offences = check(&sources());
    assert!(offences.is_empty(), "\n{}", offences.join("\n"));
}

#[test]
fn arrows_point_downwards() {
    hold(wrong_arrows);
}

#[test]
fn the_core_is_pure() {
    hold(impurities);
}

#[test]
fn nothing_is_imported_by_a_star() {
    hold(globs);
}

#[test]
fn files_are_small() {
    let mut sizes: Vec<usize> = sources().iter().map(|source| source.lines).collect();
    sizes.sort_unstable();
    println!("{} files, median {} code lines", sizes.len(), sizes[sizes.len() / 2]);
    hold(oversize);
}

#[test]
fn files_say_what_they_are() {
    hold(undocumented);
}

#[test]
fn predicates_do_not_act() {
    hold(acting_predicates);
}

#[test]
fn modules_have_few_children() {
    hold(crowded);
}

#[test]
fn types_have_few_fields() {
    hold(wide);
}

#[test]
fn types_stand_together() {
    hold_together(scattered);
}

#[test]
fn type_names_are_used_once() {
    hold_together(twice);
}

#[test]
fn files_do_not_import_each_other_in_a_circle() {
    hold_together(tangled);
}

#[cfg(test)]
mod can_fail;
