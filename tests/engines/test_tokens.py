"""Prompts are counted as the real engine counts them."""

import concurrent.futures
import json
import pathlib
import random
import subprocess
import sys
import time

import httpx

from conftest import BINARY, Engine, Gateway, free_port, until

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures" / "tokenizers"
sys.path.insert(0, str(FIXTURES))

import chats  # noqa: E402

CHATS = 2000
WINDOW = 2048


def counted_here(folder, bodies, tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(body, ensure_ascii=False) + "\n" for body in bodies))
    command = [BINARY, "count", "--tokenizer", str(folder), str(path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(line) if line.isdigit() else None for line in out.splitlines()]


def counted_there(url, bodies):
    """By the engine; None where it refuses."""
    with httpx.Client(timeout=60) as client:

        def ask(body):
            answer = client.post(f"{url}/tokenize", json={"model": "tiny"} | body)
            assert answer.status_code in (200, 400), answer.text
            return answer.json()["count"] if answer.status_code == 200 else None

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(ask, bodies))


def assert_equal_counts(url, folder, tmp_path, seed):
    rng = random.Random(seed)
    bodies = [chats.request(rng) for _ in range(CHATS)]
    here, there = counted_here(folder, bodies, tmp_path), counted_there(url, bodies)
    differ = [(b, h, t) for b, h, t in zip(bodies, here, there, strict=True) if h != t]
    assert not differ, (len(differ), differ[0])
    assert sum(count is not None for count in here) > CHATS * 0.8


def test_counts_equal_those_of_the_engine(engines, tmp_path):
    assert_equal_counts(engines[0].url, engines[0].model, tmp_path, 1)


def test_counts_of_other_tokenizers_equal_those_of_the_engine(engines, tmp_path):
    """The same model with each tokenizer of the fixtures: its weights have no
    part in /tokenize."""
    names = ["byte-level", "sentence-piece", "word-piece"]
    others = [Engine(free_port(), engines[0].home, core) for core in range(len(names))]
    start = lambda engine, name: engine.start("--tokenizer", str(FIXTURES / name))
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(start, others, names))
        for seed, (engine, name) in enumerate(zip(others, names), 2):
            assert_equal_counts(engine.url, FIXTURES / name, tmp_path, seed)
    finally:
        for engine in others:
            engine.kill()


def chat(url, key, words, **more):
    body = {"model": "tiny", "messages": [{"role": "user", "content": words}], "ignore_eos": True} | more
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120)


def wait_for_window(gateway):
    """Until the gateway has asked the engines for it."""
    headers = {"authorization": f"Bearer {gateway.key}"}
    for _ in range(1200):
        listed = httpx.get(f"{gateway.url}/v1/models", headers=headers, timeout=60).json()["data"]
        if listed[0].get("max_model_len") == WINDOW:
            return
        time.sleep(0.05)
    raise RuntimeError("the gateway does not know the window")


def test_the_boundary_is_the_engines(engines, tmp_path):
    """With the tokenizer, and with the engine's word alone: the window is what
    the engine reports."""
    body = {"messages": [{"role": "user", "content": ""}]}
    frame = counted_there(engines[0].url, [body])[0]
    word = " ka"
    per_word = counted_there(engines[0].url, [{"messages": [{"role": "user", "content": word * 100}]}])[0] - frame
    assert per_word == 100
    for model, source in [({"tokenizer": str(engines[0].model)}, "exact"), ({}, "engine")]:
        gateway = Gateway(tmp_path / source, engines, {"models": {"tiny": model}})
        try:
            wait_for_window(gateway)
            for prompt, asked, status, left in [
                (WINDOW - 1, 1, 200, None),
                (WINDOW, 1, 400, None),
                (WINDOW + 1, 1, 400, None),
                (WINDOW - 8, 8, 200, None),
                (WINDOW - 8, 9, 200, "8"),
            ]:
                words = word * (prompt - frame)
                answer = chat(gateway.url, gateway.key, words, max_tokens=asked)
                assert answer.status_code == status, (source, prompt, answer.text)
                assert answer.headers.get("x-penstock-max-tokens") == left
                if status == 200:
                    usage = answer.json()["usage"]
                    assert usage["prompt_tokens"] == prompt
                    assert usage["completion_tokens"] == int(left or asked)
                else:
                    error = answer.json()["error"]
                    assert error["code"] == "context_length_exceeded" and str(prompt) in error["message"]
            until("all are logged", lambda: len(gateway.requests()) >= 5)
            sources = [line["prompt_source"] for line in gateway.requests()]
            assert sources == [source] * 5
        finally:
            assert gateway.stop() == 0
