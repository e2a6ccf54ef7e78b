#!/usr/bin/env bash
# Formatting, lints, documentation, unit and in-process integration tests.
set -uo pipefail
counted() { # NAME COMMAND...: one test, by its exit code
  local name=$1; shift
  if "$@"; then echo "ok: $name"; echo "counts: 1 passed, 0 failed, 0 skipped"
  else echo "FAILED: $name"; echo "counts: 0 passed, 1 failed, 0 skipped"; fi
}
die() { echo "quick: $1" >&2; echo "counts: 0 passed, 1 failed, 0 skipped"; exit 1; }

# The usage database is tested with the real one.
has_postgres() { command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; }
if ! has_postgres; then
  sudo=$([ "$(id -u)" -eq 0 ] || echo sudo)
  { $sudo apt-get update -q && $sudo apt-get install -yq --no-install-recommends postgresql; } >/dev/null 2>&1
  has_postgres || die "needs PostgreSQL: apt-get install postgresql"
fi
# And so are limits that several gateways share.
if ! command -v redis-server >/dev/null; then
  sudo=$([ "$(id -u)" -eq 0 ] || echo sudo)
  { $sudo apt-get update -q && $sudo apt-get install -yq --no-install-recommends redis-server; } >/dev/null 2>&1
  command -v redis-server >/dev/null || die "needs Redis: apt-get install redis-server"
fi
counted format cargo fmt --all --check
counted clippy cargo clippy --workspace --all-targets --quiet -- -D warnings
counted docs env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet --document-private-items
# Most integration tests wait for each other's time: more of them than cores run at once.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}
out=$(mktemp)
cargo test --workspace --quiet --no-run || die "the tests do not build"
# While these tests and those of the SDKs wait, the release build of the next suites runs.
if [ -n "${BUILD_AHEAD:-}" ]; then
  nice -n 19 cargo build --release --quiet -p penstock -p penstock-loadtest >/dev/null 2>&1 </dev/null &
fi
cargo test --workspace --quiet 2>&1 | tee "$out"
status=${PIPESTATUS[0]}
awk '/^test result:/{p+=$4; f+=$6; s+=$8} END{printf "counts: %d passed, %d failed, %d skipped\n", p, f, s}' "$out"
rm -f "$out"
exit "$status"
