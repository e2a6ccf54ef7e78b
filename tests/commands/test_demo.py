"""The demo as a newcomer meets it: its printed lines, its traffic, its end."""

import csv
import io
import itertools
import json
import os
import re
import signal
import subprocess
import time

import pytest
import reference
from conftest import elsewhere, get, run, wait_until
from prometheus import Prometheus, unknown_values, without_data


def begin(start, flags=""):
    places = elsewhere()
    listen, admin, scale = (places[f"127.0.0.1:{port}"] for port in (8080, 8081, 8082))
    demo = start(f"penstock demo{flags} --listen {listen} --admin {admin} --scale {scale}")
    demo.wait_for(r"^Ctrl-C drains and ends\.", 600)
    return demo, f"http://{admin}"


def printed(demo, program):
    return next(line.strip() for line in demo.lines if line.strip().startswith(program))


def samples(admin):
    """The metrics, as (name, labels, value)."""
    found = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", get(f"{admin}/metrics"), re.M)
    label = re.compile(r'(\w+)="([^"]*)"')
    return [(name, dict(label.findall(labels)), float(value)) for name, labels, value in found]


def total(admin, metric, **labels):
    rows = samples(admin)
    return sum(v for name, have, v in rows if name == metric and labels.items() <= have.items())


def test_printed_lines_work(start):
    demo, admin = begin(start)
    curl = run(printed(demo, "curl"))
    assert curl.returncode == 0, curl.stderr
    events = [line for line in curl.stdout.splitlines() if line]
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
    assert text.strip() and {chunk["model"] for chunk in chunks} == {"llama-3-8b"}

    python = run(printed(demo, "python3"))
    assert python.returncode == 0, python.stderr
    assert python.stdout.strip()

    # A request is counted when the gateway is done with it, which its client may be before.
    wait_until("both requests", lambda: total(admin, "penstock_requests_total", outcome="success", tenant="chat") == 2)
    config = next(line.split()[1] for line in demo.lines if line.startswith("config"))
    console = next(line.split()[1] for line in demo.lines if line.startswith("console"))
    assert console == f"{admin}/console"
    assert "<title>" in get(console)
    scaler = next(line for line in demo.lines if line.startswith("scaler"))
    pool = re.search(r"pool=(\S+)", scaler).group(1)
    assert json.loads(get(f"{admin}/scale/v1/{pool}"))["pool"] == pool
    manifest = run(f"penstock keda {pool} --config {config}")
    assert f":{scaler.split()[1].rsplit(':')[-1]}" in manifest.stdout, manifest.stderr
    check = run(f"penstock check {config}")
    assert check.returncode == 0, check.stdout
    assert demo.stop(signal.SIGINT) == 0
    assert "Ctrl-C: draining (a second one stops at once)" in demo.lines
    assert demo.lines[-1] == "drained"
    assert run(f"ls {config}").returncode != 0, "its folder is gone"


#: Counters that the demo has no labels for, and why.
NOT_BORN = {
    "penstock_fallbacks_total": "it has one model",
    "penstock_limits_met_total": "no tenant has a limit",
    "penstock_rest_orders_total": "its engines do not sleep",
    "penstock_shadow_requests_total": "nothing is copied",
    "penstock_shadow_output_tokens_total": "nothing is copied",
    "penstock_shadow_skipped_total": "nothing is copied",
    "penstock_record_steps_total": "nothing is recorded",
    "penstock_record_steps_lost_total": "nothing is recorded",
    "penstock_usage_rows_total": "it has no usage folder",
    "penstock_usage_rows_dropped_total": "it has no usage folder",
    "penstock_usage_database_rows_total": "it has no usage folder",
    "penstock_usage_database_rows_deleted_total": "it has no usage folder",
}


def check_zeros(rows):
    """Counters are there before their first event, with every value that their label may have."""
    counters = {name for name, metric in reference.metric_rows().items() if metric.kind == "counter"}
    assert counters - {name for name, _, _ in rows} == set(NOT_BORN)

    def values(metric, label):
        return {have[label] for name, have, _ in rows if name == metric}

    for metric, label, path, enum, *method in [
        ("penstock_rejections_total", "reason", "src/core/model/reason.rs", "RejectReason"),
        ("penstock_recalls_total", "reason", "src/core/model/reason.rs", "PreemptReason"),
        ("penstock_ejections_total", "fault", "src/core/model/reason.rs", "EngineFault"),
        ("penstock_wasted_tokens_total", "reason", "src/core/billing/bill.rs", "WasteCause"),
        ("penstock_prompt_counts_total", "source", "src/tokens/mod.rs", "CountSource"),
        ("penstock_tls_handshakes_failed_total", "reason", "src/tls/mod.rs", "HandshakeError", "label"),
        ("penstock_auth_failures_total", "reason", "src/auth/jwt.rs", "TokenError", "reason"),
        ("penstock_admin_refusals_total", "reason", "src/admin/auth/origin.rs", "ForeignRequest", "label"),
        ("penstock_connections_refused_total", "reason", "src/proxy/listener/client_address/mod.rs", "ConnectionDenied",
         "label"),
    ]:
        named = {name for row in reference.names(reference.source(path), enum, *method).values() for name in row}
        assert named and named <= values(metric, label), metric
    # Reasons that are written where they arise.
    for metric, paths in {
        "penstock_auth_failures_total": ["src/auth/mod.rs"],
        "penstock_admin_refusals_total": ["src/admin/auth/mod.rs"],
        "penstock_connections_refused_total": [
            "src/admin/server.rs", "src/scaler/server.rs", "src/proxy/listener/rejected.rs",
            "src/proxy/listener/conn_state.rs",
        ],
    }.items():
        text = "".join(reference.source(path).split("#[cfg(test)]")[0] for path in paths)
        written = set(re.findall(r'reason: "(\w+)"|=> \("(\w+)", |=> \{\s*\("(\w+)", ', text))
        written = {word for words in written for word in words if word}
        assert written and written <= values(metric, "reason"), metric


def test_load_moves_queues_and_replicas(start, tmp_path):
    demo, admin = begin(start, " --load")
    check_zeros(samples(admin))
    prometheus = Prometheus(start, tmp_path, admin)
    wrong = printed(demo, "curl").replace('"model":"llama-3-8b"', '"model":"none"')
    assert "model_not_found" in run(wrong).stdout
    for tenant, classes in {
        "chat": ["interactive", "standard"],
        "search": ["standard", "interactive", "batch"],
        "reports": ["batch", "standard"],
    }.items():
        for name in classes:
            wait_until(
                f"request of {tenant} in {name}",
                lambda t=tenant, c=name: total(
                    admin, "penstock_requests_total", outcome="success", tenant=t, **{"class": c}
                ),
            )
    wait_until("waiting request", lambda: total(admin, "penstock_queue_depth"))
    wait_until("work at every replica", lambda: all(
        value > 0 for name, _, value in samples(admin) if name == "penstock_replica_running"
    ))
    queues = wait_until("queue", lambda: json.loads(get(f"{admin}/admin/v1/queues"))["queues"])
    assert {"tenant", "class", "model"} <= queues[0].keys()
    replicas = json.loads(get(f"{admin}/admin/v1/replicas"))["replicas"]
    assert len(replicas) == 3
    assert total(admin, "penstock_broken_invariants") == 0

    requests_are_listed_and_watched(admin)

    metrics = get(f"{admin}/metrics")
    promtool = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics, text=True, capture_output=True, check=False
    )
    assert promtool.returncode == 0, promtool.stdout + promtool.stderr

    empty = []

    def all_show_data():
        empty[:] = without_data(prometheus)
        return not empty

    try:
        wait_until("data in every panel", all_show_data)
    except AssertionError:
        pytest.fail("\n".join(empty))
    assert not unknown_values(prometheus)
    rules = prometheus.rules()
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    called = [rule["name"] for rule in rules if rule.get("state") == "firing" and rule["labels"]["severity"] == "page"]
    assert not called
    assert demo.stop(signal.SIGINT) == 0, demo.output
    assert demo.lines[-1] == "drained"


def requests_are_listed_and_watched(admin):
    """`requests list`, `why`, `tail` and `top` over a demo under load, as on an operator's terminal of 80 by 24."""
    def ask(command, code=0):
        done = run(f"penstock {command}", PENSTOCK_ADMIN=admin)
        assert done.returncode == code, (command, done.stdout, done.stderr)
        return done.stdout

    waiting = wait_until("waiting requests", lambda: json.loads(
        ask("requests list --waiting -o json"))["requests"])
    assert {row["state"] for row in waiting} == {"waiting"}
    reports = json.loads(ask("requests list --tenant reports -o json"))["requests"]
    assert {row["tenant"] for row in reports} == {"reports"}
    assert all("prompt" not in key for row in waiting for key in row if key != "prompt_tokens")
    ages = [row["came_at_unix"] for row in waiting]
    assert ages == sorted(ages), "the oldest first"
    reasons = {row["waits"]["obstacle"] for row in waiting if row["waits"]}
    assert reasons <= {"no_room", "not_its_turn", "quota_reached", "waits_for_sooner_replica", "waits_for_wanted_pools"}
    table = ask("requests list --running --limit 5")
    assert table.startswith("REQUEST") and 1 <= table.count(" running ") <= 5
    lines = list(csv.DictReader(io.StringIO(ask("requests list --finished -o csv"))))
    assert lines and all(row["end_outcome"] for row in lines)
    why = ask(f"why {lines[0]['request_id']}")
    assert why.count("\n") == 1 and "It went to" in why and "It ended after" in why
    for command in ("queues list", "pools list", "replicas list", "tenants list"):
        def some(command=command):
            rows = list(csv.reader(io.StringIO(ask(f"{command} -o csv"))))
            return rows if len(rows) > 1 else None

        # A queue may be empty for a moment.
        rows = wait_until(command, some)
        assert {len(row) for row in rows} == {len(rows[0])}, command
    assert "no CSV" not in ask("status -o json") and ask("status -o csv", code=1) == ""
    speeds = [row["speed"] for row in json.loads(ask("replicas list -o json"))["replicas"]]
    assert all(speed is None or 0 < speed < 4 for speed in speeds)

    events = [json.loads(line) for line in ask("tail --count 40 -o json --for 30s").splitlines()]
    assert len(events) == 40 and {"dispatched", "ended"} <= {event["event"] for event in events}
    chat = ask("tail --count 3 --tenant chat --event dispatched --for 30s").splitlines()
    assert len(chat) == 3 and all(" dispatched " in line and "chat/" in line and " to " in line for line in chat)
    assert ask("top --once --csv --view requests").startswith("request_id,state,")
    assert re.search(r"^queues \(\d+\)$", ask("top --once"), re.M)

    top_follows_its_keys(admin)
    tail_follows_the_gateway(admin)
    lists_follow_the_gateway(admin)


class Terminal:
    """A command on a terminal of 24 lines, by what its screen shows and by keys."""

    numbers = itertools.count()

    def __init__(self, command, width=80):
        # Another server each time: one that ends may still hold its socket for a moment.
        self.tmux = f"tmux -L penstock-{os.getpid()}-{next(self.numbers)}"
        started = run(f"{self.tmux} new-session -d -s it -x {width} -y 24 '{command}'")
        assert started.returncode == 0, started.stderr

    def __enter__(self):
        return self

    def __exit__(self, *_):
        run(f"{self.tmux} kill-server")

    def look(self):
        return run(f"{self.tmux} capture-pane -p -t it").stdout

    def screen(self, wanted):
        """The screen, once a line of it fits."""
        def fits():
            text = self.look()
            return text if re.search(wanted, text, re.M) else None
        return wait_until(wanted, fits, 30)

    def press(self, keys):
        run(f"{self.tmux} send-keys -t it {keys}")

    def until_it_ends(self):
        wait_until("the end of the command", lambda: run(f"{self.tmux} has-session -t it").returncode != 0)


def top_follows_its_keys(admin):
    with Terminal(f"PENSTOCK_ADMIN={admin} penstock top") as top:
        first = top.screen(r"^ 1 queues \d+ +2 pools 2 +3 replicas 3 +4 tenants \d+ +5 requests \d+")
        assert first.startswith("penstock ") and " ready " in first and "q quit" in first
        assert max(map(len, first.splitlines())) <= 80
        top.press("5")
        assert re.search(r" (waiting|running) ", top.screen("^REQUEST +STATE"))
        top.press("/ reports Enter")
        assert "chat" not in top.screen("^filter: reports ").partition("REQUEST")[2]
        top.press("Escape")
        wait_until("no filter", lambda: "filter: reports" not in top.look())
        top.press("3 s s r p")
        assert "serving" in top.screen("^PAUSED .*") and "STATEv" in top.screen("SPEED")
        top.press("q")
        top.until_it_ends()


def tail_follows_the_gateway(admin):
    """Lines with their columns, and more of them as decisions are made, until Ctrl-C."""
    def lines(text):
        return [line for line in text.splitlines() if line and not line.startswith("penstock: ")]

    # Wide enough for the longest line.
    with Terminal(f"PENSTOCK_ADMIN={admin} penstock tail", 300) as tail:
        first = lines(tail.screen(r" dispatched .* to .* first token in "))
        assert not any("\x1b" in line for line in first)
        kinds = {"arrived", "dispatched", "first_token", "returned", "fell_back", "ended", "change"}
        for line in first:
            assert re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line), line
            assert line[13:24].strip() in kinds and line[24:26] == "  " and line[26] != " ", line
        # What was the newest line moves up, and others stand below it.
        later = wait_until("newer lines", lambda: (now := lines(tail.look()))[-1:] != first[-1:] and now)
        assert set(later) - set(first)
        tail.press("C-c")
        tail.until_it_ends()


def lists_follow_the_gateway(admin):
    """`requests list` as an operator calls it twice: cells below their headings, and other figures the second time."""
    heads = ("REQUEST", "STATE", "TENANT", "CLASS", "SINCE", "STARTS IN", "TOKENS", "WHY", "MODEL")
    command = "'clear; penstock requests list --running --limit 5' Enter"
    with Terminal(f"PENSTOCK_ADMIN={admin} bash --norc --noprofile", 200) as shell:
        def rows():
            text = shell.look()
            found = re.search("^" + " +".join(heads) + "$", text, re.M)
            running = [line for line in text.splitlines() if " running " in line]
            return [found.group(), *running] if found and running else None

        shell.press(command)
        heading, *first = wait_until("running requests", rows)
        assert len(first) <= 5
        for line in first:
            for head in heads[1:]:
                at = heading.index(head)
                assert line[at - 2:at] == "  " and line[at] != " ", f"{head}:\n{heading}\n{line}"
        time.sleep(1)
        shell.press(command)
        wait_until("other figures", lambda: (now := rows()) and now[1:] != first)


def test_second_signal_does_not_wait(start):
    demo, admin = begin(start, " --load")
    wait_until("running work", lambda: total(admin, "penstock_replica_running"))
    demo.process.send_signal(signal.SIGTERM)
    demo.wait_for("^SIGTERM: draining")
    assert demo.stop(signal.SIGTERM) == 0
    assert demo.lines[-1] == "drained"


def test_busy_port_is_named(start):
    demo, admin = begin(start)
    taken = admin.removeprefix("http://")
    second = run(f"penstock demo --listen 127.0.0.1:0 --admin {taken}")
    assert second.returncode == 1
    assert f"cannot listen on {taken}" in second.stderr
    assert "--listen, --admin and --scale choose other addresses" in second.stderr
    assert demo.stop() == 0
