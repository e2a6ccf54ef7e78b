"""A gateway under load and a browser before it: for the console's test and for its pictures."""

import contextlib
import json
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException

from conftest import free_ports, get, run, wait_until
from playwright.sync_api import sync_playwright

PAGES = ("overview", "queues", "pools", "requests", "scale", "tenants", "config")
#: What a page shows once it is whole.
WHOLE = {
    "overview": ".verdict h1",
    "queues": "[data-key=queues] tbody tr",
    "pools": "[data-key='replicas-h100'] tbody tr",
    "requests": "[data-key=requests] tbody tr",
    "scale": ".chart",
    "tenants": "[data-key=tenants] tbody tr",
    "config": "details",
}

CONFIG = """\
version: 1
server: {{listen: "{listen}", admin: "{admin}"}}
admin:
  auth:
    tokens:
      - {{{operate}, role: operate}}
      - {{{read}, role: read}}
{oidc}usage: {{folder: "{folder}"}}
tenants:
  chat:
    quota: {{guarantee: 0.25}}
    limits: {{per_day: {{tokens: 2000000}}}}
    keys: [{{{key}}}]
pools:
  h100:
    engine: vllm
    price: 3.2
    models: [llama-3-8b]
    replicas: [{{url: "http://{engine}"}}]
"""


def chromium():
    """The system's browser."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "needs chromium: apt-get install chromium"
    return found


@contextlib.contextmanager
def browser():
    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield chrome
        chrome.close()


def page_at(chrome, width, theme, problems):
    """A page of a context of its own. What its console says is added to `problems`."""
    height = 800 if width > 600 else 844
    page = chrome.new_context(viewport={"width": width, "height": height}, color_scheme=theme).new_page()
    page.set_default_timeout(20_000)
    page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    return page


def show(page, admin, name):
    page.goto(f"{admin}/console#/{name}")
    page.wait_for_selector(WHOLE[name])
    page.wait_for_selector("#link.live")


def ask(base, key, of_class, prompt=200, output=400):
    """One streamed request, to its end or its refusal. Says whether a gateway that knows the key answered."""
    body = {"model": "llama-3-8b", "stream": True, "max_tokens": output}
    body["messages"] = [{"role": "user", "content": "water " * prompt}]
    head = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    if of_class:
        head["x-penstock-class"] = of_class
    call = urllib.request.Request(f"{base}/chat/completions", json.dumps(body).encode(), head)
    try:
        with urllib.request.urlopen(call, timeout=120) as answer:
            answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code != 401
    except (OSError, HTTPException):
        return False
    return True


def press(base, keys):
    """More than the demo's fleet can take at once, for as long as its gateway answers. A refused
    client comes back a second later."""
    def client(tenant, of_class):
        while ask(base, keys[tenant], of_class, 200, 900):
            time.sleep(1)

    for tenant, of_class, many in (("reports", "batch", 90), ("search", "batch", 40), ("search", "standard", 6)):
        for _ in range(many):
            threading.Thread(target=client, args=(tenant, of_class), daemon=True).start()


def demo_keys(demo):
    """The base URL and the tenants' keys that the demo prints."""
    base = next(line.split()[-1] for line in demo.lines if line.startswith("base URL"))
    return base, dict(re.findall(r"^  (\w+) +weight .* (pst_\S+)$", demo.output, re.M))


def new_key():
    """A key, and its row for the file."""
    lines = run("penstock keys new").stdout
    return re.search(r"pst_\S+", lines).group(), re.search(r"\{(id: .*)\}", lines).group(1)


#: The provider's lines of the file, under `admin.auth`.
OIDC = """\
    oidc: {{issuer: "{issuer}", client_id: {client}, roles: {{viewers: read, sre: operate}}, leeway: 0s}}
"""


def guarded(start, folder, oidc=""):
    """A gateway with admin tokens, limits and a bill: its admin address, its tokens by role. `oidc`
    = further lines of `admin.auth`."""
    listen, admin, engine = free_ports(3)
    start(f"penstock sim-engine --listen {engine} --model llama-3-8b")
    (operate, row), (read, read_row), (key, key_row) = new_key(), new_key(), new_key()
    places = {"listen": listen, "admin": admin, "engine": engine, "folder": folder / "usage"}
    file = folder / "penstock.yaml"
    file.write_text(CONFIG.format(operate=row, read=read_row, key=key_row, oidc=oidc, **places))
    gateway = start(f"penstock serve --config {file}")
    admin = f"http://{admin}"

    def is_up():
        assert gateway.process.poll() is None, gateway.output
        with contextlib.suppress(OSError):
            return get(f"{admin}/readyz")

    wait_until("gateway", is_up)
    for _ in range(3):
        ask(f"http://{listen}/v1", key, None, output=40)
    return admin, {"operate": operate, "read": read}, file


