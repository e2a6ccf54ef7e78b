#!/usr/bin/env bash
# Formatting, lints and documentation of the Rust code; mistakes in Python files.
set -uo pipefail
. tests/suites/lib.sh

# Names that do not exist, and other certain mistakes.
venv "$PENSTOCK_CACHE/lint-venv" "${PYTHON:-python3}" ruff==0.17.6
[ "$preparing" ] && exit

counted format cargo fmt --all --check
counted ruff "$PENSTOCK_CACHE/lint-venv/bin/ruff" check --quiet --no-cache --select E9,F tests loadtest
counted clippy cargo clippy --workspace --all-targets --quiet -- -D warnings
counted docs env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet --document-private-items
