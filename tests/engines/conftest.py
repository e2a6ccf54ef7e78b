"""Two real vLLM servers with four sequences each, and the gateway in front."""

import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

HERE = pathlib.Path(__file__).parent
SERVE = HERE / "tiny-vllm" / "serve.sh"
CACHE = pathlib.Path(os.environ["PENSTOCK_CACHE"])
BINARY = os.environ["PENSTOCK_BIN"]
SEQUENCES = 4


#: Numbers of ports that are still to be given out: the system gives ports of their range to nobody who does not ask for
#: one by number.
NUMBERS = itertools.count(os.getpid() * 97)


def free_port():
    """A port that nobody listens on, and that stays so."""
    while True:
        port = 10_000 + next(NUMBERS) % 20_000
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port


def until(what, condition):
    """Waits until a condition holds; it has two minutes, so that a busy machine passes, too."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"not in two minutes: {what}"
        time.sleep(0.05)


class Engine:
    """One real vLLM."""

    def __init__(self, port, home, core=0):
        self.port = port
        self.core = core % os.cpu_count()
        self.home = home
        self.pid = None
        self.url = f"http://127.0.0.1:{port}"
        self.model = home / "model-4-256-2048"

    def serve(self, *arguments, **more):
        env = dict(
            os.environ, TINY_HOME=str(self.home), MAX_SEQS=str(SEQUENCES), LAYERS="4", HIDDEN="256", **more
        )
        # By default all servers compute on the same core.
        env |= {"CORE": str(self.core)}
        common = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        subprocess.run(["bash", str(SERVE), str(self.port), *common, *arguments], env=env, check=True, timeout=1500)

    def prepare(self):
        """What both engines share is made once."""
        self.serve(PREPARE="1")

    def start(self, *arguments, **more):
        self.serve(*arguments, **more)
        self.pid = int((self.home / f"{self.port}.pid").read_text())
        return self

    def warm_up(self):
        """Its first answers, which take long: kernels are made for each number of sequences."""
        body = {"model": "tiny", "prompt": "kalo mine", "max_tokens": 8, "ignore_eos": True}
        ask = lambda _: httpx.post(f"{self.url}/v1/completions", json=body, timeout=300).raise_for_status()
        with concurrent.futures.ThreadPoolExecutor(SEQUENCES) as pool:
            for together in range(1, SEQUENCES + 1):
                list(pool.map(ask, range(together)))

    def revive(self):
        """Starts it unless its server is there."""
        if not pathlib.Path(f"/proc/{self.pid}").exists() or not self.is_up():
            self.kill()
            self.start().warm_up()

    def processes(self):
        """The server and all its children."""
        found, queue = [], [self.pid] if self.pid else []
        while queue:
            pid = queue.pop()
            found.append(pid)
            try:
                tasks = pathlib.Path(f"/proc/{pid}/task")
                for task in tasks.iterdir():
                    queue.extend(int(child) for child in (task / "children").read_text().split())
            except FileNotFoundError:
                pass
        return found

    def kill(self):
        """kill -9 for the server and everything it started."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def end(self, how):
        """Ends it by a signal: kill -9 for everything, others for the server."""
        self.kill() if how == signal.SIGKILL else os.kill(self.pid, how)

    def gone(self):
        """Waits until its processes are no more."""
        deadline = time.monotonic() + 30
        while self.is_up() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.kill()

    def is_up(self):
        try:
            return httpx.get(f"{self.url}/health", timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    def gauge(self, name):
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        return sum(float(v) for v in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", text, re.M))


class Gateway:
    """The release binary under test, with one pool over the given engines."""

    def __init__(self, folder, engines, more=None, **pool):
        folder.mkdir(exist_ok=True)
        self.port, self.admin_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        made = subprocess.run([BINARY, "keys", "new"], capture_output=True, text=True, check=True).stdout
        self.key = re.search(r"pst_\w+", made).group(0)
        key_id = re.search(r"id: (\S+)", made).group(1).strip("\"',")
        digest = re.search(r"digest: (\S+)", made).group(1).strip("\"'}")
        replicas = [{"url": e.url, "max_seqs": SEQUENCES} for e in engines]
        config = {
            "version": 1,
            "server": {"listen": f"127.0.0.1:{self.port}", "admin": f"127.0.0.1:{self.admin_port}"},
            "telemetry": {"log": {"format": "json", "level": "info"}},
            # A vLLM that ends may leave its streams open and silent. Streams that it broke wait as long for a
            # place elsewhere: longer than the longest stream takes on a slow machine.
            "upstream": {"stream_idle_timeout": "20s"},
            "tenants": {"team": {"keys": [{"id": key_id, "digest": digest}]}},
            "pools": {"tiny": {"engine": "vllm", "models": ["tiny"], "replicas": replicas, **pool}},
        }
        config |= more or {}
        path = folder / "penstock.yaml"
        path.write_text(json.dumps(config))
        self.log_path = folder / "gateway.log"
        self.process = subprocess.Popen(
            [BINARY, "serve", "--config", str(path)], stderr=self.log_path.open("w")
        )
        for _ in range(1200):
            if self.process.poll() is not None:
                sys.exit(self.log_path.read_text())
            try:
                if httpx.get(f"{self.admin}/readyz", timeout=1).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise RuntimeError("the gateway did not become ready")

    def requests(self):
        """The log lines of finished requests."""
        lines = (json.loads(line) for line in self.log_path.read_text().rpartition("\n")[0].splitlines() if line.startswith("{"))
        return [line for line in lines if line.get("message") == "request finished"]

    def metric(self, name):
        text = httpx.get(f"{self.admin}/metrics", timeout=10).text
        return sum(float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@pytest.fixture(scope="session")
def engines():
    home = CACHE / "tiny-vllm"
    # The first start makes the virtual environment and the model.
    first = Engine(free_port(), home)
    second = Engine(free_port(), home, core=1)
    first.prepare()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        started = list(pool.map(Engine.start, [first, second]))
    for engine in started:
        engine.warm_up()
    yield started
    for engine in started:
        engine.kill()


@pytest.fixture
def sleepy(tmp_path):
    """A gateway that puts its one engine to sleep, and that engine.

    vLLM for the CPU has no `--enable-sleep-mode`; in development mode it still
    takes the orders, aborts what runs, and answers nothing until it is woken.
    """
    engine = Engine(free_port(), CACHE / "tiny-vllm")
    engine.prepare()
    engine.start(DEV="1")
    rules = {"after_idle": "2s", "keep_awake": 0}
    running = Gateway(tmp_path, [engine], sleep=rules, scrape_interval="500ms")
    yield running, engine
    assert running.stop() == 0
    engine.kill()


@pytest.fixture
def gateway(engines, tmp_path):
    for engine in engines:
        engine.revive()
    running = Gateway(tmp_path, engines)
    yield running
    if running.process.poll() is None:
        assert running.stop() == 0
