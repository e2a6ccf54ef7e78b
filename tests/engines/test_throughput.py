"""How full the engines' steps are through the gateway and without it, by the engines'
own counters, in class batch, at full size from the start: output tokens of a step, steps
without a prompt while requests wait, and the time that requests wait inside.
`loadtest/bench/vllm.py` measures class standard by time."""

import concurrent.futures
import random
import re
import typing

import httpx
import pytest

from conftest import SEQUENCES, Gateway, until

# So long that a few prompts are more than engines read in one step.
PROMPT, OUTPUT = 1500, 48
REQUESTS = 36
SYLLABLES = "ka lo mi ne pu ra si to ve zu ba do fe gi hu ja".split()


def prompts(engine, seed):
    """Texts of about PROMPT tokens that have no start in common."""
    rng = random.Random(seed)
    text = lambda words: " ".join("".join(rng.choices(SYLLABLES, k=2)) for _ in range(words))
    sample = text(200)
    body = {"model": "tiny", "prompt": sample, "add_special_tokens": False}
    tokens = len(httpx.post(f"{engine.url}/tokenize", json=body, timeout=60).json()["tokens"])
    return [text(200 * PROMPT // tokens) for _ in range(REQUESTS)]


@pytest.fixture
def gateway(engines, tmp_path):
    """One whose replicas are at full size at once."""
    for engine in engines:
        engine.revive()
    running = Gateway(tmp_path, engines, {"health": {"slow_start": "0s"}})
    yield running
    assert running.stop() == 0


def ask(url, key, prompt, stream):
    body = {"model": "tiny", "max_tokens": OUTPUT, "ignore_eos": True, "stream": stream}
    body["messages"] = [{"role": "user", "content": prompt}]
    headers = {"authorization": f"Bearer {key}", "x-penstock-class": "batch"}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer


class Steps(typing.NamedTuple):
    """What the engines counted while clients asked."""

    # Output tokens of a step, in the mean.
    tokens: float
    # Share of the steps that read no prompt: those of at most a token for each sequence.
    without_prompt: float
    # Seconds that a request waited inside, in the mean.
    waited: float


def counters(engines):
    """Output tokens, steps, steps without a prompt, seconds of waiting, requests."""
    names = ["generation_tokens_total", "iteration_tokens_total_count"]
    waits = ["request_queue_time_seconds_sum", "request_queue_time_seconds_count"]
    total = lambda name: sum(engine.gauge(f"vllm:{name}") for engine in engines)
    small = 0.0
    for engine in engines:
        text = httpx.get(f"{engine.url}/metrics", timeout=60).text
        buckets = re.findall(r'^vllm:iteration_tokens_total_bucket{.*le="([\d.]+)".*} (\S+)$', text, re.M)
        small += max(float(count) for bound, count in buckets if float(bound) <= SEQUENCES)
    return [*map(total, names), small, *map(total, waits)]


def measure(engines, places, texts, streams):
    """The engines' steps while clients ask at these places."""
    before = counters(engines)
    # Half as many again as there are places, so that there is always one that waits.
    clients = len(engines) * SEQUENCES * 3 // 2
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        jobs = [
            pool.submit(ask, *places[number % len(places)], text, streams(number))
            for number, text in enumerate(texts)
        ]
        for job in jobs:
            job.result()
    until("the engines have counted", lambda: counters(engines)[0] - before[0] >= REQUESTS * OUTPUT)
    tokens, steps, small, waited, requests = (after - then for after, then in zip(counters(engines), before))
    return Steps(tokens / steps, small / steps, waited / requests)


@pytest.mark.parametrize(
    "streams", [lambda _: True, lambda _: False, lambda number: number % 2 == 0], ids=["streams", "plain", "half"]
)
def test_steps_are_as_full_through_the_gateway_as_without_it(gateway, engines, streams):
    straight = measure(engines, [(engine.url, "none") for engine in engines], prompts(engines[0], 1), streams)
    through = measure(engines, [(gateway.url, gateway.key)], prompts(engines[0], 2), streams)
    told = f"through the gateway: {through}; without it: {straight}"
    print(told)
    assert through.tokens >= 0.7 * straight.tokens, told
    # A prompt is there for a step whenever one would be without the gateway.
    assert through.without_prompt <= straight.without_prompt + 0.15, told
    # Who has to wait waits in the gateway.
    assert through.waited <= 0.5 * straight.waited, told
