"""The gateway as the OpenAI SDK for Python sees it."""

import asyncio
import concurrent.futures
import itertools
import json
import uuid

import openai
import pytest

from conftest import BUSY
from fleet import until

MESSAGES = [{"role": "user", "content": "kalo mine pura sito vezu."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "look a word up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
EXACT = {"extra_body": {"ignore_eos": True}}


def client(gateway, tenant="team", **options):
    options.setdefault("base_url", f"{gateway.url}/v1")
    return openai.OpenAI(api_key=gateway.keys[tenant], **options)


def recorded(gateway, recorder, tenant="team", **options):
    return client(gateway, tenant, http_client=recorder.sync_client(openai), **options)


@pytest.fixture
def api(gateway):
    with client(gateway) as made:
        yield made


# --- what works -----------------------------------------------------------


@pytest.mark.parametrize("model", ["fast", "gpt-4o"])
def test_chat(api, model):
    answer = api.chat.completions.create(model=model, messages=MESSAGES, max_tokens=7, **EXACT)
    assert answer.model == model
    assert answer.usage.completion_tokens == 7 and answer.usage.prompt_tokens > 0
    assert answer.choices[0].message.content and answer.choices[0].finish_reason == "length"


def test_chat_of_tgi(api):
    """TGI counts the token that ends an answer, which has no text."""
    answer = api.chat.completions.create(model="text", messages=MESSAGES, max_tokens=500)
    assert answer.model == "text" and answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(answer.choices[0].message.content.split()) + 1


@pytest.mark.parametrize("model", ["fast", "gpt-4o", "text"])
@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_has_usage_only_when_asked(gateway, api, marker, model, usage):
    options = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(
        api.chat.completions.create(
            model=model,
            messages=MESSAGES,
            max_tokens=9,
            stream=True,
            extra_headers={"x-request-id": marker},
            **options,
            **EXACT,
        )
    )
    assert {chunk.model for chunk in chunks} == {model}
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] in ("length", "stop") and set(reasons[:-1]) == {None}
    # TGI does not know `ignore_eos`, and counts the token that ends an answer.
    tokens = len(text.split()) + (reasons[-1] == "stop")
    assert tokens == 9 if model != "text" else 1 <= tokens <= 9
    with_usage = [chunk.usage for chunk in chunks if chunk.usage]
    assert [u.completion_tokens for u in with_usage] == ([tokens] if usage else [])
    assert all(chunk.choices for chunk in chunks) is not usage
    [line] = gateway.attempts(marker, 1)
    assert (line["usage"], line["output_tokens"], line["outcome"]) == ("exact", tokens, "success")


@pytest.mark.parametrize("stream", [False, True])
def test_two_choices_with_logprobs(api, stream):
    asked = {"n": 2, "logprobs": True, "top_logprobs": 2, "max_tokens": 5, "temperature": 0.5}
    answer = api.chat.completions.create(model="fast", messages=MESSAGES, stream=stream, **asked, **EXACT)
    tokens = {0: [], 1: []}
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    for choice in choices:
        tokens[choice.index].extend(choice.logprobs.content if choice.logprobs else [])
    assert {index: len(found) for index, found in tokens.items()} == {0: 5, 1: 5}
    assert all(len(token.top_logprobs) == 2 for token in tokens[1])


@pytest.mark.parametrize("stream", [False, True])
def test_tools_round_trip(api, stream):
    ask = {"model": "fast", "tools": [TOOL], "max_tokens": 200}
    first = {"messages": MESSAGES, "tool_choice": "required"}
    if stream:
        with api.chat.completions.stream(**first, **ask) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = api.chat.completions.create(**first, **ask).choices[0].message
    [call] = message.tool_calls
    assert call.function.name == "lookup" and "word" in json.loads(call.function.arguments)

    result = {"role": "tool", "tool_call_id": call.id, "content": "a word"}
    messages = [*MESSAGES, message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}), result]
    final = api.chat.completions.create(messages=messages, tool_choice="none", **ask, **EXACT)
    assert final.usage.completion_tokens == 200 and not final.choices[0].message.tool_calls


def test_stream_helper_gathers_the_answer(api):
    with api.chat.completions.stream(model="fast", messages=MESSAGES, max_tokens=2000) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


def test_completions(api):
    answer = api.completions.create(model="fast", prompt=["kalo", "mine"], max_tokens=4, logprobs=1, **EXACT)
    assert [len(choice.logprobs.tokens) for choice in answer.choices] == [4, 4]
    echo = api.completions.create(model="fast", prompt="kalo mine", max_tokens=1, echo=True, **EXACT)
    assert echo.choices[0].text.startswith("kalo mine")
    chunks = list(api.completions.create(model="fast", prompt="kalo", max_tokens=4, stream=True, **EXACT))
    assert chunks[-1].choices[0].finish_reason == "length"


def test_embeddings(api):
    answer = api.embeddings.create(model="fast", input=["kalo", "mine"])
    assert [row.index for row in answer.data] == [0, 1] and len(answer.data[0].embedding) > 1


def test_models(gateway, api):
    busy = sorted(f"busy-{name}" for name in BUSY)
    names = ["brittle", *busy, "fast", "gpt-4o", "nowhere", "text"]
    assert [model.id for model in api.models.list()] == names
    assert api.models.retrieve("gpt-4o").root == "fast"
    with pytest.raises(openai.NotFoundError) as missing:
        api.models.retrieve("no-such-model")
    assert missing.value.code == "model_not_found"
    assert [model.id for model in client(gateway, "limited").models.list()] == ["fast", "gpt-4o"]


def test_responses(api):
    answer = api.responses.create(model="fast", input="kalo mine", max_output_tokens=500)
    assert answer.status == "completed" and answer.output_text
    limited = api.responses.create(model="fast", input="kalo", max_output_tokens=5, **EXACT)
    assert limited.status == "incomplete" and limited.usage.output_tokens == 5


def test_responses_stream(api):
    events = list(api.responses.create(model="fast", input="kalo", max_output_tokens=500, stream=True))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text and events[-1].response.output_text == text
    with api.responses.stream(model="fast", input="kalo", max_output_tokens=500) as stream:
        assert stream.until_done().get_final_response().output_text == text


def test_raw_headers(api, marker):
    raw = api.chat.completions.with_raw_response.create(
        model="fast", messages=MESSAGES, max_tokens=3, extra_headers={"x-request-id": marker}
    )
    assert raw.headers["x-request-id"] == raw.request_id == marker
    assert raw.parse()._request_id == marker
    timing = dict(part.split(";dur=") for part in raw.headers["server-timing"].split(", "))
    assert timing.keys() == {"queue", "connect", "engine"} and all(float(value) >= 0 for value in timing.values())
    minted = api.chat.completions.with_raw_response.create(model="fast", messages=MESSAGES, max_tokens=3)
    assert len(minted.request_id) >= 16 and minted.request_id != marker


def test_ten_streams_in_a_row_all_end_well(fleet, gateway, api):
    """This SDK closes the connection right after `[DONE]`: no client that left."""
    cancelled = [engine.state()["cancelled"] for engine in fleet.engines["fast"]]
    markers = [f"row-{uuid.uuid4().hex}" for _ in range(10)]
    for marker in markers:
        stream = api.chat.completions.create(
            model="fast", messages=MESSAGES, max_tokens=20, stream=True, extra_headers={"x-request-id": marker}, **EXACT
        )
        assert sum(1 for chunk in stream if chunk.choices[0].delta.content) >= 1
    lines = [gateway.attempts(marker, 1)[0] for marker in markers]
    assert [line["outcome"] for line in lines] == ["success"] * 10
    assert [(line["status"], line["usage"], line["output_tokens"]) for line in lines] == [(200, "exact", 20)] * 10
    assert [engine.state()["cancelled"] for engine in fleet.engines["fast"]] == cancelled


def test_a_client_that_stops_reading_is_noted_as_gone(gateway, api, marker):
    """The opposite of the test above."""
    stream = api.chat.completions.create(
        model="busy-openai",
        messages=MESSAGES,
        max_tokens=1000,
        stream=True,
        extra_headers={"x-request-id": marker},
        **EXACT,
    )
    next(stream)
    stream.close()
    [line] = gateway.attempts(marker, 1)
    assert line["outcome"] == "client_gone"
    until(lambda: gateway.metric("penstock_replica_running", pool="busy-openai") == 0, "the sequence is free")


def test_async_client(gateway):
    async def one(api, number):
        stream = await api.chat.completions.create(
            model="fast", messages=MESSAGES, max_tokens=10 + number, stream=True, **EXACT
        )
        text = [chunk.choices[0].delta.content or "" async for chunk in stream]
        plain = await api.chat.completions.create(model="fast", messages=MESSAGES, max_tokens=number + 1, **EXACT)
        return len("".join(text).split()), plain.usage.completion_tokens

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.keys["team"]) as api:
            found = await asyncio.gather(*(one(api, number) for number in range(30)))
            assert found == [(10 + number, number + 1) for number in range(30)]
            assert len([model.id async for model in api.models.list()]) == 5 + len(BUSY)

    asyncio.run(all_of_them())


# --- what is refused, once ------------------------------------------------

LONG = [{"role": "user", "content": "mine " * 8000}]
OVER = [{"role": "user", "content": "x" * 300_000}]
# More than the sockets on the way hold: the answer comes while it is sent.
HUGE = [{"role": "user", "content": "x" * 8_000_000}]
CHAT = {"model": "fast", "messages": MESSAGES, "max_tokens": 5}
UNKNOWN = {**CHAT, "model": "no-such-model"}
CLASS = {"extra_headers": {"x-penstock-class": "batch"}}

REFUSED = {
    "prompt too long": ("team", {**CHAT, "messages": LONG}, 400, "context_length_exceeded", "messages"),
    "prompt too long, stream": (
        "team",
        {**CHAT, "messages": LONG, "stream": True},
        400,
        "context_length_exceeded",
        "messages",
    ),
    "max_tokens too large": ("team", {**CHAT, "max_tokens": 50_000}, 400, "context_length_exceeded", "max_tokens"),
    "unknown model": ("team", UNKNOWN, 404, "model_not_found", "model"),
    "model of others": ("limited", {**CHAT, "model": "text"}, 404, "model_not_found", "model"),
    "class not allowed": ("limited", {**CHAT, **CLASS}, 403, "class_not_allowed", None),
    "body too large": ("team", {**CHAT, "messages": OVER}, 413, "body_too_large", None),
    "body far too large": ("team", {**CHAT, "messages": HUGE}, 413, "body_too_large", None),
    "bad field": ("team", {**CHAT, "max_tokens": "many"}, 400, "invalid_value", "max_tokens"),
    "bad field, by the engine": ("team", {**CHAT, "temperature": -1}, 400, "invalid_value", "temperature"),
    "no messages": ("team", {**CHAT, "messages": []}, 400, "invalid_value", None),
}
CLASSES = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    413: openai.APIStatusError,
    502: openai.InternalServerError,
    503: openai.InternalServerError,
    504: openai.InternalServerError,
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_final(gateway, recorder, marker, case):
    tenant, body, status, code, param = REFUSED[case]
    headers = {"x-request-id": marker, **body.get("extra_headers", {})}
    with recorded(gateway, recorder, tenant) as api, pytest.raises(CLASSES[status]) as refused:
        api.chat.completions.create(**{**body, "extra_headers": headers})
    error = refused.value
    assert (error.status_code, error.code, error.param) == (status, code, param)
    assert error.request_id == marker and error.message
    recorder.assert_final(status)
    [line] = gateway.attempts(marker, 1)
    assert (line["outcome"], line["reason"], line["status"]) == ("client_error", code, status)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"authorization": "Bearer pst_nosuchkey"}, "invalid_api_key"),
        ({"authorization": "Bearer EMPTY"}, "invalid_api_key"),
        ({"authorization": openai.Omit()}, "missing_api_key"),
    ],
    ids=["unknown", "placeholder", "missing"],
)
def test_keys(gateway, recorder, marker, headers, code):
    with recorded(gateway, recorder) as api:
        for call in (lambda **more: api.chat.completions.create(**CHAT, **more), api.models.list):
            recorder.attempts.clear()
            with pytest.raises(openai.AuthenticationError) as refused:
                call(extra_headers={"x-request-id": marker, **headers})
            assert refused.value.code == code and refused.value.request_id == marker
            recorder.assert_final(401)


def test_a_key_with_one_wrong_letter(gateway, recorder):
    key = gateway.keys["team"]
    wrong = key[:-1] + ("a" if key[-1] != "a" else "b")
    with recorded(gateway, recorder) as api, pytest.raises(openai.AuthenticationError) as refused:
        api.with_options(api_key=wrong).chat.completions.create(**CHAT)
    assert refused.value.code == "invalid_api_key" and wrong not in refused.value.message
    recorder.assert_final(401)


def test_broken_json(gateway, recorder):
    with recorded(gateway, recorder) as api, pytest.raises(openai.BadRequestError) as refused:
        api.post("/chat/completions", cast_to=object, content=b'{"model":"fast","messages":[')
    assert refused.value.code == "invalid_body"
    recorder.assert_final(400)


def test_wrong_paths_name_the_right_one(gateway, recorder):
    with recorded(gateway, recorder, base_url=gateway.url) as api, pytest.raises(openai.NotFoundError) as refused:
        api.chat.completions.create(**CHAT)
    assert refused.value.code == "unknown_url" and "/v1" in refused.value.message
    recorder.assert_final(404)
    recorder.attempts.clear()
    with recorded(gateway, recorder) as api, pytest.raises(openai.APIStatusError) as refused:
        api.get("/chat/completions", cast_to=object)
    assert (refused.value.status_code, refused.value.code) == (405, "method_not_allowed")
    recorder.assert_final(405)


# --- what is refused for now ----------------------------------------------


def assert_rejected(gateway, marker, code, status):
    for line in gateway.attempts(marker, 3):
        assert (line["outcome"], line["reason"], line["status"]) == ("rejected", code, status)
        assert line["attempts"] == 0


def test_a_full_queue_is_tried_again_when_told(gateway, busy, recorder, marker):
    ask = {"model": "busy-openai", "messages": MESSAGES, "max_tokens": 1}
    with concurrent.futures.ThreadPoolExecutor(1) as pool, busy("busy-openai"):
        waiting = pool.submit(client(gateway, "tight", timeout=60).chat.completions.create, **ask)
        until(lambda: gateway.metric("penstock_queue_depth", tenant="tight") == 1, "one request waits")
        with recorded(gateway, recorder, "tight") as api, pytest.raises(openai.InternalServerError) as refused:
            api.chat.completions.create(**ask, extra_headers={"x-request-id": marker})
        assert (refused.value.status_code, refused.value.code) == (503, "slow_down")
        assert refused.value.type == "service_unavailable_error"
        recorder.assert_retried(503)
        for line in gateway.attempts(marker, 3):
            assert (line["outcome"], line["status"], line["attempts"]) == ("rejected", 503, 0)
            assert line["reason"] == "tenant_queue_full"
        assert not waiting.done()
    assert waiting.result().usage.completion_tokens == 1


def test_the_longest_wait_of_a_class_ends_in_the_queue(gateway, busy, recorder, marker):
    ask = {"model": "busy-openai", "messages": MESSAGES, "max_tokens": 1}
    with busy("busy-openai"), recorded(gateway, recorder, "hasty") as api:
        with pytest.raises(openai.InternalServerError) as refused:
            api.chat.completions.create(**ask, extra_headers={"x-request-id": marker})
    assert (refused.value.status_code, refused.value.code) == (503, "slow_down")
    recorder.assert_retried(503)
    for attempt in recorder.attempts:
        assert attempt.answered - attempt.sent >= 0.3
    assert len(gateway.attempts(marker, 3)) == 3


def test_the_answer_comes_before_the_sdks_own_timeout(gateway, busy, recorder):
    ask = {"model": "busy-openai", "messages": MESSAGES, "max_tokens": 1}
    with busy("busy-openai"), recorded(gateway, recorder, timeout=2, max_retries=0) as api:
        with pytest.raises(openai.InternalServerError) as refused:
            api.chat.completions.create(**ask)
    assert (refused.value.status_code, refused.value.code) == (504, "deadline_unmeetable")
    [attempt] = recorder.attempts
    assert attempt.answered - attempt.sent > 1.5


def test_no_wait_is_longer_than_sdks_keep_to(gateway, recorder):
    """No replica of this model ever answered, so nobody knows how long it takes.

    The waits differ, so that clients which are refused together do not come
    back together.
    """
    with recorded(gateway, recorder, "hasty", max_retries=0) as api:
        for _ in range(4):
            with pytest.raises(openai.InternalServerError) as refused:
                api.chat.completions.create(model="nowhere", messages=MESSAGES)
            assert (refused.value.status_code, refused.value.code) == (503, "slow_down")
    told = [int(attempt.headers["retry-after-ms"]) for attempt in recorder.attempts]
    assert len(set(told)) == 4 and all(45_000 <= wait <= 60_000 for wait in told), told
    assert all(int(attempt.headers["retry-after"]) <= 60 for attempt in recorder.attempts)


def test_the_async_client_tries_again_when_told(gateway, busy, recorder, marker):
    async def ask():
        http = recorder.async_client(openai)
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key=gateway.keys["hasty"], http_client=http
        ) as api:
            await api.chat.completions.create(
                model="busy-async", messages=MESSAGES, stream=True, extra_headers={"x-request-id": marker}
            )

    with busy("busy-async"), pytest.raises(openai.InternalServerError) as refused:
        asyncio.run(ask())
    assert refused.value.code == "slow_down"
    recorder.assert_retried(503)
    gateway.attempts(marker, 3)


def test_draining(short_lived, recorder, marker):
    """What runs goes on to its end; what is new is sent away."""
    ask = {"model": "slow", "messages": MESSAGES, **EXACT}
    with client(short_lived) as running, recorded(short_lived, recorder) as api:
        # 17 s, and much less when the engine is quick.
        stream = running.chat.completions.create(max_tokens=280, stream=True, **ask)
        next(stream)
        short_lived.terminate()
        until(lambda: '"server draining"' in short_lived.log_path.read_text(), "the drain has begun")
        with pytest.raises(openai.InternalServerError) as refused:
            api.chat.completions.create(max_tokens=1, extra_headers={"x-request-id": marker}, **ask)
        short_lived.engine.fault("slow", factor=0.02)
        rest = list(stream)
    assert (refused.value.status_code, refused.value.code) == (503, "draining")
    recorder.assert_retried(503)
    assert len(short_lived.attempts(marker, 3)) == 3
    assert rest[-1].choices[0].finish_reason == "length"


# --- engines that fail ----------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_engines_that_all_fail(gateway, brittle, recorder, marker, stream):
    for engine in brittle:
        engine.fault("status", status=500, times=1)
    with recorded(gateway, recorder) as api, pytest.raises(openai.InternalServerError) as failed:
        api.chat.completions.create(
            model="brittle", messages=MESSAGES, stream=stream, extra_headers={"x-request-id": marker}
        )
    assert (failed.value.status_code, failed.value.code) == (502, "upstream_failed")
    recorder.assert_final(502)
    [line] = gateway.attempts(marker, 1)
    assert line["attempts"] == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "cut"},
        {"kind": "reset", "at": "head"},
        {"kind": "reset", "at": "request"},
        {"kind": "error_event"},
        {"kind": "engine_dead"},
        {"kind": "abort"},
        {"kind": "status", "status": 503},
        {"kind": "status", "status": 500},
    ],
    ids=lambda fault: "-".join(str(value) for value in fault.values()),
)
def test_a_fault_before_the_first_token_is_not_seen(gateway, brittle, until_it_fails, fault, stream):
    def ask(api, marker):
        answer = api.chat.completions.create(
            model="brittle",
            messages=MESSAGES,
            max_tokens=6,
            stream=stream,
            extra_headers={"x-request-id": marker},
            **EXACT,
        )
        if stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        else:
            text = answer.choices[0].message.content
        assert len(text.split()) == 6

    brittle[0].fault(**fault, times=1, path="/v1/chat/completions")
    with client(gateway, max_retries=0) as api:
        until_it_fails(lambda marker: ask(api, marker))


BREAKS = ["cut", "error_event", "engine_dead", "abort", "no_finish", "malformed_chunk", "malformed_json"]


@pytest.mark.parametrize(
    ("call", "kind"), [*itertools.product(["chat", "completions", "responses"], BREAKS), ("chat", "silent")]
)
def test_a_stream_that_breaks_raises(gateway, brittle, recorder, marker, call, kind):
    for engine in brittle:
        engine.fault(kind, after_tokens=20)
    headers = {"extra_headers": {"x-request-id": marker}}
    seen = []
    with recorded(gateway, recorder) as api:
        common = {"model": "brittle", "stream": True, **headers, **EXACT}
        if call == "chat":
            stream = api.chat.completions.create(messages=MESSAGES, max_tokens=50, **common)
        elif call == "completions":
            stream = api.completions.create(prompt="kalo", max_tokens=50, **common)
        else:
            stream = api.responses.create(input="kalo", max_output_tokens=50, **common)
        with pytest.raises(openai.APIError) as broken:
            for chunk in stream:
                seen.append(chunk)
    assert type(broken.value) is openai.APIError, repr(broken.value)
    assert broken.value.code == "upstream_broken" and "not complete" in broken.value.message
    assert seen and len(recorder.attempts) == 1
    [line] = gateway.attempts(marker, 1)
    assert line["outcome"] == "failed"


def test_the_stream_helper_raises_too(gateway, brittle, api):
    for engine in brittle:
        engine.fault("cut", after_tokens=5)
    with pytest.raises(openai.APIError) as broken:
        with api.chat.completions.stream(model="brittle", messages=MESSAGES, max_tokens=50, **EXACT) as stream:
            stream.get_final_completion()
    assert broken.value.code == "upstream_broken"


def test_a_stream_that_breaks_goes_on_at_the_other_engine(gateway, brittle, api):
    for engine in brittle:
        engine.fault("cut", after_tokens=5)
    before = gateway.metric("penstock_continuations_total")
    asked = {"messages": MESSAGES, "max_tokens": 8, "stream_options": {"include_usage": True}, **EXACT}
    *_, end, usage = api.chat.completions.create(model="brittle", stream=True, **asked)
    assert (end.choices[0].finish_reason, usage.usage.completion_tokens) == ("length", 8)
    assert end.id == usage.id
    assert gateway.metric("penstock_continuations_total") == before + 1


def test_the_async_stream_raises_too(gateway, brittle):
    for engine in brittle:
        engine.fault("error_event", after_tokens=5)

    async def read():
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.keys["team"]) as api:
            stream = await api.chat.completions.create(
                model="brittle", messages=MESSAGES, max_tokens=50, stream=True, **EXACT
            )
            async for _ in stream:
                pass

    with pytest.raises(openai.APIError) as broken:
        asyncio.run(read())
    assert broken.value.code == "upstream_broken"
