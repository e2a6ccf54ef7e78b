"""Greedy streams under load while one of two real engines goes away: each one
reads as if nothing had happened."""

import concurrent.futures
import json
import signal
import time

import httpx
import pytest

STREAMS, TOKENS = 12, 120


def own_words(engine):
    """Tokens that are read as they were written. A trained model writes its
    words in no other way; random weights do it only when told."""
    vocabulary = json.loads((engine.model / "tokenizer.json").read_text())["model"]["vocab"]
    ids = [i for token, i in vocabulary.items() if token.startswith("Ġ") and token[1:].isalpha()]
    text = httpx.post(f"{engine.url}/detokenize", json={"model": "tiny", "tokens": ids}, timeout=60)
    body = {"model": "tiny", "prompt": text.json()["prompt"], "add_special_tokens": False}
    read = httpx.post(f"{engine.url}/tokenize", json=body, timeout=60).json()["tokens"]
    return sorted(set(ids) & set(read)) if read != ids else sorted(ids)


def ask(url, key, number, words):
    """One stream: text, finish reasons, roles, ids, usages and whether [DONE] came."""
    common = {
        "model": "tiny",
        "max_tokens": TOKENS,
        "temperature": 0,
        "seed": number,
        "ignore_eos": True,
        "allowed_token_ids": words,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    prompt = f"kalo mine pura {number}."
    if number % 2:
        path, body = "completions", {"prompt": prompt}
    else:
        path, body = "chat/completions", {"messages": [{"role": "user", "content": prompt}]}
    headers = {"authorization": f"Bearer {key}"}
    seen = {"text": "", "ends": [], "roles": 0, "ids": set(), "usages": [], "done": False}
    with httpx.stream("POST", f"{url}/v1/{path}", json={**common, **body}, headers=headers, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                seen["done"] = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                assert "error" not in event, event
                seen["ids"].add((event["id"], event["created"]))
                usage = event.get("usage")
                seen["usages"] += [(usage["prompt_tokens"], usage["completion_tokens"])] if usage else []
                for choice in event["choices"]:
                    delta = choice.get("delta") or {}
                    seen["roles"] += "role" in delta
                    seen["text"] += choice.get("text") or delta.get("content") or ""
                    seen["ends"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert len(seen.pop("ids")) == 1
    return seen


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_streams_of_an_engine_that_ends_go_on_word_for_word(gateway, engines, end):
    words = own_words(engines[0])
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        numbers = range(STREAMS)
        expected = list(pool.map(lambda number: ask(engines[0].url, "none", number, words), numbers))
        assert {(e["done"], tuple(e["ends"])) for e in expected} == {(True, ("length",))}
        streams = [pool.submit(ask, gateway.url, gateway.key, number, words) for number in numbers]
        deadline = time.monotonic() + 60
        while engines[1].gauge("vllm:num_requests_running") < 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.5)
        engines[1].end(end)
        seen = [stream.result() for stream in streams]
    engines[1].gone()
    assert seen == expected
    continued = gateway.metric("penstock_continuations_total")
    assert continued >= 1 and gateway.metric("penstock_streams_broken_total") == 0
    lines = [line.get("fields", line) for line in gateway.requests()]
    assert sum(line.get("continued", 0) for line in lines) == continued
    assert gateway.metric("penstock_jobs") == gateway.metric("penstock_replica_running") == 0
