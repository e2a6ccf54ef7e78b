#!/usr/bin/env bash
# The OpenAI and Anthropic SDKs for Python and Node against the gateway in
# front of simulated engines.
set -uo pipefail
. tests/suites/lib.sh

python=${PYTHON:-python3}
node_is_new_enough() { node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2>/dev/null; }
provide python3 "$python"
"$python" -c 'import ensurepip, venv' 2>/dev/null || install python3-venv
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || fail "needs Python 3.9; PYTHON names another"
provide nodejs node
provide npm npm
node_is_new_enough || fail "needs Node 18 or newer; this system's package is older"

venv=$PENSTOCK_CACHE/sdk-venv
venv "$venv" "$python" pytest==8.4.2 pytest-xdist==3.8.0 httpx==0.28.1 openai==3.52.0 anthropic==2.11.0
export PENSTOCK_SDK_NODE=$PENSTOCK_CACHE/sdk-node
node_packages=(openai@6.49.0 @anthropic-ai/sdk@1.11.0)
if [ "$(cat "$PENSTOCK_SDK_NODE/packages" 2>/dev/null)" != "${node_packages[*]}" ]; then
  rm -rf "$PENSTOCK_SDK_NODE"
  mkdir -p "$PENSTOCK_SDK_NODE"
  npm install --prefix "$PENSTOCK_SDK_NODE" --silent --no-fund --no-audit "${node_packages[@]}" ||
    fail "cannot install ${node_packages[*]}"
  echo "${node_packages[*]}" >"$PENSTOCK_SDK_NODE/packages"
fi
[ "$preparing" ] && exit

program
# Most of the time is waiting: each file has a gateway and engines of its own, three at a time.
tests "$venv/bin/pytest" -n 3 --dist loadfile tests/sdk
