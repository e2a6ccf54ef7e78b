"""Limits, windows and credentials that do not hold, as the OpenAI SDK for Python meets them."""

import concurrent.futures
import re

import openai
import pytest

from fleet import until

MESSAGES = [{"role": "user", "content": "kalo mine pura sito vezu."}]
CHAT = {"model": "fast", "messages": MESSAGES, "max_tokens": 5}


def recorded(gateway, recorder, name, **options):
    return openai.OpenAI(
        base_url=f"{gateway.url}/v1", api_key=gateway.keys[name], http_client=recorder.sync_client(openai), **options
    )


def refused(kind, api, marker, **ask):
    with pytest.raises(kind) as found:
        api.chat.completions.create(**{**CHAT, **ask}, extra_headers={"x-request-id": marker})
    assert found.value.request_id == marker
    return found.value


def test_a_quota_that_is_spent_is_not_asked_again(gateway, recorder, marker):
    with recorded(gateway, recorder, "spent-python") as api:
        api.chat.completions.create(**CHAT)
        recorder.attempts.clear()
        error = refused(openai.RateLimitError, api, marker)
    assert (error.code, error.type, error.status_code) == ("insufficient_quota", "insufficient_quota", 429)
    says = "The limit of your tenant is 1 request a day: 0 requests left, and this request needs 1 request."
    assert says in error.message
    recorder.assert_final(429)
    [line] = gateway.attempts(marker, 1)
    assert (line["reason"], line["attempts"]) == ("quota_spent", 0)


def test_a_prompt_above_the_limit_is_not_asked_again(gateway, recorder, marker):
    with recorded(gateway, recorder, "short-python") as api:
        error = refused(openai.RateLimitError, api, marker, messages=[{"role": "user", "content": "kalo " * 200}])
    assert error.code == "insufficient_quota" and "It alone is more than the limit" in error.message
    recorder.assert_final(429)


def test_a_minutes_limit_says_when_to_come_back(gateway, recorder, marker):
    with recorded(gateway, recorder, "minute-python", max_retries=0) as api:
        for left in ("1", "0"):
            raw = api.chat.completions.with_raw_response.create(**CHAT)
            assert [raw.headers[f"x-ratelimit-{what}-requests"] for what in ("limit", "remaining")] == ["2", left]
            assert re.fullmatch(r"(1m)?[\d.]+s", raw.headers["x-ratelimit-reset-requests"])
            assert raw.headers["x-ratelimit-limit-tokens"] == "10000"
        recorder.attempts.clear()
        # What still ran could give something back sooner.
        until(lambda: gateway.metric("penstock_replica_running", pool="fast") == 0, "both are settled")
        error = refused(openai.RateLimitError, api, marker)
    assert (error.code, error.type) == ("rate_limit_exceeded", "rate_limit_error")
    says = r"is 2 requests a minute: 0 requests left, and this request needs 1 request\. Try again in (\d+\.\d\d) s\."
    told = float(re.search(says, error.message).group(1))
    [attempt] = recorder.attempts
    assert attempt.headers["x-should-retry"] == "true"
    # SDKs keep to no wait above a minute.
    assert abs(float(attempt.headers["retry-after-ms"]) - min(60_000, told * 1000)) <= 10
    assert 45 < told <= 60.25 and int(attempt.headers["retry-after"]) in (int(told), int(told) + 1, 60)
    assert attempt.headers["x-ratelimit-remaining-requests"] == "0"


def test_a_place_that_is_taken_is_asked_for_again_when_told(gateway, recorder, marker):
    """Refused until the place is free."""
    ask = {"model": "busy-held", "messages": MESSAGES, "extra_body": {"ignore_eos": True}}
    holder = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.keys["held-python"], max_retries=0)
    with holder, recorded(gateway, recorder, "held-python") as api, concurrent.futures.ThreadPoolExecutor(1) as pool:
        stream = holder.chat.completions.create(max_tokens=3000, stream=True, **ask)
        next(stream)
        error = refused(openai.RateLimitError, api, marker, model="busy-held")
        assert error.code == "rate_limit_exceeded" and "1 request at a time" in error.message
        recorder.assert_retried(429)
        for line in gateway.attempts(marker, 3):
            assert (line["outcome"], line["reason"], line["attempts"]) == ("rejected", "rate_limited", 0)
        recorder.attempts.clear()
        patient = api.with_options(max_retries=6)
        served = pool.submit(patient.chat.completions.create, max_tokens=1, **ask)
        until(lambda: len(recorder.attempts) >= 2, "it has been refused twice, or is about to be")
        stream.close()
        assert served.result().usage.completion_tokens == 1
    statuses = [attempt.status for attempt in recorder.attempts]
    assert statuses == [429] * (len(statuses) - 1) + [200]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_has_its_numbers(gateway, recorder, marker, stream):
    long = [{"role": "user", "content": "kalo " * 5000}]
    with recorded(gateway, recorder, "team") as api:
        error = refused(openai.BadRequestError, api, marker, messages=long, stream=stream)
    assert (error.code, error.param) == ("context_length_exceeded", "messages")
    found = re.search(r"context length is 4096 tokens. However, your prompt has (\d+) tokens", error.message)
    assert int(found.group(1)) > 5000
    recorder.assert_final(400)
    [line] = gateway.attempts(marker, 1)
    assert (line["reason"], line["attempts"]) == ("context_length_exceeded", 0)


WRONG = {
    "expired": "expired",
    "token_expired": "token_expired",
    "token_audience": "token_audience",
    "token_signature": "token_signature",
    "token_none": "token_algorithm",
    "token_confused": "token_algorithm",
    "token_too_long": "token_too_long",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_credential_that_does_not_hold(gateway, recorder, marker, name):
    before = gateway.metric("penstock_auth_failures_total", reason=WRONG[name])
    with recorded(gateway, recorder, name) as api:
        error = refused(openai.AuthenticationError, api, marker)
    assert (error.code, error.status_code) == ("invalid_api_key", 401)
    assert gateway.keys[name][:20] not in error.message
    assert ("expired" in error.message) is name.endswith("expired")
    recorder.assert_final(401)
    assert gateway.metric("penstock_auth_failures_total", reason=WRONG[name]) == before + 1


def test_a_token_that_holds(gateway, recorder, marker):
    with recorded(gateway, recorder, "right") as api:
        api.chat.completions.create(**CHAT, extra_headers={"x-request-id": marker})
    [line] = gateway.attempts(marker, 1)
    assert (line["tenant"], line["outcome"]) == ("team", "success")


def test_a_provider_that_is_away_is_asked_again(gateway, recorder, marker):
    with recorded(gateway, recorder, "away") as api:
        error = refused(openai.InternalServerError, api, marker)
    assert (error.code, error.status_code) == ("identity_provider_unavailable", 503)
    recorder.assert_retried(503)
