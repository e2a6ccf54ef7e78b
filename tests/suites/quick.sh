#!/usr/bin/env bash
# Unit and in-process integration tests.
set -uo pipefail
. tests/suites/lib.sh

# The usage database and the limits that several gateways share are tested with real servers.
command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || install postgresql
provide redis-server redis-server
[ "$preparing" ] && exit

# Most integration tests wait for each other's time: more of them than cores run at once.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-6}
out=$(mktemp)
cargo test --workspace --quiet --no-fail-fast 2>&1 | tee "$out"
status=${PIPESTATUS[0]}
awk '/^test result:/{p+=$4; f+=$6; s+=$8} END{printf "counts: %d passed, %d failed, %d skipped\n", p, f, s}' "$out"
rm -f "$out"
exit "$status"
