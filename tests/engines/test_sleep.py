"""An engine that sleeps when idle and wakes for a request."""

import httpx
import openai

from conftest import until


def test_an_idle_engine_sleeps_and_wakes_for_a_request(sleepy):
    gateway, engine = sleepy

    def state():
        rows = httpx.get(f"{gateway.admin}/admin/v1/replicas", timeout=10).json()
        return (rows["replicas"] if isinstance(rows, dict) else rows)[0]["state"]

    def sleeps():
        return httpx.get(f"{engine.url}/is_sleeping", timeout=10).json()["is_sleeping"]

    until("it is put to sleep", lambda: state() == "asleep" and sleeps())
    api = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, timeout=120, max_retries=0)
    answer = api.completions.create(
        model="tiny", prompt="kalo mine", max_tokens=5, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 5
    assert gateway.metric("penstock_wake_seconds") > 0
    assert gateway.metric("penstock_ejections_total") == 0
    until("it sleeps again", lambda: state() == "asleep" and sleeps())
    # Somebody else wakes it.
    orders = gateway.metric("penstock_rest_orders_total")
    httpx.post(f"{engine.url}/wake_up", timeout=60).raise_for_status()
    # Or it was, and has been put to sleep since.
    until(
        "it is seen awake",
        lambda: state() in ("serving", "slow_start") or gateway.metric("penstock_rest_orders_total") > orders,
    )
