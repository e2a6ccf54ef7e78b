"""A tenant's own page in a browser, over the demo under load and over a gateway with limits and a bill."""

import contextlib
import json

import pytest
from conftest import free_ports, get, wait_until
from console import ask, browser, demo_keys, new_key, page_at, press
from test_demo import begin

CONFIG = """\
version: 1
server: {{listen: "{listen}", admin: "{admin}"}}
usage: {{folder: "{folder}", database: none}}
tenants:
  chat:
    limits: {{per_minute: {{requests: 100}}, per_day: {{tokens: 2000000}}}}
    keys: [{{{chat}}}]
  other:
    keys: [{{{other}}}]
pools:
  h100:
    engine: vllm
    price: 3.2
    models: [llama-3-8b]
    replicas: [{{url: "http://{engine}"}}]
"""
ACROSS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
KEPT = "localStorage.length + sessionStorage.length"


@pytest.fixture(scope="module")
def chrome():
    with browser() as one:
        yield one


def sign_in(page, key):
    page.fill("#key", key)
    page.keyboard.press("Enter")


def test_what_waits_in_both_themes_and_widths(start, chrome):
    demo, admin = begin(start, " --load")
    base, keys = demo_keys(demo)
    own = f"{base.removesuffix('/v1')}/me"
    line = next(line for line in demo.lines if line.startswith("own use"))
    assert line.split()[2] == own
    press(base, keys)

    def is_waiting():
        rows = json.loads(get(f"{admin}/admin/v1/queues"))["queues"]
        return any(row["tenant"] == "search" for row in rows)

    wait_until("waiting requests of the tenant", is_waiting)
    for width, theme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
        problems = []
        page = page_at(chrome, width, theme, problems)
        page.goto(own)
        page.wait_for_selector("#key")
        assert page.evaluate(ACROSS) == 0, f"the form is wider than {width} px"
        sign_in(page, keys["search"])
        page.wait_for_selector("#link.live")
        page.wait_for_selector("[data-key=queues] tbody tr:has-text('llama-3-8b')")
        page.wait_for_selector("[data-key=requests] tbody tr .badge")
        assert "Tenant search" in page.inner_text("[data-key=who]")
        assert page.get_attribute("html", "data-theme") == theme
        assert page.evaluate(ACROSS) == 0, f"the page is wider than {width} px"
        for name in ("reports", keys["search"]):
            assert name not in page.content()
        assert page.context.cookies() == [] and page.evaluate(KEPT) == 0 and page.url == own

        page.keyboard.press("t")
        assert page.get_attribute("html", "data-theme") == "light"
        page.keyboard.press("t")
        assert page.get_attribute("html", "data-theme") == "dark"
        page.reload()
        page.wait_for_selector("#key")
        assert page.input_value("#key") == "", "a reload forgets the key"
        assert not problems
        page.context.close()


def test_use_limits_and_refusals(start, chrome, tmp_path):
    listen, admin, engine = free_ports(3)
    start(f"penstock sim-engine --listen {engine} --model llama-3-8b")
    (chat, chat_row), (other, other_row) = new_key(), new_key()
    file, folder = tmp_path / "penstock.yaml", tmp_path / "usage"
    places = {"listen": listen, "admin": admin, "engine": engine, "folder": folder}
    file.write_text(CONFIG.format(chat=chat_row, other=other_row, **places))
    gateway = start(f"penstock serve --config {file}")

    def is_up():
        assert gateway.process.poll() is None, gateway.output
        with contextlib.suppress(OSError):
            return get(f"http://{admin}/readyz")

    wait_until("gateway", is_up)
    for _ in range(3):
        assert ask(f"http://{listen}/v1", chat, None, output=40)

    def is_written():
        rows = [line for part in folder.glob("*.jsonl") for line in part.read_text().splitlines()]
        return sum('"kind":"request"' in row for row in rows) == 3

    # The first question makes the bill that holds for a minute.
    wait_until("rows of three requests", is_written)

    problems = []
    page = page_at(chrome, 1280, "light", problems)
    page.goto(f"http://{listen}/me")
    sign_in(page, "pst_wrong")
    page.wait_for_selector("[role=alert]:has-text('Refused (401): The API key is not valid here')")
    assert page.evaluate("document.activeElement.id") == "key" and page.input_value("#key") == ""
    sign_in(page, "two words")
    page.wait_for_selector("[role=alert]:has-text('A key has no spaces')")
    sign_in(page, "")
    page.wait_for_selector("[role=alert]:has-text('No API key was given')")
    assert problems == [said for said in problems if "401" in said], "only refusals"
    problems.clear()

    sign_in(page, chat)
    page.wait_for_selector("#link.live")
    limits = page.locator("[data-key=limits] tbody tr")
    assert limits.count() == 2
    assert "tokens a day" in page.inner_text("[data-key=limits]")
    assert "requests a minute" in page.inner_text("[data-key=limits]")
    assert "Requests today\n3\n3 this month" in page.inner_text("[data-key=tiles]")
    for span in ("Today", "This month"):
        page.click(f"[data-key=models-panel] button:has-text('{span}')")
        row = page.locator("[data-key=models] tbody tr:has-text('llama-3-8b') td")
        assert row.nth(1).inner_text() == "3", span
    assert "Nothing waits" in page.inner_text("[data-key=waiting-panel]")
    page.click("[data-key=models] th button:has-text('Cost')")
    page.wait_for_selector("[data-key=models] th[aria-sort=descending]")

    page.click("#sign-out")
    sign_in(page, other)
    page.wait_for_selector("[data-key=who] h1:has-text('Tenant other')")
    assert "No limits" in page.inner_text("[data-key=limits-panel]")
    assert "Nothing yet" in page.inner_text("[data-key=models-panel]")
    assert not problems

    gateway.stop()
    page.wait_for_selector("[data-key=lost]:has-text('What you see is old')")
    assert "No answer from the gateway" in page.inner_text("[data-key=lost]")
    page.context.close()
