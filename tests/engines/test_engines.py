"""The gateway in front of real engines, by the real OpenAI SDK."""

import concurrent.futures
import threading

import httpx
import openai
import pytest

from conftest import until

KINDS = ["chat", "chat_stream", "completion", "completion_stream"]
MESSAGES = [{"role": "user", "content": "kalo mine pura sito vezu."}]


def client(gateway):
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, timeout=300, max_retries=0)


def ask(api, kind, tokens):
    """One request; returns its usage."""
    common = {"model": "tiny", "max_tokens": tokens, "extra_body": {"ignore_eos": True}}
    if kind == "chat":
        return api.chat.completions.create(messages=MESSAGES, **common).usage
    if kind == "completion":
        return api.completions.create(prompt="kalo mine", **common).usage
    options = {"stream": True, "stream_options": {"include_usage": True}}
    if kind == "chat_stream":
        stream = api.chat.completions.create(messages=MESSAGES, **common, **options)
    else:
        stream = api.completions.create(prompt="kalo mine", **common, **options)
    *_, last = stream
    return last.usage


class Inside:
    """What the engines have counted since this was made."""

    NAMES = ["generation_tokens_total", "request_queue_time_seconds_sum", "request_queue_time_seconds_count"]

    def __init__(self, engines):
        self.engines = engines
        self.before = self.now()

    def now(self):
        return [sum(e.gauge(f"vllm:{name}") for e in self.engines) for name in self.NAMES]

    def since(self, least, answers):
        """Tokens, and seconds that requests waited. An engine may answer before it
        counts: it has time to come to so many tokens and answers."""

        def counted():
            self.seen = [now - before for now, before in zip(self.now(), self.before)]
            return self.seen[0] >= least and self.seen[2] >= answers

        until("the engines have counted what they answered", counted)
        return self.seen[:2]


def test_mixed_requests_wait_in_the_gateway_and_not_in_the_engines(gateway, engines):
    api = client(gateway)
    inside = Inside(engines)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        jobs = [pool.submit(ask, api, KINDS[i % 4], 60 + i % 5) for i in range(64)]
        usages = [job.result() for job in jobs]

    assert [u.completion_tokens for u in usages] == [60 + i % 5 for i in range(64)]
    delivered = sum(u.completion_tokens for u in usages)
    generated, waited_inside = inside.since(delivered, 64)
    # Eight places for 64 requests: the waiting is here, and there only for the next step.
    waited_here = gateway.metric("penstock_queue_wait_seconds_sum")
    assert waited_inside < 0.1 * waited_here, f"{waited_inside} s inside, {waited_here} s here"
    # What is taken back from an engine that has stopped for seconds is made twice.
    recalls = gateway.metric("penstock_recalls_total")
    assert delivered <= generated <= delivered + 64 * recalls, f"{recalls} recalls"
    until("all are logged", lambda: len(gateway.requests()) >= 64)
    lines = gateway.requests()
    assert len(lines) == 64
    fields = [line.get("fields", line) for line in lines]
    assert sum(f["output_tokens"] for f in fields) == delivered
    assert {f["usage"] for f in fields} == {"exact"}


def strip(value):
    """An answer without what differs from call to call."""
    drop = {"id", "created", "system_fingerprint", "request_id", "service_tier"}
    if isinstance(value, dict):
        return {k: strip(v) for k, v in value.items() if k not in drop}
    if isinstance(value, list):
        return [strip(v) for v in value]
    return value


TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "look a word up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}

CASES = {
    "chat": ("chat/completions", {"messages": MESSAGES}),
    "chat_n2": ("chat/completions", {"messages": MESSAGES, "n": 2, "temperature": 0.5, "top_k": 1}),
    "chat_logprobs": ("chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    "chat_parts": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "kalo mine"}]}]},
    ),
    "chat_tools": ("chat/completions", {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "auto"}),
    "chat_unknown_fields": (
        "chat/completions",
        {"messages": MESSAGES, "return_token_ids": True, "top_k": 5, "no_such_field": {"a": [1.0, 2e3, None]}},
    ),
    "completion": ("completions", {"prompt": "kalo mine"}),
    "completion_echo_logprobs": ("completions", {"prompt": "kalo mine", "echo": True, "logprobs": 1, "max_tokens": 1}),
    "completion_batch": ("completions", {"prompt": ["kalo", "mine pura"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_plain_answers_are_those_of_a_direct_call(gateway, engines, case):
    path, body = CASES[case]
    body = {"model": "tiny", "max_tokens": 8, "temperature": 0, "seed": 3, **body}
    direct = httpx.post(f"{engines[0].url}/v1/{path}", json=body, timeout=120)
    relayed = httpx.post(
        f"{gateway.url}/v1/{path}", json=body, timeout=120, headers={"authorization": f"Bearer {gateway.key}"}
    )
    assert relayed.status_code == direct.status_code == 200, relayed.text
    assert strip(relayed.json()) == strip(direct.json())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("usage", [False, True])
def test_streams_are_those_of_a_direct_call(gateway, engines, case, usage):
    path, body = CASES[case]
    body = {"model": "tiny", "max_tokens": 8, "temperature": 0, "seed": 3, "stream": True, **body}
    if usage:
        body["stream_options"] = {"include_usage": True}
    direct = httpx.post(f"{engines[0].url}/v1/{path}", json=body, timeout=120)
    relayed = httpx.post(
        f"{gateway.url}/v1/{path}", json=body, timeout=120, headers={"authorization": f"Bearer {gateway.key}"}
    )
    assert relayed.status_code == direct.status_code == 200, relayed.text
    assert relayed.headers["content-type"].startswith("text/event-stream")
    assert merged(relayed.text) == merged(direct.text)
    assert relayed.text.endswith("data: [DONE]\n\n")
    assert ('"usage":{' in relayed.text) == usage


def merged(text):
    """A stream by choice: engines cut the same text into events as they please."""
    import json

    choices, usage = {}, None
    for line in text.split("\n"):
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            kept = choices.setdefault(choice["index"], {"text": "", "finish": None, "logprobs": 0})
            kept["text"] += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            kept["finish"] = choice["finish_reason"] or kept["finish"]
            logprobs = choice.get("logprobs") or {}
            kept["logprobs"] += len(logprobs.get("content") or logprobs.get("tokens") or [])
    return choices, strip(usage)


def test_the_engines_errors_keep_their_meaning(gateway):
    api = client(gateway)
    with pytest.raises(openai.BadRequestError) as too_long:
        api.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "ka lo " * 4000}])
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        api.chat.completions.create(model="no-such-model", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    models = {model.id: model.max_model_len for model in api.models.list().data}
    assert models == {"tiny": 2048}


def test_killing_an_engine_fails_no_request(gateway, engines):
    api = client(gateway)
    seen, killed = [], threading.Event()

    def stream():
        # One after the other, so that the engine always ends in the middle of some.
        while True:
            last_one = killed.is_set()
            try:
                events = api.chat.completions.create(
                    model="tiny", messages=MESSAGES, max_tokens=40, stream=True, extra_body={"ignore_eos": True}
                )
                *_, last = events
                seen.append(last.choices[0].finish_reason)
            except openai.APIError as error:
                seen.append(f"{type(error).__name__}: {error}")
            if last_one:
                return

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        jobs = [pool.submit(stream) for _ in range(32)]
        try:
            until("the second engine is at work", lambda: engines[1].gauge("vllm:num_requests_running") >= 4)
            engines[1].kill()
        finally:
            killed.set()
        for job in jobs:
            job.result()

    assert seen == ["length"] * len(seen) and len(seen) >= 32
