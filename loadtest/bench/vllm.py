#!/usr/bin/env python3
"""Real vLLM servers on the CPU behind nginx, and behind the gateway, in turn.

    loadtest/bench/vllm.py [--servers 1,2] [--answers plain,streams,half] [--rounds 5]

needs target/release/loadtest and target/release/penstock (LOADTEST_BIN and
PENSTOCK_BIN name others), Python 3.12 for vLLM (PYTHON names it), and nginx
(Debian: nginx-light). vLLM and its model are made under ~/.cache/penstock by
tests/engines/tiny-vllm/serve.sh: about 6 GB of disk.

"straight" is nginx with least_conn, keep-alive and no buffering of answers;
"through" is the gateway with nothing but its replicas configured. Clients are
patient and in a closed loop; every prompt is another text. Each round measures
both, and the first one turns from round to round. Beside the ratios of answers
a second, the engines' own counters are printed: how many tokens a step had,
how many steps had no prompt, how long requests waited inside; and how often the
gateway's queue had some meanwhile. Exits with 1 when a mean ratio is below
--mark.

--at measures vLLM servers that run already, on a GPU for example, in place of those
that this program would start. They serve the model "tiny"; --places is their max_num_seqs.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import typing
import urllib.request

ROOT = pathlib.Path(__file__).parents[2]
SERVE = ROOT / "tests" / "engines" / "tiny-vllm" / "serve.sh"
CACHE = pathlib.Path(os.environ.get("PENSTOCK_CACHE", pathlib.Path.home() / ".cache" / "penstock"))
LOADTEST = os.environ.get("LOADTEST_BIN", str(ROOT / "target" / "release" / "loadtest"))
PENSTOCK = os.environ.get("PENSTOCK_BIN", str(ROOT / "target" / "release" / "penstock"))
PLACES = 32
NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr error;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  client_body_buffer_size 256k; keepalive_requests 1000000000;
  upstream engines {{ {balance} {servers} keepalive 256; keepalive_timeout 4s; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def numbers(text, name):
    """The values of a metric by its labels."""
    return {labels: float(value) for labels, value in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.M)}


class Counters:
    """What engines have counted since their start, together."""

    def __init__(self, engines, places):
        texts = [get(f"{url}/metrics") for url in engines]
        total = lambda name: sum(sum(numbers(text, name).values()) for text in texts)
        self.steps = total("vllm:iteration_tokens_total_count")
        self.tokens = total("vllm:iteration_tokens_total_sum")
        self.prompts = total("vllm:prompt_tokens_total")
        self.queued = total("vllm:request_queue_time_seconds_sum")
        self.done = total("vllm:request_queue_time_seconds_count")
        self.small = 0.0
        for text in texts:
            for labels, value in numbers(text, "vllm:iteration_tokens_total_bucket").items():
                # A step without a prompt has a token for each place at most.
                if f'le="{places}.0"' in labels:
                    self.small += value

    def since(self, before):
        steps = max(1.0, self.steps - before.steps)
        done = max(1.0, self.done - before.done)
        return {
            "steps": steps,
            "tokens a step": (self.tokens - before.tokens) / steps,
            "prompt tokens a step": (self.prompts - before.prompts) / steps,
            "steps without a prompt": (self.small - before.small) / steps,
            "ms waiting inside": 1000 * (self.queued - before.queued) / done,
        }


def cpu_seconds(pid):
    """CPU time of a process and its children."""
    status = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(map(int, status[11:13])) / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, children))


class Sampler(threading.Thread):
    """Looks now and then how much waits in the gateway and in the engines."""

    def __init__(self, engines, admin, samples):
        super().__init__(daemon=True)
        self.engines, self.admin, self.stopped = engines, admin, threading.Event()
        self.samples = samples
        self.gateway, self.inside, self.running, self.ledger = [], [], [], []
        self.start()

    def run(self):
        # Seldom: looking costs the engines time, too.
        while not self.stopped.wait(1.0):
            texts = [get(f"{url}/metrics") for url in self.engines]
            sums = lambda name: sum(sum(numbers(text, name).values()) for text in texts)
            self.inside.append(sums("vllm:num_requests_waiting"))
            self.running.append(sums("vllm:num_requests_running"))
            if self.admin:
                text = get(f"{self.admin}/metrics")
                self.gateway.append(sum(numbers(text, "penstock_queue_depth").values()))
                rows = json.loads(get(f"{self.admin}/admin/v1/replicas"))["replicas"]
                self.ledger += rows
                if self.samples:
                    self.write(texts, rows)

    def write(self, texts, rows):
        gauges = ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:iteration_tokens_total_count"]
        sample = {name: [sum(numbers(text, name).values()) for text in texts] for name in gauges}
        sample |= {"at": time.time(), "queued": self.gateway[-1], "replicas": rows}
        with open(self.samples, "a") as file:
            file.write(json.dumps(sample) + "\n")

    def end(self):
        self.stopped.set()
        self.join()
        mean = lambda values: statistics.fmean(values) if values else 0.0
        some = mean([value > 0 for value in self.gateway])
        seen = {"running": mean(self.running), "waiting inside": mean(self.inside)}
        if self.gateway:
            seen |= {"waiting in the gateway": mean(self.gateway), "gateway's queue has some": some}
        for name in ["running", "limit", "prefill_tokens", "speed_factor"]:
            if self.ledger:
                seen[f"ledger: {name}"] = mean([row[name] for row in self.ledger])
        return seen


def wait_for(url, process, log):
    for _ in range(400):
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            get(url)
            return
        time.sleep(0.05)
    sys.exit(f"{url} does not answer: {log.read_text()[-2000:]}")


class Side(typing.NamedTuple):
    """What clients talk to: nginx, or the gateway."""

    url: str
    pid: int
    admin: str = None
    key: str = None


class Stage(contextlib.ExitStack):
    """Engines, and what stands before them."""

    def __init__(self, folder, at=()):
        super().__init__()
        self.folder, self.engines, self.engine_pids, self.at = folder, 0, [], at

    def program(self, name, command):
        log = self.folder / f"{name}.log"
        process = subprocess.Popen(command, stdout=log.open("w"), stderr=subprocess.STDOUT)
        self.callback(lambda: (process.terminate(), process.wait()))
        return process, log

    def engine(self, arguments):
        if self.at:
            self.engines += 1
            return self.at[self.engines - 1]
        port = free_port()
        home = CACHE / "tiny-vllm"
        # A server has a core of its own. Where servers share cores, the one that
        # polls its worker takes the time of the others.
        core = self.engines % os.cpu_count()
        self.engines += 1
        env = dict(os.environ, TINY_HOME=str(home), MAX_SEQS=str(PLACES), CORE=str(core))
        home.mkdir(parents=True, exist_ok=True)
        # Not in this folder: a Python of vLLM's would take this file for its package.
        command = ["taskset", "-c", str(core), "bash", str(SERVE), str(port), *arguments]
        subprocess.run(command, cwd=home, env=env, check=True, timeout=1500)
        pid = int((home / f"{port}.pid").read_text())
        self.engine_pids.append(pid)
        self.callback(lambda: os.killpg(pid, signal.SIGTERM))
        return f"http://127.0.0.1:{port}"

    def nginx(self, engines, balance="least_conn;"):
        port = free_port()
        servers = " ".join(f"server {url.removeprefix('http://')};" for url in engines)
        folder = self.folder / f"nginx-{port}"
        folder.mkdir()
        conf = folder / "nginx.conf"
        conf.write_text(NGINX.format(folder=folder, port=port, servers=servers, balance=balance))
        path = os.environ["PATH"] + ":/usr/sbin"
        command = ["env", f"PATH={path}", "nginx", "-p", str(folder), "-c", str(conf)]
        process, log = self.program(f"nginx-{port}", command)
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health", process, log)
        return Side(url, process.pid)

    def gateway(self, engines, more):
        port, admin = free_port(), free_port()
        made = subprocess.run([PENSTOCK, "keys", "new"], capture_output=True, text=True, check=True).stdout
        key = re.search(r"pst_\w+", made).group(0)
        entry = re.search(r"\{id:.*\}", made).group(0)
        config = self.folder / f"penstock-{port}.yaml"
        config.write_text(
            f'version: 1\nserver: {{listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}"}}\n'
            f"tenants: {{bench: {{keys: [{entry}]}}}}\n"
            f"pools: {{tiny: {{engine: vllm, models: [tiny], replicas: {json.dumps(engines)}}}}}\n{more}\n"
        )
        process, log = self.program(f"penstock-{port}", [PENSTOCK, "serve", "--config", str(config)])
        wait_for(f"http://127.0.0.1:{admin}/readyz", process, log)
        return Side(f"http://127.0.0.1:{port}", process.pid, f"http://127.0.0.1:{admin}", key)


def load(args, url, key, answers, clients, seed, scale):
    command = [LOADTEST, "closed", "--url", url, "--model", "tiny", "--answers", answers, "--class", args.klass]
    command += ["--clients", str(clients), "--prompt", str(args.prompt), "--output", str(args.output)]
    command += ["--warmup", str(args.warmup), "--duration", str(args.duration), "--seed", str(seed)]
    command += ["--bytes-per-token", f"{scale:.4f}"] + (["--key", key] if key else [])
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}{done.stdout}")
    served = json.loads(done.stdout)
    if set(served["outcomes"]) != {"ok"}:
        print(f"    outcomes: {served['outcomes']}")
    return served


def bytes_per_token(args, url):
    """How many bytes of the load's text are a token of the model."""
    one = argparse.Namespace(**{**vars(args), "warmup": 0.0, "duration": 1.0})
    return 4.0 * args.prompt / load(one, url, None, "plain", 2, 999, 4.0)["prompt_tokens"]


def measure(args, stage, engines, side, answers, seed, scale):
    used = lambda: [cpu_seconds(side.pid), sum(map(cpu_seconds, stage.engine_pids)), os.times().children_user + os.times().children_system]
    before, cpu = Counters(engines, args.places), used()
    sampler = Sampler(engines, side.admin, args.samples)
    served = load(args, side.url, side.key, answers, args.clients * len(engines), seed, scale)
    after, cpu = Counters(engines, args.places), [now - then for now, then in zip(used(), cpu)]
    done = max(1.0, after.done - before.done)
    names = ["proxy's CPU ms a request", "engines' CPU ms a request", "clients' CPU ms a request"]
    spent = {name: 1000 * seconds / done for name, seconds in zip(names, cpu)}
    return served, {**after.since(before), **spent, **sampler.end()}


def show(name, served, seen):
    line = f"    {name:9} {served['requests_per_second']:7.2f} answers/s  ttft p50 "
    line += f"{served['ttft']['p50_ms']:.0f} ms" if served["ttft"] else "-"
    print(line + f", end p50 {served['total']['p50_ms']:.0f} ms;", end=" ")
    print("; ".join(f"{what} {value:.2f}" for what, value in seen.items()), flush=True)


def compare(args, stage, servers):
    engines = [stage.engine(args.engine) for _ in range(servers)]
    more = pathlib.Path(args.config).read_text() if args.config else ""
    sides = {"straight": stage.nginx(engines), "through": stage.gateway(engines, more)}
    scale = bytes_per_token(args, sides["straight"].url)
    means = {}
    for answers in args.answers.split(","):
        ratios = []
        for number in range(args.rounds):
            order = list(sides) if number % 2 == 0 else list(sides)[::-1]
            rates = {}
            for name in order:
                seed = 1 + 1000 * number + (name == "through") + 10 * servers + len(answers) * 100_000
                served, seen = measure(args, stage, engines, sides[name], answers, seed, scale)
                rates[name] = served["requests_per_second"]
                show(name, served, seen)
            ratios.append(rates["through"] / rates["straight"])
            print(f"{servers} server(s), {answers}, round {number + 1}: {ratios[-1]:.3f}", flush=True)
        means[(servers, answers)] = ratios
    return means


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default="1,2")
    parser.add_argument("--answers", default="plain,streams,half")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at", type=lambda text: text.split(","), default=[], help="URLs of servers that run already")
    parser.add_argument("--places", type=int, default=PLACES, help="max_num_seqs of the servers of --at")
    parser.add_argument("--clients", type=int, help="for each server; as many as --places if not given")
    parser.add_argument("--prompt", type=int, default=600)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--class", dest="klass", default="standard")
    parser.add_argument("--warmup", type=float, default=4.0)
    parser.add_argument("--duration", type=float, default=10.0)
    parser.add_argument("--mark", type=float, default=0.95)
    parser.add_argument("--samples", help="a file that gets what engines and ledger said, each second, as JSON lines")
    parser.add_argument("--config", help="a file that is appended to the gateway's configuration")
    parser.add_argument("--engine", nargs=argparse.REMAINDER, default=[], help="arguments for vllm serve; last")
    args = parser.parse_args()
    args.clients = args.clients or args.places
    means = {}
    for servers in map(int, args.servers.split(",")):
        with tempfile.TemporaryDirectory() as folder, Stage(pathlib.Path(folder), args.at) as stage:
            means |= compare(args, stage, servers)
    low = False
    for (servers, answers), ratios in means.items():
        mean = statistics.fmean(ratios)
        low |= mean < args.mark
        rows = " ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{servers} server(s), {answers:7}: mean {mean:.3f} of {args.mark} ({rows})")
    sys.exit(low)


if __name__ == "__main__":
    main()
