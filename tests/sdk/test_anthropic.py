"""The gateway as the Anthropic SDK for Python sees it."""

import asyncio
import concurrent.futures

import anthropic
import pytest

from fleet import until

MESSAGES = [{"role": "user", "content": "kalo mine pura sito vezu."}]
ASK = {"model": "fast", "messages": MESSAGES, "max_tokens": 8}
EXACT = {"extra_body": {"ignore_eos": True}}


def client(gateway, tenant="team", **options):
    return anthropic.Anthropic(base_url=gateway.url, api_key=gateway.keys[tenant], **options)


def recorded(gateway, recorder, tenant="team", **options):
    return client(gateway, tenant, http_client=recorder.sync_client(anthropic), **options)


@pytest.fixture
def api(gateway):
    with client(gateway) as made:
        yield made


# --- what works -----------------------------------------------------------


def test_message(gateway, api, marker):
    answer = api.messages.create(**ASK, **EXACT, extra_headers={"x-request-id": marker})
    assert answer.model == "fast" and answer.content[0].text
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 8)
    assert answer._request_id == marker
    [line] = gateway.attempts(marker, 1)
    assert (line["usage"], line["output_tokens"], line["outcome"]) == ("exact", 8, "success")


def test_key_as_x_api_key(gateway):
    headers = {"x-api-key": gateway.keys["team"], "authorization": anthropic.Omit()}
    assert client(gateway).messages.create(**ASK, extra_headers=headers).content


def test_stream(gateway, api, marker):
    events = list(api.messages.create(stream=True, **ASK, **EXACT, extra_headers={"x-request-id": marker}))
    assert events[0].type == "message_start" and events[-1].type == "message_stop"
    assert events[0].message.model == "fast"
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert len(text.split()) == 8
    [delta] = [event for event in events if event.type == "message_delta"]
    assert (delta.delta.stop_reason, delta.usage.output_tokens) == ("max_tokens", 8)
    [line] = gateway.attempts(marker, 1)
    assert (line["usage"], line["output_tokens"], line["outcome"]) == ("exact", 8, "success")


def test_stream_helper(api):
    with api.messages.stream(**ASK, **EXACT) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == text and final.usage.output_tokens == 8


def test_alias_is_kept(api):
    assert api.messages.create(**{**ASK, "model": "gpt-4o"}).model == "gpt-4o"
    first = next(api.messages.create(stream=True, **{**ASK, "model": "gpt-4o"}))
    assert first.message.model == "gpt-4o"


def test_count_tokens(api):
    short = api.messages.count_tokens(model="fast", messages=MESSAGES)
    long = api.messages.count_tokens(model="fast", messages=MESSAGES, system="kalo " * 40)
    assert 0 < short.input_tokens < long.input_tokens


def test_models(api):
    names = [model.id for model in api.models.list()]
    assert "fast" in names and "gpt-4o" in names
    assert api.models.retrieve("fast").id == "fast"


def test_raw_headers(api, marker):
    raw = api.messages.with_raw_response.create(**ASK, extra_headers={"x-request-id": marker})
    assert raw.headers["request-id"] == raw.headers["x-request-id"] == marker
    assert raw.headers["server-timing"].startswith("queue;dur=")


def test_async_client(gateway):
    async def one(api, number):
        ask = {**ASK, "max_tokens": number + 1}
        async with api.messages.stream(**ask, **EXACT) as stream:
            streamed = await stream.get_final_message()
        plain = await api.messages.create(**ask, **EXACT)
        return streamed.usage.output_tokens, plain.usage.output_tokens

    async def all_of_them():
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=gateway.keys["team"]) as api:
            return await asyncio.gather(*(one(api, number) for number in range(20)))

    assert asyncio.run(all_of_them()) == [(number + 1, number + 1) for number in range(20)]


# --- what is refused, once ------------------------------------------------

REFUSED = {
    "prompt too long": (
        "team",
        {**ASK, "messages": [{"role": "user", "content": "mine " * 8000}]},
        anthropic.BadRequestError,
        (400, "invalid_request_error", "context_length_exceeded"),
    ),
    "unknown model": (
        "team",
        {**ASK, "model": "no-such-model"},
        anthropic.NotFoundError,
        (404, "not_found_error", "model_not_found"),
    ),
    "class not allowed": (
        "limited",
        {**ASK, "extra_headers": {"x-penstock-class": "batch"}},
        anthropic.PermissionDeniedError,
        (403, "permission_error", "class_not_allowed"),
    ),
    "body too large": (
        "team",
        {**ASK, "messages": [{"role": "user", "content": "x" * 8_000_000}]},
        anthropic.ContentTooLargeError,
        (413, "request_too_large", "body_too_large"),
    ),
    "bad field": (
        "team",
        {**ASK, "extra_body": {"max_tokens": "many"}},
        anthropic.BadRequestError,
        (400, "invalid_request_error", "invalid_value"),
    ),
    "unknown key": (
        "team",
        {**ASK, "extra_headers": {"authorization": "Bearer pst_nosuchkey"}},
        anthropic.AuthenticationError,
        (401, "authentication_error", "invalid_api_key"),
    ),
    "missing key": (
        "team",
        {**ASK, "extra_headers": {"authorization": anthropic.Omit(), "x-api-key": anthropic.Omit()}},
        anthropic.AuthenticationError,
        (401, "authentication_error", "missing_api_key"),
    ),
}


def said(error):
    return error.status_code, error.type, error.error_code


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_final(gateway, recorder, marker, case, stream):
    tenant, body, kind, expected = REFUSED[case]
    headers = {"x-request-id": marker, **body.get("extra_headers", {})}
    with recorded(gateway, recorder, tenant) as api, pytest.raises(kind) as refused:
        api.messages.create(**{**body, "extra_headers": headers}, stream=stream)
    assert said(refused.value) == expected
    assert refused.value.request_id == marker and refused.value.api_message
    recorder.assert_final(expected[0])
    [line] = gateway.attempts(marker, 1)
    assert (line["outcome"], line["reason"]) == ("client_error", expected[2])


def test_broken_json(gateway, recorder):
    with recorded(gateway, recorder) as api, pytest.raises(anthropic.BadRequestError) as refused:
        api.post("/v1/messages", cast_to=object, content=b'{"model":"fast","messages":[')
    assert said(refused.value) == (400, "invalid_request_error", "invalid_body")
    recorder.assert_final(400)


# --- what is refused for now ----------------------------------------------


def test_a_full_queue_is_tried_again_when_told(gateway, busy, recorder, marker):
    ask = {**ASK, "model": "busy-anthropic", "max_tokens": 1}
    with concurrent.futures.ThreadPoolExecutor(1) as pool, busy("busy-anthropic"):
        waiting = pool.submit(client(gateway, "tight").messages.create, **ask)
        until(lambda: gateway.metric("penstock_queue_depth", tenant="tight") == 1, "one request waits")
        with recorded(gateway, recorder, "tight") as api, pytest.raises(anthropic.OverloadedError) as refused:
            api.messages.create(**ask, extra_headers={"x-request-id": marker})
        assert said(refused.value) == (529, "overloaded_error", "slow_down")
        recorder.assert_retried(529)
        assert len(gateway.attempts(marker, 3)) == 3
        assert not waiting.done()
    assert waiting.result().usage.output_tokens == 1


def test_the_longest_wait_of_a_class_ends_in_the_queue(gateway, busy, recorder, marker):
    ask = {**ASK, "model": "busy-anthropic", "max_tokens": 1}
    with busy("busy-anthropic"), recorded(gateway, recorder, "hasty") as api:
        with pytest.raises(anthropic.OverloadedError) as refused:
            api.messages.create(**ask, extra_headers={"x-request-id": marker})
    assert said(refused.value) == (529, "overloaded_error", "slow_down")
    recorder.assert_retried(529)
    assert len(gateway.attempts(marker, 3)) == 3


def test_the_answer_comes_before_the_sdks_own_timeout(gateway, busy, recorder):
    ask = {**ASK, "model": "busy-anthropic", "max_tokens": 1}
    with busy("busy-anthropic"), recorded(gateway, recorder, timeout=2, max_retries=0) as api:
        with pytest.raises(anthropic.GatewayTimeoutError) as refused:
            api.messages.create(**ask)
    assert refused.value.error_code == "deadline_unmeetable"
    [attempt] = recorder.attempts
    assert attempt.answered - attempt.sent > 1.5


def test_draining(short_lived, recorder):
    ask = {**ASK, "model": "slow"}
    with client(short_lived) as running, recorded(short_lived, recorder) as api:
        # 17 s, and much less when the engine is quick.
        with running.messages.stream(**{**ask, "max_tokens": 280}, **EXACT) as stream:
            next(stream.text_stream)
            short_lived.terminate()
            until(lambda: '"server draining"' in short_lived.log_path.read_text(), "the drain has begun")
            with pytest.raises(anthropic.OverloadedError) as refused:
                api.messages.create(**ask)
            short_lived.engine.fault("slow", factor=0.02)
            final = stream.get_final_message()
    assert said(refused.value) == (529, "overloaded_error", "draining")
    recorder.assert_retried(529)
    assert final.usage.output_tokens == 280


# --- engines that fail ----------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_engines_that_all_fail(gateway, brittle, recorder, marker, stream):
    for engine in brittle:
        engine.fault("status", status=500, times=1)
    ask = {**ASK, "model": "brittle", "stream": stream, "extra_headers": {"x-request-id": marker}}
    with recorded(gateway, recorder) as api, pytest.raises(anthropic.InternalServerError) as failed:
        api.messages.create(**ask)
    assert said(failed.value) == (502, "api_error", "upstream_failed")
    recorder.assert_final(502)
    [line] = gateway.attempts(marker, 1)
    assert line["attempts"] == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["cut", "error_event", "engine_dead", "abort"])
def test_a_fault_before_the_first_token_is_not_seen(gateway, brittle, until_it_fails, kind, stream):
    def ask(api, marker):
        answer = api.messages.create(
            **{**ASK, "model": "brittle"}, **EXACT, stream=stream, extra_headers={"x-request-id": marker}
        )
        if stream:
            text = "".join(event.delta.text for event in answer if event.type == "content_block_delta")
        else:
            text = answer.content[0].text
        assert len(text.split()) == 8

    brittle[0].fault(kind, times=1)
    with client(gateway, max_retries=0) as api:
        until_it_fails(lambda marker: ask(api, marker))


@pytest.mark.parametrize(
    "kind", ["cut", "error_event", "engine_dead", "abort", "no_finish", "malformed_chunk", "malformed_json", "silent"]
)
def test_a_stream_that_breaks_raises(gateway, brittle, recorder, marker, kind):
    for engine in brittle:
        engine.fault(kind, after_tokens=20)
    seen = []
    with recorded(gateway, recorder) as api, pytest.raises(anthropic.APIStatusError) as broken:
        ask = {**ASK, "model": "brittle", "max_tokens": 50, **EXACT, "extra_headers": {"x-request-id": marker}}
        with api.messages.stream(**ask) as stream:
            seen.extend(stream)
            stream.get_final_message()
    assert (broken.value.type, broken.value.error_code) == ("api_error", "upstream_broken")
    assert "not complete" in broken.value.api_message
    assert len(recorder.attempts) == 1
    [line] = gateway.attempts(marker, 1)
    assert line["outcome"] == "failed"
