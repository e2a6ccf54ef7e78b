"""The console in a browser, over the demo under load and over a gateway that asks for a token."""

import csv
import io
import json
import pathlib
import urllib.error
import urllib.request

import pytest
from conftest import get, run, wait_until
from console import OIDC, PAGES, ask, browser, demo_keys, guarded, page_at, press, show
from provider import CLIENT, provider
from test_demo import begin


@pytest.fixture(scope="module")
def chrome():
    with browser() as one:
        yield one


def replicas(admin):
    return {row["replica"]: row["state"] for row in json.loads(get(f"{admin}/admin/v1/replicas"))["replicas"]}


def confirm(page, verb, reason=None):
    page.wait_for_selector("#ask[open]")
    if reason:
        page.fill("#ask-reason", reason)
    page.click(f"#ask button[type=submit]:has-text('{verb}')")
    page.wait_for_selector("#ask h2:has-text('Done')")
    page.click("#ask button:has-text('Close')")


def test_every_page_in_both_themes_and_widths(start, chrome):
    demo, admin = begin(start, " --load")
    press(*demo_keys(demo))
    wait_until("queue", lambda: json.loads(get(f"{admin}/admin/v1/queues"))["queues"])
    for width, theme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
        problems = []
        page = page_at(chrome, width, theme, problems)
        for name in PAGES:
            show(page, admin, name)
            assert page.get_attribute("html", "data-theme") == theme
            assert page.get_attribute("nav [aria-current]", "href") == f"#/{name}"
            across = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.evaluate(across) == 0, f"{name} is wider than {width} px"
        assert not problems
        page.context.close()

    problems = []
    page = page_at(chrome, 1280, "light", problems)
    show(page, admin, "requests")
    page.keyboard.press("2")
    page.wait_for_selector("[data-key=queues] tbody tr:has-text('no room')")
    assert page.url.endswith("#/queues")
    page.keyboard.press("4")
    page.click("[data-key=requests] button:has-text('Finished')")
    page.wait_for_selector("[data-key=requests] tbody tr:has-text('success')")
    page.keyboard.press("/")
    page.keyboard.type("success")
    done = page.locator("[data-key=requests] tbody tr:has-text('success')").first
    done.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#drawer[open] .timeline li:has-text('First token')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#drawer:not([open])", state="attached")

    name = sorted(replicas(admin))[0]
    show(page, admin, "pools")
    page.click(f"tr[data-key='{name}'] button:has-text('Cordon')")
    assert replicas(admin)[name] != "cordoned", "only after it is confirmed"
    confirm(page, "Cordon", "a test")
    assert replicas(admin)[name] == "cordoned"
    page.wait_for_selector(f"tr[data-key='{name}'] .badge:has-text('cordoned')")
    page.click(f"tr[data-key='{name}'] button:has-text('Uncordon')")
    confirm(page, "Uncordon")
    page.click("[data-key=pool-h100] .head button:has-text('Drain')")
    confirm(page, "Drain")
    assert {state for name, state in replicas(admin).items() if name.startswith("h100")} == {"draining"}
    page.click("[data-key=pool-h100] .head button:has-text('Uncordon')")
    confirm(page, "Uncordon")
    assert not {"draining", "cordoned"} & set(replicas(admin).values())
    assert not problems
    page.context.close()


def saved(part, form):
    """What the first button of a form saves in a part of the page: the file's name and its text."""
    with part.page.expect_download() as waited:
        part.locator(f"button[data-act=save][data-form={form}]").first.click()
    return waited.value.suggested_filename, pathlib.Path(waited.value.path()).read_text(encoding="utf-8")


def test_tables_are_saved_as_they_stand(start, chrome):
    demo, admin = begin(start)
    base, keys = demo_keys(demo)
    for prompt in (40, 10, 30, 20):
        assert ask(base, keys["chat"], None, prompt, output=5)
    url = f"{admin}/admin/v1/requests"
    ended = wait_until("ends", lambda: len(rows := json.loads(get(f"{url}?state=finished"))["requests"]) == 4 and rows)
    # A click on a column of numbers shows the largest first.
    ended.sort(key=lambda row: row["prompt_tokens"], reverse=True)

    problems = []
    page = page_at(chrome, 1280, "light", problems)
    show(page, admin, "requests")
    rows = page.locator("[data-key=requests] tbody tr")
    wait_until("four rows", lambda: rows.count() == 4)
    page.click("[data-key=requests] th button:has-text('Prompt')")
    panel = page.locator("section[data-key=requests]")
    name, text = saved(panel, "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert name == "penstock-requests.csv"
    assert list(lines[0]) == ["Request", "State", "Tenant", "Class", "Came", "For", "Prompt", "Output", "First token", "Where"]
    name, text = saved(panel, "json")
    objects = json.loads(text)
    assert name == "penstock-requests.json" and list(objects[0]) == list(lines[0])
    for known, line, one in zip(ended, lines, objects, strict=True):
        expected = {
            "Request": known["request_id"], "State": "success", "Tenant": "chat", "Class": known["class"],
            "Prompt": known["prompt_tokens"], "Output": known["output_tokens"], "Where": known["replica"],
        }
        assert {key: one[key] for key in expected} == expected
        assert {key: line[key] for key in expected} == {key: str(value) for key, value in expected.items()}
        assert one["First token"] == float(line["First token"]) == known["ttft_seconds"]

    # Only what the filter leaves.
    page.fill("main input[type=search]", ended[1]["request_id"])
    wait_until("one row", lambda: rows.count() == 1)
    assert [line["Request"] for line in csv.DictReader(io.StringIO(saved(panel, "csv")[1]))] == [ended[1]["request_id"]]

    # The drawer's table, too.
    rows.first.click()
    page.wait_for_selector("#drawer[open] [data-key=scores-1] tbody tr")
    (one,) = json.loads(get(f"{url}/{ended[1]['request_id']}"))["tries"]
    name, text = saved(page.locator("#drawer"), "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert name == "penstock-scores-1.csv" and lines[0]["Why not"] == "chosen"
    assert [line["Replica"] for line in lines] == [one["replica"], *(other["replica"] for other in one["why"]["others"])]
    name, text = saved(page.locator("#drawer"), "json")
    assert name == "penstock-scores-1.json" and json.loads(text)[0]["Score"] == one["why"]["score"]
    assert not problems
    page.context.close()


def status_of(url, **head):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=head), timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as refusal:
        return refusal.code


def test_data_needs_the_token(start, chrome, tmp_path):
    admin, tokens, file = guarded(start, tmp_path)
    for path in ("/console", "/console/app.js"):
        assert status_of(f"{admin}{path}") == 200, "files hold no data"
    for path in ("/admin/v1/live", "/admin/v1/shares", "/admin/v1/scale", "/admin/v1/requests"):
        assert status_of(f"{admin}{path}") == 401, path

    page = page_at(chrome, 1280, "light", [])
    page.goto(f"{admin}/console#/tenants")
    page.fill("#token", "pst_wrong")
    page.click("text=Sign in >> nth=-1")
    page.wait_for_selector("[role=alert]:has-text('Refused')")
    assert "chat" not in page.inner_text("main")
    page.fill("#token", tokens["read"])
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-key=limits] tbody tr:has-text('tokens per')")
    page.wait_for_selector("[data-key=bill] tbody tr:has-text('chat')")
    assert page.context.cookies() == [] and tokens["read"] not in page.content()

    show(page, admin, "pools")
    page.click("[data-key='replicas-h100'] button:has-text('Drain')")
    page.click("#ask button[type=submit]")
    page.wait_for_selector("#ask-said:has-text('may only look')")
    page.keyboard.press("Escape")
    page.click("#sign-out")
    page.fill("#token", tokens["operate"])
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-key='replicas-h100'] tbody tr")
    page.click("[data-key='replicas-h100'] button:has-text('Drain')")
    confirm(page, "Drain")
    page.wait_for_selector("[data-key='replicas-h100'] .badge:has-text('draining')")

    show(page, admin, "config")
    file.write_text(file.read_text().replace("guarantee: 0.25", "guarantee: 0.5"))
    page.wait_for_selector("pre:has-text('tenants.chat.quota.guarantee: 0.25 -> 0.5')")
    file.write_text(file.read_text().replace("guarantee: 0.5", "guarantee: 5"))
    page.wait_for_selector("[aria-label='Errors of the file'] pre:has-text('guarantee')")
    page.context.close()


def test_sign_in_at_a_provider(start, chrome, tmp_path):
    with provider(tmp_path) as ids:
        admin, tokens, _ = guarded(start, tmp_path, OIDC.format(issuer=ids.issuer, client=CLIENT))
        told = lambda: json.loads(get(f"{admin}/console/sign-in"))["provider"]["token_endpoint"]
        assert wait_until("provider", told) == f"{ids.issuer}/token"
        problems = []
        page = page_at(chrome, 1280, "light", problems)
        go = "button:has-text('Sign in with 127.0.0.1')"

        # There and back to the page that was open, with what stood in its filter. No cookie, no code left.
        page.goto(f"{admin}/console#/requests")
        page.click(go)
        page.wait_for_selector("[data-key=requests] tbody tr")
        assert page.url == f"{admin}/console#/requests" and page.context.cookies() == []
        assert ids.asked[-1]["redirect_uri"] == f"{admin}/console"
        kept = page.evaluate("JSON.stringify([...Object.keys(sessionStorage)])")
        assert json.loads(kept) == ["penstock-token"]
        show(page, admin, "pools")
        page.click("[data-key='replicas-h100'] button:has-text('Drain')")
        page.click("#ask button[type=submit]")
        page.wait_for_selector("#ask-said:has-text('oidc:ann@example.com may only look')")
        page.keyboard.press("Escape")

        # An expired token is told, and the same place comes back, with the rights of the new one.
        page.click("#sign-out")
        page.wait_for_selector("#link:has-text('signed out')")
        ids.groups = ["sre"]
        page.goto(f"{admin}/console#/requests")
        page.click(go)
        page.wait_for_selector("[data-key=requests] tbody tr")
        page.fill("main input[type=search]", "success")
        ids.lifetime = -1
        page.evaluate("token => sessionStorage.setItem('penstock-token', token)", ids.token())
        page.wait_for_selector("[role=alert]:has-text('the token has expired')")
        ids.lifetime = 300
        page.click(go)
        page.wait_for_selector("[data-key=requests] tbody tr")
        assert page.input_value("main input[type=search]") == "success" and page.url.endswith("#/requests")
        show(page, admin, "pools")
        page.click("[data-key='replicas-h100'] button:has-text('Drain')")
        confirm(page, "Drain")
        allowed = [said for said in problems if "401" in said or "403" in said]
        assert problems == allowed, "only refusals"

        # What goes wrong is said.
        page.click("#sign-out")
        for name, value, usual, words in (
            ("groups", ["others"], ["sre"], "admin.auth.oidc.roles"),
            ("audience", "somebody-else", CLIENT, "another audience"),
            ("error", "access_denied", None, "the provider says: you may not"),
            ("cors", False, True, "gave this page no answer"),
        ):
            setattr(ids, name, value)
            page.click(go)
            page.wait_for_selector(f"[role=alert]:has-text('{words}')")
            setattr(ids, name, usual)
        page.goto(f"{admin}/console?code=x&state=y#/pools")
        page.wait_for_selector("[role=alert]:has-text('not begun in this tab')")
        assert "code=" not in page.url
        page.fill("#token", tokens["read"])
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-key='replicas-h100'] tbody tr")
        page.context.close()

        # Commands take the same token.
        done = run("penstock status", PENSTOCK_ADMIN=admin.removeprefix("http://"), PENSTOCK_ADMIN_TOKEN=ids.token())
        assert done.returncode == 0, done.stderr
