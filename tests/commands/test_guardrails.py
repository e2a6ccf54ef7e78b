"""The example service of the guide, behind a gateway and in front of a simulated engine."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

from conftest import BIN, ROOT, free_ports
from documents import blocks

GUIDE = ROOT / "docs" / "guides" / "guardrails.md"

FILE = """version: 1
auth: {{mode: off}}
server: {{listen: "{0}", admin: "{1}"}}
guardrails: {{url: "http://{2}/check", answers: true, timeout: 20s}}
pools: {{p: {{engine: vllm, models: [m], max_seqs: 8, replicas: ["http://{3}"]}}}}
"""


def answered(address, prompt):
    """Status and body of a chat."""
    body = json.dumps({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": prompt}]}).encode()
    request = urllib.request.Request(f"http://{address}/v1/chat/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def until_up(address, path):
    for _ in range(1200):
        try:
            urllib.request.urlopen(f"http://{address}{path}", timeout=5)
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"nothing at {address}")


def test_the_example_of_the_guide_allows_and_denies(tmp_path):
    (example,) = blocks("python", GUIDE)
    assert len(example.strip().splitlines()) <= 35
    (tmp_path / "service.py").write_text(example)
    listen, admin, service, engine = free_ports(4)
    (tmp_path / "penstock.yaml").write_text(FILE.format(listen, admin, service, engine))
    commands = [
        [sys.executable, "service.py", service.split(":")[1]],
        [BIN, "sim-engine", "--listen", engine, "--model", "m"],
        [BIN, "serve", "--config", "penstock.yaml"],
    ]
    running = []
    try:
        for command, address in zip(commands, (service, engine, admin), strict=True):
            out = subprocess.DEVNULL
            running.append(subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out))
            until_up(address, "/health" if address != admin else "/readyz")
        status, body = answered(listen, "how high is the water?")
        assert (status, body["usage"]["completion_tokens"]) == (200, 4), body
        status, body = answered(listen, "charge 4111 1111 1111 1111, please")
        assert (status, body["error"]["code"]) == (400, "guardrail_denied"), body
        assert body["error"]["message"] == "The prompt has a card number in it."
        running[0].terminate()
        running[0].wait()
        status, body = answered(listen, "how high is the water?")
        assert (status, body["error"]["code"]) == (503, "guardrail_unavailable"), body
    finally:
        for process in running:
            process.kill()
            process.wait()
