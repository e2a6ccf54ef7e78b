"""How full the engines' steps are through the gateway and without it, by the engines'
own counters: in class batch, at full size from the start, at least 0.7 of what they are
without it. `loadtest/bench/vllm.py` measures class standard by time."""

import concurrent.futures
import random

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


def fullness(engines, places, texts, streams):
    """Output tokens that a step had in the mean while clients ask at these places."""
    names = ["generation_tokens_total", "iteration_tokens_total_count"]
    now = lambda: [sum(engine.gauge(f"vllm:{name}") for engine in engines) for name in names]
    before = now()
    # Half as many again as there are places, so that there is always one that waits.
    clients = len(engines) * SEQUENCES * 3 // 2
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        jobs = [
            pool.submit(ask, *places[number % len(places)], text, streams(number))
            for number, text in enumerate(texts)
        ]
        for job in jobs:
            job.result()
    until("the engines have counted", lambda: now()[0] - before[0] >= REQUESTS * OUTPUT)
    tokens, steps = (after - then for after, then in zip(now(), before))
    return tokens / steps


@pytest.mark.parametrize(
    "streams", [lambda _: True, lambda _: False, lambda number: number % 2 == 0], ids=["streams", "plain", "half"]
)
def test_steps_are_as_full_through_the_gateway_as_without_it(gateway, engines, streams):
    straight = fullness(engines, [(engine.url, "none") for engine in engines], prompts(engines[0], 1), streams)
    through = fullness(engines, [(gateway.url, gateway.key)], prompts(engines[0], 2), streams)
    assert through >= 0.7 * straight, f"{through:.2f} output tokens a step, {straight:.2f} without the gateway"
