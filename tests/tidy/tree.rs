//! The source files below `src`, parsed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, File, ItemImpl, ItemMod, ItemUse, Type, UseTree};

/// Folders that are crates of their own.
const OWN_CRATES: [&str; 2] = ["core", "sim"];

/// One source file, without what is compiled for tests only.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// The path below `src`, with slashes.
    pub(crate) path: String,
    /// The module that the file holds, from the crate's root.
    pub(crate) module: Vec<String>,
    /// Whether the file is compiled for tests only.
    pub(crate) of_tests: bool,
    /// First word of the `//!` line at the start of the file; empty = no such line.
    pub(crate) first_word: String,
    /// Lines of code: no blank lines, no comments, no tests.
    pub(crate) lines: usize,
    /// Paths that the file names, as written.
    pub(crate) paths: BTreeSet<Vec<String>>,
    /// Modules that the file declares.
    pub(crate) children: BTreeSet<String>,
    /// Modules that the file declares for tests only.
    pub(crate) test_children: BTreeSet<String>,
    /// Types that the file declares, with the number of their fields.
    pub(crate) types: Vec<(String, usize)>,
    /// Types for which the file has an `impl` without a trait.
    pub(crate) impls: BTreeSet<String>,
    /// Functions that take `&mut self`.
    pub(crate) changing: BTreeSet<String>,
}

impl Source {
    /// Parses `text`, the file at `path` below `src`.
    pub(crate) fn parse(path: &str, text: &str) -> Self {
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        let mut module: Vec<String> = stem.split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| last == "mod")
            || matches!(stem, "lib" | "main" | "core/lib" | "sim/lib")
        {
            module.pop();
        }
        let mut source = Self {
            path: path.to_owned(),
            module,
            first_word: text
                .strip_prefix("//! ")
                .and_then(|line| line.split_whitespace().next())
                .unwrap_or_default()
                .to_owned(),
            lines: code_lines(text),
            ..Self::default()
        };
        let file: File = syn::parse_file(text).unwrap_or_else(|error| panic!("src/{path}: {error}"));
        source.visit_file(&file);
        source
    }

    /// The module at the top: `fleet` for `fleet/probe.rs`.
    pub(crate) fn top(&self) -> &str {
        match &*self.path {
            "main.rs" => "main",
            "lib.rs" => "lib",
            _ => &self.module[0],
        }
    }

    /// The paths that lead into this project, from the root of `penstock`. There the crates of `src/core`
    /// and `src/sim` are `core` and `sim`.
    pub(crate) fn own_paths(&self) -> impl Iterator<Item = Vec<String>> {
        self.paths.iter().filter_map(|path| {
            let supers = path.iter().take_while(|segment| *segment == "super").count();
            let first = path.first()?;
            let top = &self.module[..self.module.len().min(1)];
            let (core, sim) = (["core".to_owned()], ["sim".to_owned()]);
            let (base, rest) = match &**first {
                "crate" if OWN_CRATES.contains(&self.top()) => (top, &path[1..]),
                "penstock_core" => (&core[..], &path[1..]),
                "penstock_sim" => (&sim[..], &path[1..]),
                "crate" => (&[][..], &path[1..]),
                "penstock" if self.path == "main.rs" => (&[][..], &path[1..]),
                "self" => (&self.module[..], &path[1..]),
                "super" => (&self.module[..self.module.len().checked_sub(supers)?], &path[supers..]),
                child if self.children.contains(child) => (&self.module[..], &path[..]),
                _ => return None,
            };
            Some([base, rest].concat())
        })
    }

    pub(crate) fn offence(&self, what: &str) -> String {
        format!("src/{}: {what}", self.path)
    }
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_of_tests(attributes(item)) {
            if let syn::Item::Mod(module) = item {
                self.test_children.insert(module.ident.to_string());
            }
            return;
        }
        match item {
            syn::Item::Struct(item) => self.types.push((item.ident.to_string(), item.fields.len())),
            syn::Item::Enum(item) => self.types.push((item.ident.to_string(), 0)),
            syn::Item::Trait(item) => self.types.push((item.ident.to_string(), 0)),
            syn::Item::Type(item) => self.types.push((item.ident.to_string(), 0)),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Fn(item) => &item.attrs[..],
            syn::ImplItem::Const(item) => &item.attrs[..],
            _ => &[],
        };
        if !is_of_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    /// `pub(super)` is no use of the parent.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_none() {
            self.children.insert(item.ident.to_string());
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if let (None, Type::Path(of)) = (&item.trait_, &*item.self_ty) {
            self.impls.extend(of.path.segments.last().map(|last| last.ident.to_string()));
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        flatten(&item.tree, &mut Vec::new(), &mut self.paths);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if signature
            .receiver()
            .is_some_and(|receiver| receiver.reference.is_some() && receiver.mutability.is_some())
        {
            self.changing.insert(signature.ident.to_string());
        }
        visit::visit_signature(self, signature);
    }

    /// `#[schemars(transform = crate::a::b)]` names a path of this crate.
    fn visit_attribute(&mut self, item: &'ast Attribute) {
        if let syn::Meta::List(list) = &item.meta {
            self.visit_tokens(list.tokens.clone());
        }
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        self.visit_tokens(item.tokens.clone());
    }
}

impl Source {
    /// Collects the paths that a macro is called with. The group of `pub(super)`
    /// is no path.
    fn visit_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            let is_visibility = path.len() == 1 && path[0] == "pub" && colons == 0;
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.paths.insert(std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) if is_visibility && group.delimiter() == Delimiter::Parenthesis => {}
                TokenTree::Group(group) => {
                    self.visit_tokens(group.stream());
                    colons = 0;
                }
                _ => colons = 0,
            }
        }
        self.paths.insert(path);
    }
}

fn flatten(tree: &UseTree, prefix: &mut Vec<String>, paths: &mut BTreeSet<Vec<String>>) {
    let mut leaf = |name: &str, prefix: &[String]| {
        let mut path = prefix.to_vec();
        if name != "self" || path.is_empty() {
            path.push(name.to_owned());
        }
        paths.insert(path);
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, paths);
            prefix.pop();
        }
        UseTree::Name(name) => leaf(&name.ident.to_string(), prefix),
        UseTree::Rename(rename) => leaf(&rename.ident.to_string(), prefix),
        UseTree::Glob(_) => leaf("*", prefix),
        UseTree::Group(group) => group.items.iter().for_each(|item| flatten(item, prefix, paths)),
    }
}

fn attributes(item: &syn::Item) -> &[Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let arguments = || attribute.parse_args::<syn::Ident>();
        attribute.path().is_ident("cfg") && arguments().is_ok_and(|argument| argument == "test")
    })
}

/// Lines that are neither blank nor comments nor tests. Tests are the module at
/// the end of the file, or a single line elsewhere.
fn code_lines(text: &str) -> usize {
    let mut lines = 0;
    let mut of_test = false;
    for line in text.lines() {
        if line == "#[cfg(test)]" || (of_test && line.starts_with("#[")) {
            of_test = true;
            continue;
        }
        if of_test && line.contains("mod ") && line.contains('{') {
            break;
        }
        let line = line.trim();
        lines += usize::from(!of_test && !line.is_empty() && !line.starts_with("//"));
        of_test = false;
    }
    lines
}

/// All files below `src`.
pub(crate) fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let is_ours = !path.ends_with("generated") && !path.join("Cargo.toml").exists();
                folders.extend(is_ours.then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
                found.push(Source::parse(&below, &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 10, "the sources were not found");
    mark_tests(&mut found);
    found
}

/// Marks the files below modules that are declared for tests only.
fn mark_tests(sources: &mut [Source]) {
    let of_tests: Vec<Vec<String>> = sources
        .iter()
        .flat_map(|source| {
            source
                .test_children
                .iter()
                .map(|child| [&source.module[..], std::slice::from_ref(child)].concat())
        })
        .collect();
    for source in sources {
        source.of_tests = of_tests.iter().any(|module| source.module.starts_with(module));
    }
}
