"""The gateway in front of real engines, by the real OpenAI SDK."""

import concurrent.futures
import threading
import time

import httpx
import openai
import pytest

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


class Watch(threading.Thread):
    """Samples a function until stopped; keeps the greatest value."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function, self.running = function, True
        self.greatest, self.samples = 0.0, 0
        self.start()

    def run(self):
        while self.running:
            self.greatest = max(self.greatest, self.function())
            self.samples += 1
            time.sleep(0.05)

    def stop(self):
        self.running = False
        self.join()
        assert self.samples >= 5
        return self.greatest


def counted(engines, least):
    """The engines' tokens: an engine may answer before it counts, so it has 10 s to come to `least`."""
    for _ in range(100):
        total = sum(e.gauge("vllm:generation_tokens_total") for e in engines)
        if total >= least:
            break
        time.sleep(0.1)
    return total


def test_mixed_requests_wait_in_the_gateway_and_not_in_the_engines(gateway, engines):
    api = client(gateway)
    before = sum(e.gauge("vllm:generation_tokens_total") for e in engines)
    waiting = [Watch(lambda e=e: e.gauge("vllm:num_requests_waiting")) for e in engines]
    queued = Watch(lambda: gateway.metric("penstock_queue_depth"))
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        jobs = [pool.submit(ask, api, KINDS[i % 4], 60 + i % 5) for i in range(64)]
        usages = [job.result() for job in jobs]

    assert [u.completion_tokens for u in usages] == [60 + i % 5 for i in range(64)]
    assert queued.stop() >= 20
    assert [watch.stop() for watch in waiting] == [0, 0]
    delivered = sum(u.completion_tokens for u in usages)
    generated = counted(engines, before + delivered) - before
    # What is taken back from an engine that has stopped for seconds is made twice.
    recalls = gateway.metric("penstock_recalls_total")
    assert delivered <= generated <= delivered + 64 * recalls, f"{recalls} recalls"
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
    seen, lock = [], threading.Lock()

    def stream(tokens):
        try:
            events = api.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
            )
            *_, last = events
            result = last.choices[0].finish_reason
        except openai.APIError as error:
            result = f"{type(error).__name__}: {error}"
        with lock:
            seen.append(result)

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        jobs = [pool.submit(stream, 40) for _ in range(32)]
        deadline = time.monotonic() + 60
        while engines[1].gauge("vllm:num_requests_running") < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        engines[1].kill()
        for job in jobs:
            job.result()

    assert seen == ["length"] * 32
