#!/usr/bin/env python3
"""Talks over shared system prompts, at real vLLM servers on the CPU with prefix caches.

    loadtest/bench/talks.py [--servers 2] [--talks 96] [--users 12] [--rounds 3]

needs target/release/penstock (PENSTOCK_BIN names another), Python 3.12 for vLLM (PYTHON
names it), and nginx (Debian: nginx-light). Servers and model are those of vllm.py; LAYERS
and HIDDEN set the size of the model.

Users hold talks of six turns. Each turn sends the whole talk so far, the answers included,
and reads a stream. Three sides serve the same kind of talks in turn, each with texts of its
own, so that no side finds what another one left in a cache:

    round robin   nginx, servers in turn
    sticky        nginx, all turns of a talk to one server, by a header that the client sends
    penstock      the gateway with nothing but its replicas configured

Prints the share of prompt tokens that the engines found in their prefix caches, by their own
counters, and percentiles of the time to the first token. Exits with 1 when the gateway's
share of hits is more than --mark below that of "sticky".
"""

import argparse
import http.client
import json
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import vllm

SYLLABLES = "ba be bi bo bu da de di do du ka ke ki ko ku la le li lo lu ma me mi mo mu na ne ni no nu".split()
BALANCE = {"round robin": "", "sticky": "hash $http_x_talk consistent;"}


class Counters:
    """What the engines' prefix caches have counted since their start, together."""

    def __init__(self, engines):
        texts = [vllm.get(f"{url}/metrics") for url in engines]
        total = lambda name: [sum(vllm.numbers(text, name).values()) for text in texts]
        self.queries = total("vllm:prefix_cache_queries_total")
        self.hits = total("vllm:prefix_cache_hits_total")

    def since(self, before):
        queries = [now - then for now, then in zip(self.queries, before.queries)]
        hits = [now - then for now, then in zip(self.hits, before.hits)]
        return sum(hits) / max(1.0, sum(queries)), [share / max(1.0, sum(queries)) for share in queries]


class Words:
    """Text of about so many tokens."""

    def __init__(self, seed, tokens_per_word):
        self.random, self.tokens_per_word = random.Random(seed), tokens_per_word

    def text(self, tokens):
        word = lambda: "".join(self.random.choices(SYLLABLES, k=3))
        return " ".join(word() for _ in range(max(1, round(tokens / self.tokens_per_word))))


def tokens_per_word(engine):
    """How many tokens the model makes of a word."""
    body = json.dumps({"model": "tiny", "prompt": Words(0, 1.0).text(200)}).encode()
    request = urllib.request.Request(f"{engine}/tokenize", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["count"] / 200


class Users:
    """Users in a closed loop: a talk after the other, with pauses between turns."""

    def __init__(self, args, url, key, seed):
        self.args, self.key, self.seed = args, key, seed
        self.place = urllib.parse.urlsplit(url)
        words = Words(seed, args.tokens_per_word)
        self.systems = [words.text(args.system) for _ in range(args.systems)]
        self.next, self.lock = 0, threading.Lock()
        self.firsts, self.failures = [], []

    def run(self):
        began = time.monotonic()
        users = [threading.Thread(target=self.user, args=(number,)) for number in range(self.args.users)]
        for user in users:
            user.start()
        for user in users:
            user.join()
        return time.monotonic() - began

    def user(self, number):
        # Users do not begin in step.
        time.sleep(self.args.pause * number / self.args.users)
        while True:
            with self.lock:
                talk, self.next = self.next, self.next + 1
            if talk >= self.args.talks:
                return
            try:
                self.talk(talk)
            except (OSError, http.client.HTTPException, ValueError) as error:
                with self.lock:
                    self.failures.append(f"talk {talk}: {error!r}")

    def talk(self, number):
        words = Words(self.seed * 100_003 + number, self.args.tokens_per_word)
        connection = http.client.HTTPConnection(self.place.hostname, self.place.port, timeout=120)
        messages = [{"role": "system", "content": self.systems[words.random.randrange(len(self.systems))]}]
        for turn in range(self.args.turns):
            if turn:
                time.sleep(self.args.pause * words.random.uniform(0.5, 1.5))
            messages.append({"role": "user", "content": words.text(self.args.turn)})
            first, answer = self.ask(connection, f"{self.seed}-{number}", messages)
            messages.append({"role": "assistant", "content": answer})
            with self.lock:
                self.firsts.append((turn, first))
        connection.close()

    def ask(self, connection, talk, messages):
        body = {"model": "tiny", "messages": messages, "stream": True, "max_tokens": self.args.answer, "ignore_eos": True}
        headers = {"content-type": "application/json", "x-talk": talk}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        began, first, answer = time.monotonic(), None, []
        connection.request("POST", "/v1/chat/completions", json.dumps(body, ensure_ascii=False).encode(), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read()[:300]!r}")
        whole = False
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                whole = True
                continue
            for choice in json.loads(line[6:]).get("choices") or []:
                text = choice["delta"].get("content")
                if text:
                    first = first or time.monotonic() - began
                    answer.append(text)
        if not whole or first is None:
            raise ValueError("the stream ended early")
        return first, "".join(answer)


def percentile(values, part):
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def measure(args, engines, name, side, seed):
    before = Counters(engines)
    users = Users(args, side.url, side.key, seed)
    took = users.run()
    hits, shares = Counters(engines).since(before)
    for failure in users.failures[:3]:
        print(f"    {failure}")
    firsts = [first for _, first in users.firsts]
    later = [first for turn, first in users.firsts if turn]
    if not later:
        sys.exit(f"{name}: no talk came to its second turn")
    figures = {
        "hits": hits,
        "p50": percentile(firsts, 0.5),
        "p99": percentile(firsts, 0.99),
        "later p50": percentile(later, 0.5),
        "later p99": percentile(later, 0.99),
        "turns/s": len(firsts) / took,
        "failed": float(len(users.failures)),
    }
    parts = ", ".join(f"{share:.2f}" for share in shares)
    print(f"  {name:12} {show(figures)}; prompt tokens by server {parts}", flush=True)
    return figures


def show(figures):
    times = f"first token p50 {figures['p50']:.0f} p99 {figures['p99']:.0f} ms"
    later = f"from the second turn on p50 {figures['later p50']:.0f} p99 {figures['later p99']:.0f} ms"
    return f"hits {figures['hits']:.3f}; {times}; {later}; {figures['turns/s']:.1f} turns/s; failed {figures['failed']:.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--talks", type=int, default=96, help="for each side and round")
    parser.add_argument("--users", type=int, default=12, help="that talk at once")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--systems", type=int, default=6, help="system prompts")
    parser.add_argument("--system", type=int, default=500, help="tokens of a system prompt, about")
    parser.add_argument("--turn", type=int, default=120, help="tokens of a user's text, about")
    parser.add_argument("--answer", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between turns, 50 %% more or less")
    parser.add_argument("--mark", type=float, default=0.02)
    parser.add_argument("--at", type=lambda text: text.split(","), default=[], help="URLs of servers that run already, as many as --servers")
    parser.add_argument("--config", help="a file that is appended to the gateway's configuration")
    parser.add_argument("--engine", nargs=argparse.REMAINDER, default=[], help="arguments for vllm serve; last")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, vllm.Stage(pathlib.Path(folder), args.at) as stage:
        engines = [stage.engine(["--enable-prefix-caching", *args.engine]) for _ in range(args.servers)]
        args.tokens_per_word = tokens_per_word(engines[0])
        sides = {name: stage.nginx(engines, balance) for name, balance in BALANCE.items()}
        more = pathlib.Path(args.config).read_text() if args.config else ""
        sides["penstock"] = stage.gateway(engines, more)
        rows = {name: [] for name in sides}
        for number in range(args.rounds):
            print(f"round {number + 1}", flush=True)
            names = list(sides)
            for index, name in enumerate(names[number % len(names) :] + names[: number % len(names)]):
                rows[name].append(measure(args, engines, name, sides[name], 1 + 10 * number + index))
    means = {name: {key: statistics.fmean(row[key] for row in all_rows) for key in all_rows[0]} for name, all_rows in rows.items()}
    print(f"means of {args.rounds} round(s)")
    for name, figures in means.items():
        print(f"  {name:12} {show(figures)}")
    sys.exit(means["penstock"]["hits"] < means["sticky"]["hits"] - args.mark)


if __name__ == "__main__":
    main()
