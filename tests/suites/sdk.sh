#!/usr/bin/env bash
# The OpenAI and Anthropic SDKs for Python and Node against the gateway in
# front of simulated engines.
set -uo pipefail
fail() { echo "sdk: $1"; echo "counts: 0 passed, 1 failed, 0 skipped"; exit 1; }

# Debian packages, only when what they bring is missing.
provide() {
  local root=()
  [ "$(id -u)" -eq 0 ] || root=(sudo -n)
  echo "sdk: installing $*"
  { "${root[@]}" apt-get update -qq && "${root[@]}" apt-get install -qq -y --no-install-recommends "$@"; } >/dev/null ||
    fail "cannot install $*; install them by hand and run again"
}
python=${PYTHON:-python3}
node_is_new_enough() { node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2>/dev/null; }
"$python" -c 'import ensurepip, venv' 2>/dev/null || provide python3 python3-venv
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || fail "needs Python 3.9; PYTHON names another"
{ node_is_new_enough && command -v npm >/dev/null; } || provide nodejs npm
node_is_new_enough || fail "needs Node 18 or newer; this system's package is older"

# Made anew when a version below changes.
python_packages="pytest==8.4.2 pytest-xdist==3.8.0 httpx==0.28.1 openai==3.52.0 anthropic==2.11.0 ruff==0.17.6"
node_packages="openai@6.49.0 @anthropic-ai/sdk@1.11.0"
venv=$PENSTOCK_CACHE/sdk-venv
if [ "$(cat "$venv/packages" 2>/dev/null)" != "$python_packages" ]; then
  rm -rf "$venv"
  # shellcheck disable=SC2086 # a list of words
  "$python" -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check $python_packages ||
    fail "cannot install $python_packages"
  echo "$python_packages" >"$venv/packages"
fi
export PENSTOCK_SDK_NODE=$PENSTOCK_CACHE/sdk-node
if [ "$(cat "$PENSTOCK_SDK_NODE/packages" 2>/dev/null)" != "$node_packages" ]; then
  rm -rf "$PENSTOCK_SDK_NODE"
  mkdir -p "$PENSTOCK_SDK_NODE"
  # shellcheck disable=SC2086 # a list of words
  npm install --prefix "$PENSTOCK_SDK_NODE" --silent --no-fund --no-audit $node_packages ||
    fail "cannot install $node_packages"
  echo "$node_packages" >"$PENSTOCK_SDK_NODE/packages"
fi

# Names that do not exist, and other certain mistakes, in all of the project's Python.
"$venv/bin/ruff" check --quiet --no-cache --select E9,F tests loadtest || fail "ruff found mistakes in Python files"
echo "counts: 1 passed, 0 failed, 0 skipped"

# The program that comes with the tests: built by now when `quick` ran before.
cargo test --workspace --no-run --quiet || fail "the gateway does not build"
export PENSTOCK_BIN=$PWD/target/debug/penstock
out=$(mktemp)
# Most of the time is waiting: each file has a gateway and engines of its own, three at a time.
"$venv/bin/pytest" -q -p no:cacheprovider -n 3 --dist loadfile tests/sdk 2>&1 | tee "$out"
status=${PIPESTATUS[0]}
count() { grep -oE "[0-9]+ $1" "$out" | tail -1 | grep -oE '[0-9]+' || echo 0; }
echo "counts: $(count passed) passed, $(( $(count failed) + $(count error) )) failed, $(count skipped) skipped"
rm -f "$out"
exit "$status"
