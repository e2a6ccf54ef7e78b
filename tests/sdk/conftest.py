"""A fleet of simulated engines with the gateway in front, for real SDKs."""

import contextlib
import dataclasses
import itertools
import pathlib
import time
import uuid

import openai
import pytest

from fleet import Engine, Gateway, free_port, until
from issuer import Issuer

TOKENIZER = pathlib.Path(__file__).parents[1] / "fixtures" / "tokenizers" / "byte-level"

CLASS = {"ttft": "5s", "itl": "100ms"}
CLASSES = {
    "standard": {"rank": 0, "max_wait": "30s", **CLASS},
    "hasty": {"rank": 1, "max_wait": "300ms", **CLASS},
    "batch": {"rank": 2, "max_wait": "1h", **CLASS},
}
LIMITS = {
    "spent": {"per_day": {"requests": 1}},
    "minute": {"per_minute": {"requests": 2, "tokens": 10000}},
    "short": {"per_minute": {"input_tokens": 20}},
    "held": {"concurrent": {"requests": 1}},
}
TENANTS = {
    "team": {},
    "tight": {"queue": {"requests": 1}},
    "limited": {"models": ["fast"], "classes": ["standard"]},
    "hasty": {"default_class": "hasty"},
    "expired": {"key": {"expires": "2001-01-31"}},
    # Some for each SDK, since what is used up stays so.
    **{f"{name}-{sdk}": {"limits": limits} for sdk in ["python", "node"] for name, limits in LIMITS.items()},
}
BUSY = ["openai", "async", "anthropic", "node", "held", "held-node"]
# Model, and the engines that serve it. `brittle` is for faults. The `busy`
# ones run one sequence, slowly; each test that fills a queue has its own, so
# that it knows all that was ever dispatched there.
FLEET = {
    "fast": [{}, {}],
    "brittle": [{}, {}],
    "text": [{"dialect": "tgi"}],
    **{f"busy-{name}": [{"profile": "l4-8b", "max_seqs": 1}] for name in BUSY},
}


@dataclasses.dataclass
class Fleet:
    """Engines by their model, and pools of them."""

    engines: dict
    pools: dict


def pool(model, engines, dialect="vllm"):
    replicas = [{"url": engine.url, "max_seqs": engine.max_seqs} for engine in engines]
    return {"engine": dialect, "models": [model], "scrape_interval": "500ms", "replicas": replicas}


@pytest.fixture(scope="session")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    engines, pools = {}, {}
    for model, options in FLEET.items():
        engines[model] = [Engine(folder, model, **each) for each in options]
        pools[model] = pool(model, engines[model], options[0].get("dialect", "vllm"))
    yield Fleet(engines, pools)
    for engine in itertools.chain(*engines.values()):
        engine.stop()


@pytest.fixture(scope="session")
def issuer():
    running = Issuer()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def gateway(fleet, issuer, tmp_path_factory):
    nowhere = {"engine": "vllm", "models": ["nowhere"], "replicas": [f"http://127.0.0.1:{free_port()}"]}
    running = Gateway(
        tmp_path_factory.mktemp("gateway"),
        TENANTS,
        {**fleet.pools, "nowhere": nowhere},
        models={"fast": {"aliases": ["gpt-4o"], "tokenizer": str(TOKENIZER)}},
        auth={
            "oidc": [
                {"issuer": issuer.url, "audience": ["penstock"], "tenant_claim": "team"},
                {"issuer": "http://127.0.0.1:1", "audience": ["penstock"]},
            ],
            "failures": {"per_minute": 0},
        },
        classes=CLASSES,
        requests={"max_body": "256KiB"},
        retry={"max_attempts": 2},
        # For engines that say nothing; others may be as slow as the machine is.
        upstream={"stream_idle_timeout": "4s"},
    )
    running.keys.update(issuer.tokens)
    yield running
    broken = running.metric("penstock_broken_invariants")
    running.stop()
    assert broken == 0


@pytest.fixture
def short_lived(fleet, tmp_path):
    """A gateway of the test's own, to be shut down by it."""
    engine = Engine(tmp_path, "slow", profile="l4-8b", max_seqs=4)
    running = Gateway(tmp_path / "gateway", {"team": {}}, {"slow": pool("slow", [engine])})
    running.engine = engine
    yield running
    running.stop()
    engine.stop()


@pytest.fixture
def marker():
    """A request id that only this test uses."""
    return f"sdk-{uuid.uuid4().hex}"


@pytest.fixture
def brittle(fleet, gateway):
    """The engines of `brittle`, healthy before and after the test."""
    engines = fleet.engines["brittle"]

    def are_in_service():
        states = ["serving", "slow_start"]
        found = sum(gateway.metric("penstock_replica_state", pool="brittle", state=state) for state in states)
        return found == len(engines)

    until(are_in_service, "both replicas of `brittle` are in service")
    yield engines
    for engine in engines:
        engine.heal()


@pytest.fixture
def until_it_fails(gateway):
    """Sends requests until one of them met a fault that its client did not see."""

    def send(ask):
        for _ in range(20):
            marker = f"sdk-{uuid.uuid4().hex}"
            ask(marker)
            [line] = gateway.attempts(marker, 1)
            assert line["outcome"] == "success"
            if line["attempts"] == 2:
                return
        raise AssertionError("no request met the fault")

    return send


@dataclasses.dataclass
class Attempt:
    """One HTTP request of an SDK, and its answer."""

    sent: float
    answered: float = 0.0
    status: int = 0
    headers: dict = dataclasses.field(default_factory=dict)


class Recorder:
    """What an SDK really sends, by the hooks of its HTTP client."""

    def __init__(self):
        self.attempts = []

    def on_request(self, _request):
        self.attempts.append(Attempt(time.monotonic()))

    def on_response(self, response):
        attempt = self.attempts[-1]
        attempt.answered = time.monotonic()
        attempt.status, attempt.headers = response.status_code, dict(response.headers)

    async def on_request_async(self, request):
        self.on_request(request)

    async def on_response_async(self, response):
        self.on_response(response)

    def sync_client(self, library):
        hooks = {"request": [self.on_request], "response": [self.on_response]}
        return library.DefaultHttpxClient(event_hooks=hooks)

    def async_client(self, library):
        hooks = {"request": [self.on_request_async], "response": [self.on_response_async]}
        return library.DefaultAsyncHttpxClient(event_hooks=hooks)

    def assert_final(self, status):
        """One attempt, and the answer forbade another."""
        assert [attempt.status for attempt in self.attempts] == [status]
        headers = self.attempts[0].headers
        assert headers["x-should-retry"] == "false"
        assert "retry-after" not in headers and "retry-after-ms" not in headers

    def assert_retried(self, status, count=3):
        """`count` attempts, each after the pause that the answer asked for."""
        assert [attempt.status for attempt in self.attempts] == [status] * count
        for attempt in self.attempts:
            assert attempt.headers["x-should-retry"] == "true"
            assert 1 <= int(attempt.headers["retry-after"]) <= 60
            told = int(attempt.headers["retry-after-ms"]) / 1000
            assert int(attempt.headers["retry-after"]) - 1 < told <= int(attempt.headers["retry-after"])
        for earlier, later in itertools.pairwise(self.attempts):
            told = int(earlier.headers["retry-after-ms"]) / 1000
            slept = later.sent - earlier.answered
            # A busy machine wakes it late.
            assert told <= slept + 0.01 and slept <= told + 20, f"told {told}, slept {slept}"


@pytest.fixture
def recorder():
    return Recorder()


@contextlib.contextmanager
def held_busy(gateway, model):
    """The model's only sequence is taken, and the gateway knows its pace."""
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.keys["team"], max_retries=0) as api:
        ask = {"model": model, "messages": [{"role": "user", "content": "hold"}], "extra_body": {"ignore_eos": True}}
        for _ in range(4):
            api.chat.completions.create(max_tokens=1, **ask)
        stream = api.chat.completions.create(max_tokens=3000, stream=True, **ask)
        next(stream)
        try:
            yield
        finally:
            stream.close()


@pytest.fixture
def busy(gateway):
    """`with busy(model):` keeps the model's only sequence taken."""
    return lambda model: held_busy(gateway, model)
