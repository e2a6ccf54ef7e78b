"""Simulated engines and gateways as processes, and what they say of themselves."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import time

import httpx

BINARY = os.environ["PENSTOCK_BIN"]


def until(check, what, seconds=20):
    """Waits for `check()` to be true and returns its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = check()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"after {seconds} s still not: {what}")


#: Numbers of ports that are still to be given out: the system gives ports of their range to nobody who does not ask for
#: one by number. Processes that run tests side by side begin at different ones.
NUMBERS = itertools.count(os.getpid() * 97)


def free_port():
    """A port that nobody listens on, and that stays so."""
    while True:
        port = 10_000 + next(NUMBERS) % 20_000
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port


class Engine:
    """One `penstock sim-engine`."""

    def __init__(self, folder, model, profile="tiny", dialect="vllm", max_seqs=64):
        self.max_seqs = max_seqs
        self.process = subprocess.Popen(
            [
                *(BINARY, "sim-engine", "--listen", "127.0.0.1:0", "--model", model, "--profile", profile),
                *("--dialect", dialect, "--max-seqs", str(max_seqs), "--max-model-len", "4096"),
            ],
            stdout=subprocess.PIPE,
            stderr=(folder / f"engine-{model}.log").open("a"),
            text=True,
        )
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"sim-engine for {model} did not start: {line!r}"
        self.url = found.group(0)
        self.control = httpx.Client(base_url=self.url, timeout=10)

    def fault(self, kind, **fields):
        answer = self.control.post("/sim/faults", json={"kind": kind, **fields})
        assert answer.status_code == 200, answer.text

    def heal(self):
        assert self.control.delete("/sim/faults").status_code == 200

    def state(self):
        return self.control.get("/sim/state").json()

    def stop(self):
        self.control.close()
        self.process.terminate()
        self.process.wait(timeout=20)


class Gateway:
    """One `penstock serve` under a configuration made of tenants and pools."""

    def __init__(self, folder, tenants, pools, **settings):
        port, admin = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.admin = f"http://127.0.0.1:{admin}"
        self.keys = {}
        config = {
            "version": 1,
            "server": {"listen": f"127.0.0.1:{port}", "admin": f"127.0.0.1:{admin}", "drain_grace": "20s"},
            "tenants": {name: self.tenant(name, **tenant) for name, tenant in tenants.items()},
            "pools": pools,
            **settings,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "penstock.yaml"
        path.write_text(json.dumps(config))
        self.log_path = folder / "gateway.log"
        self.process = subprocess.Popen(
            [BINARY, "serve", "--config", str(path)], stderr=self.log_path.open("w"), stdout=subprocess.DEVNULL
        )
        until(self.is_ready, "the gateway is ready")

    def tenant(self, name, key=None, **lines):
        """A tenant with a key; `key` has more lines of the key."""
        return {**lines, "keys": [{**self.new_key(name), **(key or {})}]}

    def new_key(self, tenant):
        made = subprocess.run([BINARY, "keys", "new"], capture_output=True, text=True, check=True).stdout
        self.keys[tenant] = re.search(r"pst_\w+", made).group(0)
        return {
            "id": re.search(r"id: (\w+)", made).group(1),
            "digest": re.search(r"digest: \"?([\w:]+)", made).group(1),
        }

    def is_ready(self):
        assert self.process.poll() is None, self.log_path.read_text()
        try:
            return httpx.get(f"{self.admin}/readyz", timeout=1).status_code == 200
        except httpx.TransportError:
            return False

    def finished(self, request_id):
        """The log lines of the finished requests with this id."""
        lines = self.log_path.read_text().rpartition("\n")[0].splitlines()
        mine = (json.loads(line) for line in lines if f'"{request_id}"' in line)
        return [line for line in mine if line["target"] == "penstock::request"]

    def attempts(self, request_id, count):
        """The log lines of a request that must have been sent `count` times."""
        lines = until(
            lambda: len(found := self.finished(request_id)) >= count and found,
            f"{count} log lines of {request_id}",
        )
        assert len(lines) == count, lines
        return lines

    def metric(self, name, **labels):
        text = httpx.get(f"{self.admin}/metrics", timeout=10).text
        rows = re.findall(rf"^{name}(?:{{([^}}]*)}})? (\S+)$", text, re.M)
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(float(value) for found, value in rows if all(label in found for label in wanted))

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        if self.process.poll() is None:
            self.terminate()
        code = self.process.wait(timeout=30)
        assert code == 0, f"the gateway ended with {code}: {self.log_path.read_text()[-2000:]}"
