# What the suites share. A suite is called as `SUITE.sh` or as `SUITE.sh prepare`, which stops
# once everything that it needs is installed.
suite=$(basename "$0" .sh)
preparing=${1:-}

fail() { echo "$suite: $1" >&2; echo "counts: 0 passed, 1 failed, 0 skipped"; exit 1; }

# install PACKAGE: a Debian package.
install() {
  local root=()
  [ "$(id -u)" -eq 0 ] || root=(sudo -n)
  echo "$suite: installing $1"
  { "${root[@]}" apt-get update -q &&
    "${root[@]}" apt-get -o DPkg::Lock::Timeout=300 install -yq --no-install-recommends "$1"; } >/dev/null 2>&1
}

# provide PACKAGE COMMAND: the package, if the command is missing.
provide() {
  command -v "$2" >/dev/null && return
  install "$1"
  command -v "$2" >/dev/null || fail "needs $2: apt-get install $1"
}

# venv FOLDER PYTHON PIN...: a virtual environment with these packages, made anew when one changes.
venv() {
  local folder=$1 python=$2; shift 2
  [ "$(cat "$folder/pins" 2>/dev/null)" = "$*" ] && return
  rm -rf "$folder"
  "$python" -m venv "$folder" && "$folder/bin/pip" install -q --disable-pip-version-check "$@" || fail "cannot make $folder"
  echo "$*" >"$folder/pins"
}

# Sets PENSTOCK_BIN: the program that comes with the tests, unless another is named already.
program() {
  [ -n "${PENSTOCK_BIN:-}" ] && return
  cargo test --workspace --no-run --quiet || fail "the program does not build"
  export PENSTOCK_BIN=$PWD/target/debug/penstock
}

# counted NAME COMMAND...: one test, by its exit code.
counted() {
  local name=$1; shift
  if "$@"; then echo "ok: $name"; echo "counts: 1 passed, 0 failed, 0 skipped"
  else echo "FAILED: $name"; echo "counts: 0 passed, 1 failed, 0 skipped"; fi
}

# tests PYTEST ARGUMENT...: runs pytest, counts its tests, and ends with its exit code.
tests() {
  local out; out=$(mktemp)
  "$1" -q -p no:cacheprovider "${@:2}" 2>&1 | tee "$out"
  local status=${PIPESTATUS[0]}
  count() { tail -1 "$out" | grep -oE "[0-9]+ $1" | grep -oE '[0-9]+' || echo 0; }
  echo "counts: $(count passed) passed, $(( $(count failed) + $(count error) )) failed, $(count skipped) skipped"
  rm -f "$out"
  exit "$status"
}
