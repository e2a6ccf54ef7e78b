"""Draws the pictures of docs/guides/console.md and docs/guides/limits-and-bills.md, over the demo under load:

    cargo build && python3 tests/commands/pictures.py

It takes the suite's Python (pytest, playwright), `pip install rich`, and Debian's chromium and tmux. PENSTOCK_BIN
names another binary.
"""

import json
import os
import pathlib
import sys
import time

os.environ.setdefault("SUITE_PYTHON_BIN", str(pathlib.Path(sys.executable).parent))

# pylint: disable=wrong-import-position
import rich.console
import rich.text
from rich.terminal_theme import MONOKAI

from conftest import BIN, ROOT, Running, get, run, wait_until
from console import browser, demo_keys, page_at, press, show
from test_demo import Terminal, begin

OUT = ROOT / "docs" / "images"
#: All pictures together.
MAX_BYTES = 480 * 1024


def waiting(admin):
    return sum(row["waiting"] for row in json.loads(get(f"{admin}/admin/v1/queues"))["queues"])


def draw(admin, base, keys, chrome):
    page = page_at(chrome, 1180, "light", [])
    press(base, keys)
    wait_until("queue", lambda: waiting(admin) > 60)
    show(page, admin, "overview")
    time.sleep(12)
    page.screenshot(path=OUT / "console-overview.png", clip=box(page, 1180, 640))

    show(page, admin, "requests")
    page.click("button:has-text('Finished')")
    page.fill("#request-filter", "batch success")
    page.locator("[data-key=requests] tbody tr").first.click()
    page.wait_for_selector("#drawer .timeline li.good")
    page.wait_for_timeout(400)
    page.locator("#drawer").screenshot(path=OUT / "console-request.png")
    page.context.close()

    page = page_at(chrome, 1180, "dark", [])
    press(base, keys)
    show(page, admin, "pools")
    page.wait_for_timeout(1500)
    page.screenshot(path=OUT / "console-pools.png", clip=box(page, 1180, 640))
    page.context.close()


    page = page_at(chrome, 1180, "light", [])
    page.goto(f"{base.removesuffix('/v1')}/me")
    page.fill("#key", keys["search"])
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-key=requests] tbody tr .badge")
    page.wait_for_timeout(400)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=OUT / "tenant-page.png", clip=box(page, 1180, 700))
    page.context.close()


def draw_top(admin, base, keys, chrome):
    """`penstock top` on a terminal of 120 columns."""
    press(base, keys)
    with Terminal(f"PENSTOCK_ADMIN={admin} {BIN} top", width=120) as terminal:
        terminal.screen("^.*batch")
        terminal.press("3")
        time.sleep(4)
        text = run(f"{terminal.tmux} capture-pane -e -p -t it").stdout
    console = rich.console.Console(record=True, width=120, file=open(os.devnull, "w", encoding="utf-8"), force_terminal=True)
    console.print(rich.text.Text.from_ansi(text.rstrip()))
    page = chrome.new_page(viewport={"width": 1000, "height": 520})
    page.set_content(console.export_html(theme=MONOKAI, inline_styles=True, code_format=TERMINAL))
    page.locator("pre").screenshot(path=OUT / "top.png")
    page.close()


#: A terminal, for rich's export.
TERMINAL = """<body style="margin: 0"><pre style="margin: 0; padding: 14px; background: #0c0c0c; color: #d9d9d9;
font: 13px/1.35 'DejaVu Sans Mono', monospace; width: max-content"><code style="font: inherit">{code}</code></pre></body>"""


def box(page, width, most):
    """The page from its top, as far as it has anything to show."""
    height = page.evaluate("document.querySelector('main').getBoundingClientRect().bottom")
    return {"x": 0, "y": 0, "width": width, "height": min(most, height)}


def main():
    OUT.mkdir(exist_ok=True)
    running = []

    def start(command, **options):
        running.append(Running(command, **options))
        return running[-1]

    demo, admin = begin(start, " --load")
    try:
        time.sleep(20)
        with browser() as chrome:
            base, keys = demo_keys(demo)
            draw(admin, base, keys, chrome)
            draw_top(admin, base, keys, chrome)
    finally:
        demo.process.kill()
        demo.process.wait()
    size = sum(file.stat().st_size for file in OUT.glob("*.png"))
    assert size <= MAX_BYTES, f"{size} bytes of pictures"
    print(f"{OUT}: {size} bytes")


if __name__ == "__main__":
    main()
