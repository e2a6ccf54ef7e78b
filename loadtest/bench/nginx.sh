#!/usr/bin/env bash
# CPU cost of a proxy next to nginx's, in the same run on the same machine.
#
#   loadtest/bench/nginx.sh [TARGET ...]
#
# Targets: nginx, nginx2 (a second nginx, to see the noise), direct (the engine
# itself), penstock (API keys, a log line for every request, everything else by
# default) and penstock-bare (no keys, no log lines: what nginx does here). The
# first one is what the others are compared with.
# Default: nginx, and both of penstock when PENSTOCK_BIN names the binary.
#
# All proxies stand in front of one fake engine. A proxy runs alone on
# PROXY_CPU; engine and load generator share LOAD_CPU. Every round measures
# each target once, in turn, so that a slow phase of the machine hits all.
#   plain   closed loop, 2 KiB prompts, a fixed number of requests
#   steady  open loop at a fixed rate below saturation
#   stream  many long streams; every token event is a chunk of its own
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
LOADTEST_BIN=${LOADTEST_BIN:-$root/target/release/loadtest}
PENSTOCK_BIN=${PENSTOCK_BIN:-}
ROUNDS=${ROUNDS:-3}
PLAIN_REQUESTS=${PLAIN_REQUESTS:-100000}
PLAIN_CONNECTIONS=${PLAIN_CONNECTIONS:-32}
STEADY_RATE=${STEADY_RATE:-2000}
STREAMS=${STREAMS:-200}
STREAM_TOKENS=${STREAM_TOKENS:-200}
STREAM_INTERVAL_MS=${STREAM_INTERVAL_MS:-10}
SECONDS_EACH=${SECONDS_EACH:-5}
PROXY_CPU=${PROXY_CPU:-0}
LOAD_CPU=${LOAD_CPU:-1}
PORT=${PORT:-19100}

die() { echo "nginx.sh: $*" >&2; exit 1; }

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    targets=(nginx)
    [ -z "$PENSTOCK_BIN" ] || targets+=(penstock penstock-bare)
fi
[ -x "$LOADTEST_BIN" ] || die "no $LOADTEST_BIN; build it with: cargo build --release -p penstock-loadtest"

work=$(mktemp -d)
started=()
cleanup() {
    [ ${#started[@]} -eq 0 ] || kill "${started[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

# start CPU PORT NAME COMMAND...: runs it in the background, waits for the port.
start() {
    local cpu=$1 port=$2 name=$3
    shift 3
    ! port_open "$port" || die "port $port is taken; choose others with PORT"
    taskset -c "$cpu" "$@" >"$work/$name.log" 2>&1 &
    pid[$name]=$!
    started+=("$!")
    for _ in $(seq 100); do
        if port_open "$port"; then return; fi
        kill -0 "${pid[$name]}" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/$name.log" >&2
    die "$name did not start"
}

port_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

install_nginx() {
    PATH=$PATH:/usr/sbin
    command -v nginx >/dev/null && return
    local sudo=()
    [ "$(id -u)" -eq 0 ] || sudo=(sudo)
    "${sudo[@]}" apt-get install -y --no-install-recommends nginx-light >&2 ||
        "${sudo[@]}" apt-get install -y --no-install-recommends nginx >&2 || die "cannot install nginx"
}

start_nginx() {
    local name=$1 port=$2 dir=$work/$1
    install_nginx
    mkdir -p "$dir"
    cat >"$dir/nginx.conf" <<CONF
user $(id -un) $(id -gn);
worker_processes 1;
daemon off;
pid $dir/nginx.pid;
error_log stderr error;
events { worker_connections 8192; }
http {
    access_log off;
    client_body_temp_path $dir/body;
    proxy_temp_path $dir/proxy;
    fastcgi_temp_path $dir/fastcgi;
    uwsgi_temp_path $dir/uwsgi;
    scgi_temp_path $dir/scgi;
    client_body_buffer_size 64k;
    keepalive_requests 1000000000;
    upstream engine {
        server 127.0.0.1:$PORT;
        keepalive 1024;
        keepalive_requests 1000000000;
    }
    server {
        listen 127.0.0.1:$port backlog=4096;
        location / {
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }
    }
}
CONF
    start "$PROXY_CPU" "$port" "$name" nginx -p "$dir" -c "$dir/nginx.conf"
    url[$name]=http://127.0.0.1:$port
    # The master only waits; the worker does the work.
    pids[$name]="${pid[$name]} $(pgrep -P "${pid[$name]}" | tr '\n' ' ')"
}

# start_penstock NAME PORT AUTH LEVEL: the admin port is the next one.
start_penstock() {
    local name=$1 port=$2 auth=$3 level=$4
    [ -x "$PENSTOCK_BIN" ] || die "set PENSTOCK_BIN to the penstock binary (cargo build --profile dist)"
    mkdir "$work/$name"
    cat >"$work/$name/penstock.yaml" <<CONF
version: 1
server: {listen: "127.0.0.1:$port", admin: "127.0.0.1:$((port + 1))"}
telemetry: {log: {level: $level}}
$auth
pools:
  bench:
    engine: vllm
    models: [m]
    max_seqs: 8192
    replicas: ["http://127.0.0.1:$PORT"]
CONF
    start "$PROXY_CPU" "$port" "$name" "$PENSTOCK_BIN" serve --config "$work/$name/penstock.yaml"
    url[$name]=http://127.0.0.1:$port
    pids[$name]=${pid[$name]}
}

# with_keys: makes a key for the benchmark; prints the part of the
# configuration that knows it.
with_keys() {
    local made
    made=$("$PENSTOCK_BIN" keys new)
    awk 'NR == 2 { print $1 }' <<<"$made" >"$work/key"
    printf 'tenants:\n  bench:\n    keys:\n    %s\n' "$(grep digest: <<<"$made")"
}

start_target() {
    case $1 in
        nginx) start_nginx nginx $((PORT + 1)) ;;
        nginx2) start_nginx nginx2 $((PORT + 2)) ;;
        penstock) start_penstock penstock $((PORT + 3)) "$(with_keys)" info; key[penstock]=$(<"$work/key") ;;
        penstock-bare) start_penstock penstock-bare $((PORT + 5)) 'auth: {mode: "off"}' warn ;;
        direct) url[direct]=http://127.0.0.1:$PORT pids[direct]=${pid[engine]} ;;
        *) die "unknown target $1; known: nginx nginx2 penstock penstock-bare direct" ;;
    esac
}

# measure TARGET KIND TIMES OPTIONS...: one run; its figures and the quantiles
# of TIMES become a line of results.
measure() {
    local target=$1 kind=$2 times=$3 json watch=()
    shift 3
    for one in ${pids[$target]}; do watch+=(--pid "$one"); done
    [ -z "${key[$target]:-}" ] || watch+=(--key "${key[$target]}")
    json=$(taskset -c "$LOAD_CPU" "$LOADTEST_BIN" run --url "${url[$target]}" --model m --json --quiet \
        --warmup 1 "${watch[@]}" "$@") || die "$target $kind failed: $json"
    [[ $json =~ \"outcomes\":\{\"ok\":[0-9]+\} ]] || die "$target $kind had failed requests: $json"
    times=${json#*\"$times\":}
    printf '%s %s %s %s %s %s %s %s\n' "$target" "$kind" \
        "$(number cpu_us_per_request "$json")" "$(number cpu_us_per_event "$json")" \
        "$(number requests_per_second "$json")" "$(number events_per_second "$json")" \
        "$(number p50_ms "$times")" "$(number p99_ms "$times")" >>"$work/results"
}

# number NAME JSON: the first number of that name, or nan.
number() {
    if [[ $2 =~ \"$1\":([0-9.eE+-]+) ]]; then echo "${BASH_REMATCH[1]}"; else echo nan; fi
}

# column TARGET KIND COLUMN: its values over all rounds, sorted.
column() { awk -v t="$1" -v k="$2" -v c="$3" '$1 == t && $2 == k { print $c }' "$work/results" | sort -g; }

median() {
    column "$@" | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

range() { column "$@" | awk 'NR == 1 { low = $1 } END { printf "%.1f-%.1f", low, $1 }'; }

ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0) printf "%.2f", a / b; else printf "-" }'; }

# table TITLE KIND COST-COLUMN RATE-COLUMN
table() {
    local base cost
    base=$(median "${targets[0]}" "$2" "$3")
    printf '\n%s\n%-14s %8s %12s %7s %11s %9s %9s\n' \
        "$1" target "CPU us" range ratio "per second" "p50 ms" "p99 ms"
    for target in "${targets[@]}"; do
        cost=$(median "$target" "$2" "$3")
        printf '%-14s %8.2f %12s %7s %11.0f %9.2f %9.2f\n' \
            "$target" "$cost" "$(range "$target" "$2" "$3")" "$(ratio "$cost" "$base")" \
            "$(median "$target" "$2" "$4")" "$(median "$target" "$2" 7)" "$(median "$target" "$2" 8)"
    done
}

declare -A pid url pids key
start "$LOAD_CPU" "$PORT" engine "$LOADTEST_BIN" engine --port "$PORT" \
    --tokens "$STREAM_TOKENS" --interval-ms "$STREAM_INTERVAL_MS"
for target in "${targets[@]}"; do start_target "$target"; done

for round in $(seq "$ROUNDS"); do
    for target in "${targets[@]}"; do
        echo "round $round of $ROUNDS: $target" >&2
        measure "$target" plain total --concurrency "$PLAIN_CONNECTIONS" --requests "$PLAIN_REQUESTS" \
            --duration 120 --max-tokens 20
        measure "$target" steady total --rate "$STEADY_RATE" --duration "$SECONDS_EACH" --max-tokens 20
        measure "$target" stream gap --stream --concurrency "$STREAMS" --duration "$SECONDS_EACH"
    done
done

echo "medians of $ROUNDS rounds; ratio is to ${targets[0]}"
table "plain: $PLAIN_CONNECTIONS connections, 2 KiB prompts; CPU a request" plain 3 5
table "steady: $STEADY_RATE requests a second; CPU a request" steady 3 5
table "stream: $STREAMS streams, an event every $STREAM_INTERVAL_MS ms; CPU a relayed chunk, gap times" stream 4 6
