#!/usr/bin/env python3
"""Small requests beside long prompts that are counted exactly.

    LOADTEST_BIN=... PENSTOCK_BIN=... loadtest/bench/counted.py [ROUNDS [PER_SECOND [TOKENIZER]]]

A gateway before engines that answer at once, one for each kind, so that only
the gateway is shared. Small streams come at a fixed
rate, in turns: alone; beside 128 KiB prompts far below their window, which are not
counted; and beside the same ones near their window, which are. Each prompt is
another text. Prints the small streams' time to the first token, in milliseconds:
medians over the rounds of p50 and p99, and the rounds' p99.
"""

import http.client
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "tokenizers"
LOADTEST = os.environ.get("LOADTEST_BIN", str(ROOT / "target" / "release" / "loadtest"))
PENSTOCK = os.environ.get("PENSTOCK_BIN", str(ROOT / "target" / "release" / "penstock"))
PORTS = {"engine": 19310, "gateway": 19311, "admin": 19312, "other": 19313}
# Puts the measured processes before others on a busy machine: "chrt -r 5".
FIRST = os.environ.get("FIRST", "").split()
BYTES = 128 << 10
RATE, SECONDS = 200, 8


def words():
    for row in (FIXTURES / "counts.jsonl").read_text().splitlines():
        for message in json.loads(row)["request"]["messages"]:
            if isinstance(message.get("content"), str):
                yield from message["content"].split()


def prompts(count):
    rng, known = random.Random(5), list(words())
    for number in range(count):
        text = f"{number} "
        while len(text.encode()) < BYTES:
            text += " ".join(rng.choices(known, k=1000)) + " "
        yield text


def config(tokenizer, window):
    model = f"tokenizer: {FIXTURES / tokenizer}"
    return f"""version: 1
auth: {{mode: off}}
server: {{listen: "127.0.0.1:{PORTS['gateway']}", admin: "127.0.0.1:{PORTS['admin']}"}}
models:
  small: {{max_model_len: 131072}}
  far: {{max_model_len: 10000000, {model}}}
  near: {{max_model_len: {window}, {model}}}
pools:
  p: {{engine: openai, models: {{small: m}}, max_seqs: 256, replicas: ["http://127.0.0.1:{PORTS['engine']}"]}}
  q: {{engine: openai, models: {{far: m, near: m}}, max_seqs: 256, replicas: ["http://127.0.0.1:{PORTS['other']}"]}}
"""


def window(tokenizer, text):
    """A little more than the prompt has."""
    body = json.dumps({"messages": [{"role": "user", "content": text}]})
    command = [PENSTOCK, "count", "--tokenizer", str(FIXTURES / tokenizer)]
    said = subprocess.run(command, input=body, capture_output=True, text=True, check=True).stdout
    return int(int(said.split()[0]) * 1.2)


class Prompts(threading.Thread):
    """Sends prompts to a model, at a rate, until stopped."""

    def __init__(self, model, texts, rate):
        super().__init__(daemon=True)
        self.bodies = [
            json.dumps({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}).encode()
            for text in texts
        ]
        self.rate, self.stopped, self.sent = rate, threading.Event(), 0

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", PORTS["gateway"], timeout=20)
        due = time.monotonic()
        while not self.stopped.wait(max(0, due - time.monotonic())):
            due += 1 / self.rate
            body = self.bodies[self.sent % len(self.bodies)]
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            self.sent += 1


def small():
    command = [*FIRST, LOADTEST, "run", "--url", f"http://127.0.0.1:{PORTS['gateway']}", "--model", "small", "--stream"]
    command += ["--max-tokens", "5", "--rate", str(RATE), "--duration", str(SECONDS), "--warmup", "1", "--timeout", "5"]
    done = subprocess.run([*command, "--json", "--quiet"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main(rounds=5, rate=20, tokenizer="byte-level"):
    rounds, rate = int(rounds), float(rate)
    texts = list(prompts(max(16, int(rate * (SECONDS + 2)))))
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "penstock.yaml"
        file.write_text(config(tokenizer, window(tokenizer, texts[0])))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running = [
            *(
                subprocess.Popen([*FIRST, LOADTEST, "engine", "--port", str(PORTS[name]), "--delay-ms", "5"], **quiet)
                for name in ("engine", "other")
            ),
            subprocess.Popen([*FIRST, PENSTOCK, "serve", "--config", str(file)], **quiet),
        ]
        try:
            time.sleep(2)
            measure(rounds, rate, texts)
        finally:
            for process in running:
                process.terminate()
                process.wait()


def measure(rounds, rate, texts):
    found = {"alone": [], "far": [], "near": []}
    for number in range(rounds):
        for case in list(found)[number % 3 :] + list(found)[: number % 3]:
            beside = None
            if case != "alone":
                beside = Prompts(case, texts, rate)
                beside.start()
            found[case].append(small())
            print(case, found[case][-1]["ttft"]["p99_ms"], found[case][-1]["outcomes"], file=sys.stderr)
            if beside:
                beside.stopped.set()
                beside.join()
                found[case][-1]["beside"] = beside.sent
    for case, runs in found.items():
        p50, p99 = ([run["ttft"][at] for run in runs] for at in ("p50_ms", "p99_ms"))
        beside = statistics.median(run.get("beside", 0) for run in runs)
        rows = " ".join(f"{one:.2f}" for one in p99)
        print(f"{case:>5}: p50 {statistics.median(p50):.2f}, p99 {statistics.median(p99):.2f} ({rows}), {beside:.0f} prompts")


if __name__ == "__main__":
    main(*sys.argv[1:])
