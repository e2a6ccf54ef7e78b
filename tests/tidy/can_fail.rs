//! Each check finds what it is for.

use crate::tree::Source;
use crate::{
    MAX_CHILDREN, MAX_FIELDS, MAX_LINES, acting_predicates, circles, crowded, globs, impurities, oversize,
    scattered, twice, undocumented, wide, wrong_arrows,
};

fn offends(check: fn(&Source) -> Vec<String>, path: &str, text: &str) -> bool {
    !check(&Source::parse(path, text)).is_empty()
}

fn parsed(files: &[(&str, &str)]) -> Vec<Source> {
    files.iter().map(|(path, text)| Source::parse(path, text)).collect()
}

#[test]
fn on_an_arrow_upwards_or_sideways() {
    let wrong = [
        ("engines/job.rs", "use crate::config::settings::Settings;"),
        ("fleet/probe.rs", "use crate::proxy::Proxy;"),
        ("protocol/sse.rs", "fn f() { crate::telemetry::wall::now(); }"),
        ("protocol/sse.rs", "fn f() { let x = vec![crate::telemetry::wall::now()]; }"),
        ("telemetry/log.rs", "use crate::app::App;"),
        ("telemetry/log.rs", "use crate::config::load::Outcome;"),
        ("protocol/sse.rs", "use crate::config::settings::Settings;"),
        ("proxy/a.rs", "use crate::{core::ids::JobId, scaler::SignalCache};"),
        ("proxy/a.rs", "use crate::{\n    core::{ids::JobId, job},\n    sim::world,\n};"),
        ("proxy/a.rs", "use super::super::sim::world;"),
        ("fleet/a.rs", "use penstock_sim::world::SimWorld;"),
        ("usage/a.rs", "use crate::proxy::Proxy;"),
        ("telemetry/a.rs", "use crate::usage::Journal;"),
        ("unknown/a.rs", ""),
    ];
    for (path, text) in wrong {
        assert!(offends(wrong_arrows, path, text), "{path}: {text}");
    }
    let right = [
        ("proxy/a.rs", "use crate::{core::ids::JobId, protocol::error::Wire, proxy::handler};"),
        ("app.rs", "use crate::fleet::handle::Fleet;\nuse crate::cli::Args;"),
        ("proxy/a.rs", "use crate::usage::row::Row;"),
        ("usage/a.rs", "use crate::config::settings::usage::UsageSettings;"),
        ("main.rs", "fn main() { penstock::app::run(); }"),
        ("sim/a.rs", "use crate::rng::Rng;\nuse penstock_core::ids::JobId;"),
        ("core/a.rs", "use crate::ids::JobId;\n// use crate::proxy::x;\n"),
        ("core/a.rs", "fn f() {}\n#[cfg(test)]\nmod tests { use crate::sim::world; }"),
        ("lib.rs", "pub mod proxy;"),
        ("telemetry/log.rs", "use crate::config::settings::{LogFormat, TelemetrySettings};"),
        ("config/a.rs", "fn f() { hint(\"penstock::proxy=debug\"); }"),
    ];
    for (path, text) in right {
        assert!(!offends(wrong_arrows, path, text), "{path}: {text}");
    }
}

#[test]
fn on_an_impure_core() {
    let wrong = [
        "use tokio::time::sleep;",
        "use std::time::{Duration, Instant};",
        "use std::time::Instant;",
        "use std::{fmt, time::{Duration, Instant}};",
        "#[cfg(test)]\nmod helper;\nuse std::fs;",
        "fn f() { std::env::var(\"X\"); }",
        "use std::thread;",
        "fn f() { tracing::info!(\"x\"); }",
        "fn f() { std::time::SystemTime::now(); }",
        "use std::net::SocketAddr;",
        "use rand::Rng;",
    ];
    for text in wrong {
        assert!(offends(impurities, "core/a.rs", text), "{text}");
    }
    assert!(!offends(impurities, "proxy/a.rs", wrong[0]));
    let right = [
        "use std::time::Duration;",
        "use std::sync::Arc;",
        "fn f() { let metrics = operand::x(); }",
        "// tokio::time\nfn f() {}",
        "use crate::metrics::Metrics;",
        "fn f() {}\n#[cfg(test)]\nmod tests { use std::fs; }",
    ];
    for text in right {
        assert!(!offends(impurities, "core/a.rs", text), "{text}");
    }
}

#[test]
fn on_a_star() {
    for text in ["use super::*;", "pub use a::b::*;", "use a::{b, c::*};", "use a::{\n    b,\n    *,\n};"] {
        assert!(offends(globs, "core/a.rs", text), "{text}");
    }
    for text in ["const A: u8 = B * C;", "use a::b;", "fn f() {}\n#[cfg(test)]\nmod tests { use super::*; }"]
    {
        assert!(!offends(globs, "core/a.rs", text), "{text}");
    }
}

#[test]
fn on_a_large_file() {
    let just = "const A: u8 = 1;\n".repeat(MAX_LINES);
    assert!(!offends(oversize, "core/a.rs", &just));
    assert!(offends(oversize, "core/a.rs", &format!("{just}const B: u8 = 2;\n")));
    let padded = format!("{just}\n// more\n    /// more\n#[cfg(test)]\nmod tests {{\n{just}}}\n");
    assert!(!offends(oversize, "core/a.rs", &padded));
}

#[test]
fn on_a_file_without_a_first_word() {
    assert!(offends(undocumented, "core/a.rs", "use std::fmt;\n"));
    assert!(offends(undocumented, "core/a.rs", ""));
    assert!(offends(undocumented, "core/a.rs", "//! What a thing is.\n"));
    assert!(!offends(undocumented, "core/a.rs", "//! A thing.\n"));
}

#[test]
fn on_a_predicate_that_acts() {
    assert!(offends(acting_predicates, "core/a.rs", "impl A { fn is_b(&mut self) -> bool { true } }"));
    assert!(!offends(
        acting_predicates,
        "core/a.rs",
        "impl A { fn is_b(&self) {} fn take(&mut self) {} fn has_c(mut self) {} }"
    ));
}

#[test]
fn on_a_crowded_module() {
    let modules = |count: usize| (0..count).map(|child| format!("mod m{child};\n")).collect::<String>();
    assert!(!offends(crowded, "core/a/mod.rs", &modules(MAX_CHILDREN)));
    assert!(!offends(
        crowded,
        "core/a/mod.rs",
        &format!("{}#[cfg(test)]\nmod tests;", modules(MAX_CHILDREN))
    ));
    assert!(offends(crowded, "core/a/mod.rs", &modules(MAX_CHILDREN + 1)));
}

#[test]
fn on_a_wide_type() {
    let fields = |count: usize| (0..count).map(|field| format!("f{field}: u8,\n")).collect::<String>();
    assert!(!offends(wide, "core/a.rs", &format!("struct A {{ {} }}", fields(MAX_FIELDS))));
    assert!(offends(wide, "core/a.rs", &format!("struct A {{ {} }}", fields(MAX_FIELDS + 1))));
}

#[test]
fn on_methods_in_many_files() {
    let text = "impl Aa<u8> { fn f() {} }";
    let files =
        [("a.rs", text), ("b.rs", text), ("c.rs", text), ("d.rs", "impl Clone for Aa {}"), ("e.rs", text)];
    assert!(scattered(&parsed(&files[..4])).is_empty());
    assert_eq!(scattered(&parsed(&files)).len(), 1);
}

#[test]
fn on_a_name_used_twice() {
    let tests = "#[cfg(test)]\nmod tests { struct Aa; }";
    let other = "trait T { type Aa; }\nstruct Bb { aa: u8 }";
    assert!(twice(&parsed(&[("a.rs", "struct Aa;"), ("b.rs", tests), ("c.rs", other)])).is_empty());
    assert_eq!(twice(&parsed(&[("a.rs", "struct Aa;"), ("b.rs", "enum Aa {}")])).len(), 1);
}

#[test]
fn on_files_in_a_circle() {
    let line = [("a/mod.rs", "mod b;\nuse b::B;"), ("a/b.rs", "struct B;"), ("c.rs", "use crate::a::A;")];
    assert!(circles(&parsed(&line)).is_empty());
    let visible = [("a/mod.rs", "mod b;\nuse b::B;"), ("a/b.rs", "pin! { pub(super) struct B {} }")];
    assert!(circles(&parsed(&visible)).is_empty());
    let back = [("a/mod.rs", "mod b;\nfn f() { b::g() }"), ("a/b.rs", "use super::A;")];
    assert_eq!(circles(&parsed(&back)), [["a/b.rs", "a/mod.rs"]]);
    let far = [
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "fn f() { assert!(crate::c::d()); }"),
        ("c.rs", "use crate::a::A;"),
    ];
    assert_eq!(circles(&parsed(&far)), [["a.rs", "b.rs", "c.rs"]]);
    let attribute = [("a.rs", "use crate::b::B;"), ("b.rs", "#[made(by = crate::a::f)]\nstruct B;")];
    assert_eq!(circles(&parsed(&attribute)), [["a.rs", "b.rs"]]);
}
