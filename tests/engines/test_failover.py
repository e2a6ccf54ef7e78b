"""Greedy streams under load while one of two real engines goes away: each one
reads as if nothing had happened."""

import concurrent.futures
import contextlib
import json
import signal
import threading

import httpx
import pytest

from conftest import SEQUENCES, until

STREAMS, TOKENS = 12, 180


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


def undisturbed(engines):
    """What each stream says when nothing happens, and the words it is told to use."""
    words = own_words(engines[0])
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        expected = list(pool.map(lambda number: ask(engines[0].url, "none", number, words), range(STREAMS)))
    assert {(e["done"], tuple(e["ends"])) for e in expected} == {(True, ("length",))}
    return words, expected


def nothing_is_left(gateway):
    """The gateway's books, once all its clients have their answers."""
    names = ["penstock_jobs", "penstock_replica_running", "penstock_streams_broken_total"]
    until("the ledgers are empty", lambda: [gateway.metric(name) for name in names] == [0, 0, 0])


@contextlib.contextmanager
def streams_without_end(gateway, words, expected):
    """Clients that ask for one stream after the other, and for one more at the end, so
    that an engine that ends meanwhile is in the middle of some, however little time
    this process gets. Each stream must read as expected. Gives the list of those that
    are over."""
    over, stop = [], threading.Event()

    def client(number):
        while True:
            last = stop.is_set()
            assert ask(gateway.url, gateway.key, number, words) == expected[number]
            over.append(number)
            if last:
                return

    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        clients = [pool.submit(client, number) for number in range(STREAMS)]
        try:
            yield over
        finally:
            stop.set()
        for one in clients:
            one.result()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_streams_of_an_engine_that_ends_go_on_word_for_word(gateway, engines, end):
    words, expected = undisturbed(engines)
    with streams_without_end(gateway, words, expected) as over:
        made = engines[1].gauge("vllm:generation_tokens_total")
        # All its places are taken, and what runs there has some of its tokens.
        until("it is at work", lambda: engines[1].gauge("vllm:num_requests_running") == SEQUENCES)
        until("it writes", lambda: engines[1].gauge("vllm:generation_tokens_total") > made + 20 * SEQUENCES)
        engines[1].end(end)
    engines[1].gone()
    assert len(over) >= STREAMS
    continued = gateway.metric("penstock_continuations_total")
    assert continued >= 1
    # A line follows the end of its stream.
    until(
        "all are logged",
        lambda: sum(line.get("fields", line).get("continued", 0) for line in gateway.requests()) >= continued,
    )
    lines = [line.get("fields", line) for line in gateway.requests()]
    assert sum(line.get("continued", 0) for line in lines) == continued
    nothing_is_left(gateway)


@pytest.fixture
def patient(engines):
    """The second engine, started so that its running streams may finish when it is told to end."""
    engines[1].kill()
    engines[1].gone()
    return engines[1].start("--shutdown-timeout", "15")


def test_streams_of_an_engine_that_drains_finish_and_new_ones_go_elsewhere(patient, gateway, engines):
    words, expected = undisturbed(engines)
    with concurrent.futures.ThreadPoolExecutor(2 * STREAMS) as pool:
        streams = [pool.submit(ask, gateway.url, gateway.key, number, words) for number in range(STREAMS)]
        until("it is at work", lambda: patient.gauge("vllm:num_requests_running") >= 1)
        patient.end(signal.SIGTERM)
        # It answers new work with 500 and its health with 200.
        late = [pool.submit(ask, gateway.url, gateway.key, number, words) for number in range(STREAMS)]
        seen, seen_late = [s.result() for s in streams], [s.result() for s in late]
    patient.gone()
    assert seen == expected
    assert seen_late == expected
    assert gateway.metric("penstock_continuations_total") <= STREAMS
    # A line follows the end of its stream.
    until("each has its line", lambda: len(gateway.requests()) >= 2 * STREAMS)
    outcomes = [line.get("fields", line)["outcome"] for line in gateway.requests()]
    assert outcomes == ["success"] * 2 * STREAMS
    nothing_is_left(gateway)
