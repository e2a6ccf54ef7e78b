#!/usr/bin/env bash
# Formatting, lints, documentation, unit and in-process integration tests.
set -uo pipefail
counted() { # NAME COMMAND...: one test, by its exit code
  local name=$1; shift
  if "$@"; then echo "ok: $name"; echo "counts: 1 passed, 0 failed, 0 skipped"
  else echo "FAILED: $name"; echo "counts: 0 passed, 1 failed, 0 skipped"; fi
}
counted format cargo fmt --all --check
counted clippy cargo clippy --workspace --all-targets --quiet -- -D warnings
counted docs env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet --document-private-items
out=$(mktemp)
cargo test --workspace --quiet 2>&1 | tee "$out"
status=${PIPESTATUS[0]}
awk '/^test result:/{p+=$4; f+=$6; s+=$8} END{printf "counts: %d passed, %d failed, %d skipped\n", p, f, s}' "$out"
rm -f "$out"
exit "$status"
