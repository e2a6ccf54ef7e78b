#!/bin/sh
# Training run of a profile-guided build: `train.sh PENSTOCK LOADTEST FOLDER` runs a gateway that was
# built with counters under the loads of `loadtest bench-proxy`, with keys and log lines on as in
# service. The counters of the run are in FOLDER when it ends.
set -eu
penstock=$1 loadtest=$2 folder=$3
port=${TRAIN_PORT:-19180} # and the five after it
rows=${TRAIN_ROWS:-steady,full,prompt64k,prompt220k,streams256,streams64}
work=$(mktemp -d)
mkdir -p "$folder"
LLVM_PROFILE_FILE=/dev/null "$penstock" keys new > "$work/key"
key=$(grep -o 'pst_[A-Za-z0-9_-]*' "$work/key" | head -1)
digest=$(grep -o 'blake3:[0-9a-f]*' "$work/key" | head -1)
id=$(grep -o 'id: [A-Za-z0-9]*' "$work/key" | head -1 | cut -d' ' -f2)
cat > "$work/penstock.yaml" <<YAML
version: 1
server: {listen: "127.0.0.1:$port", admin: "127.0.0.1:$((port + 1))"}
tenants: {bench: {keys: [{id: $id, digest: "$digest"}]}}
pools:
  bench:
    {engine: vllm, models: [m], max_seqs: 8192, replicas: ["http://127.0.0.1:$((port + 2))", "http://127.0.0.1:$((port + 3))",
      "http://127.0.0.1:$((port + 4))", "http://127.0.0.1:$((port + 5))"]}
YAML
LLVM_PROFILE_FILE="$folder/penstock-%p-%m.profraw" "$penstock" serve --config "$work/penstock.yaml" 2> "$work/log" &
gateway=$!
trap 'kill "$gateway" 2>/dev/null || true; rm -rf "$work"' EXIT
"$loadtest" bench-proxy --targets direct --proxy "train=http://127.0.0.1:$port,$gateway,$key" \
  --engine-port $((port + 2)) --rows "$rows" --rounds 1 --quick
kill -TERM "$gateway"
wait "$gateway"
