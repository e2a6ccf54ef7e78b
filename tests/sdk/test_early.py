"""Streams whose head comes while their requests are held for a pool that has to start."""

import json
import threading

import anthropic
import openai
import pytest

from fleet import Engine, Gateway, until

MESSAGES = [{"role": "user", "content": "kalo"}]
EXACT = {"extra_body": {"ignore_eos": True}}


def cold(tmp_path, tolerance):
    """A gateway whose one pool has no replica, and the path of its file."""
    pool = {"engine": "vllm", "models": ["cold"], "replicas": [], "cold_start": "1s"}
    patient = {"rank": 0, "max_wait": "5m", "cold_start_tolerance": tolerance, "early_head": True}
    folder = tmp_path / "gateway"
    running = Gateway(
        folder, {"team": {}}, {"cold": pool}, classes={"standard": patient}, requests={"keepalive": "50ms"}
    )
    return running, folder / "penstock.yaml"


@pytest.fixture
def asked():
    """What the SDKs call: a stream of each API, as (library, function of a client)."""
    return {
        "chat": (openai, lambda api: api.chat.completions.create(
            model="cold", messages=MESSAGES, max_tokens=5, stream=True, **EXACT)),
        "completions": (openai, lambda api: api.completions.create(
            model="cold", prompt="kalo", max_tokens=5, stream=True, **EXACT)),
        "responses": (openai, lambda api: api.responses.create(
            model="cold", input="kalo", max_output_tokens=5, stream=True, **EXACT)),
        "messages": (anthropic, lambda api: api.messages.create(
            model="cold", messages=MESSAGES, max_tokens=5, stream=True, **EXACT)),
    }


def text(events):
    """Text of a stream's events, whichever API they are of."""
    parts = []
    for event in events:
        choice = next(iter(getattr(event, "choices", [])), None)
        if choice is not None:
            parts.append(choice.delta.content if hasattr(choice, "delta") else choice.text)
        elif event.type == "response.output_text.delta":
            parts.append(event.delta)
        elif event.type == "content_block_delta":
            parts.append(event.delta.text)
    return "".join(part or "" for part in parts)


def client(library, gateway):
    if library is openai:
        return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.keys["team"], timeout=60)
    return anthropic.Anthropic(base_url=gateway.url, api_key=gateway.keys["team"], timeout=60)


@pytest.mark.parametrize("call", ["chat", "completions", "responses", "messages"])
def test_a_stream_through_an_early_head_is_whole(tmp_path, asked, call):
    gateway, path = cold(tmp_path, "4m")
    engine = Engine(tmp_path, "cold")
    library, ask = asked[call]
    began, events = threading.Event(), []

    def read():
        with client(library, gateway) as api:
            stream = ask(api)
            began.set()
            events.extend(stream)

    reader = threading.Thread(target=read)
    try:
        reader.start()
        assert began.wait(20), "the head comes while the request is held"
        assert gateway.metric("penstock_queue_depth") == 1 and not events
        config = json.loads(path.read_text())
        config["pools"]["cold"]["replicas"] = [engine.url]
        path.write_text(json.dumps(config))
        reader.join(60)
        assert not reader.is_alive()
        with client(library, gateway) as api:
            again = text(ask(api))
        assert text(events) == again != "", "it is what a pool that runs would have sent"
        until(lambda: gateway.metric("penstock_jobs") == 0, "nothing is left")
    finally:
        gateway.stop()
        engine.stop()


@pytest.mark.parametrize("call", ["chat", "completions", "responses", "messages"])
def test_a_failure_behind_an_early_head_raises(tmp_path, asked, call):
    gateway, _ = cold(tmp_path, "1500ms")
    library, ask = asked[call]
    try:
        with client(library, gateway) as api, pytest.raises(library.APIError) as failed:
            list(ask(api))
        assert "No replica of the model is running" in str(failed.value)
        assert gateway.metric("penstock_requests_total", reason="cold_start") == 1, "it is not tried again"
    finally:
        gateway.stop()
