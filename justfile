# Door for people: `just` lists the recipes. The suites themselves are in tests/run.

default:
    @just --list

# The gateway and its tools, as the README uses them
build:
    cargo build --release --workspace

# Quick tests; `just test commands sdk engines` for other suites, `just test all` for everything
test *suites="quick":
    tests/run {{ if suites == "all" { "" } else { suites } }}

# Formatting, lints and the rules of the source tree
tidy:
    cargo fmt --all
    cargo clippy --workspace --all-targets --quiet -- -D warnings
    cargo test --quiet --test tidy

# CPU, throughput, latency and memory, next to nginx; `just bench --quick` for a look
bench *options: build
    target/release/loadtest bench-proxy {{ options }}

# A gateway and simulated engines in one process, with traffic
demo *options="--load":
    cargo run --release -- demo {{ options }}

# The generated reference; the book as well where mdbook is installed
docs:
    cargo build
    python3 tests/commands/reference.py --write
    if command -v mdbook >/dev/null; then mdbook build docs; fi
