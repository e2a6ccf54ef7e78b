#!/usr/bin/env python3
"""Many clients over sockets against one tight limit of tokens a minute.

    LOADTEST_BIN=... PENSTOCK_BIN=... loadtest/bench/limit.py [MINUTES [CLIENTS]]

Clients in a closed loop, each with a connection of its own, that come back when a
429 tells them to. Asks for at most 400 tokens and uses 20 to 199 of them. Prints
how much of the limit was used, minute by minute, and the most in any 60 seconds,
each request counted when it was sent.
"""

import bisect
import http.client
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).parents[2]
LOADTEST = os.environ.get("LOADTEST_BIN", str(ROOT / "target" / "release" / "loadtest"))
PENSTOCK = os.environ.get("PENSTOCK_BIN", str(ROOT / "target" / "release" / "penstock"))
GATEWAY, ADMIN = 19321, 19322
LIMIT, MOST, LEAST, RANGE = 60_000, 400, 20, 180


def config(engine):
    return f"""version: 1
auth: {{mode: off, tenant: team}}
server: {{listen: "127.0.0.1:{GATEWAY}", admin: "127.0.0.1:{ADMIN}"}}
classes: {{only: {{ttft: 1m, itl: 1m, max_wait: 10m}}}}
tenants: {{team: {{limits: {{per_minute: {{tokens: {LIMIT}}}}}}}}}
pools:
  p: {{engine: vllm, models: [sim], max_seqs: 256, replicas: ["{engine}"]}}
"""


class Book:
    """What was used, by the time at which its request was sent."""

    def __init__(self):
        self.lock, self.used, self.refused = threading.Lock(), [], 0

    def add(self, sent, tokens):
        with self.lock:
            self.used.append((sent, tokens))

    def refuse(self):
        with self.lock:
            self.refused += 1

    def highest(self):
        """The most in any 60 seconds."""
        used = sorted(self.used)
        times, sums = [at for at, _ in used], [0]
        for _, tokens in used:
            sums.append(sums[-1] + tokens)
        ends = (bisect.bisect_left(times, at + 60) for at in times)
        return max(sums[end] - sums[start] for start, end in enumerate(ends))


def client(number, begun, seconds, book):
    rng = random.Random(number)
    connection = http.client.HTTPConnection("127.0.0.1", GATEWAY, timeout=120)
    while time.monotonic() - begun < seconds:
        tokens = LEAST + rng.randrange(RANGE)
        body = {"model": "sim", "max_tokens": MOST, "min_tokens": tokens - 1, "prompt": "how high is the water? " * 8}
        sent = time.monotonic() - begun
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        if answer.status == 200:
            book.add(sent, said["usage"]["total_tokens"])
        else:
            assert (answer.status, said["error"]["code"]) == (429, "rate_limit_exceeded"), said
            book.refuse()
            time.sleep(int(answer.headers["retry-after-ms"]) / 1000)


def measure(minutes, clients):
    begun, book = time.monotonic(), Book()
    rows = [
        threading.Thread(target=client, args=(number, begun, minutes * 60, book), daemon=True)
        for number in range(clients)
    ]
    for row in rows:
        row.start()
    time.sleep(minutes * 60 + 10)
    for minute in range(minutes):
        used = sum(tokens for sent, tokens in book.used if minute * 60 <= sent < (minute + 1) * 60)
        print(f"minute {minute + 1}: {used} tokens, {100 * used / LIMIT:.1f} % of the limit")
    print(f"most in any 60 s: {book.highest()}; one reservation: about {MOST + 50}; {book.refused} refusals")


def main(minutes=2, clients=200):
    with tempfile.TemporaryDirectory() as folder:
        file, ready = pathlib.Path(folder) / "penstock.yaml", pathlib.Path(folder) / "ready"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running = [subprocess.Popen([LOADTEST, "engines", "--profile", "h100-8b", "--ready-file", ready], **quiet)]
        try:
            while not (ready.exists() and "}" in ready.read_text()):
                time.sleep(0.1)
            file.write_text(config(json.loads(ready.read_text())["urls"][0]))
            running.append(subprocess.Popen([PENSTOCK, "serve", "--config", str(file)], **quiet))
            time.sleep(2)
            measure(int(minutes), int(clients))
        finally:
            for process in running:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
