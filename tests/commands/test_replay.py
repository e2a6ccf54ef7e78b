"""`serve --record` and `penstock replay`: the demo's load, recorded, killed, and replayed."""

import csv
import io
import json
import re

from conftest import elsewhere, run, wait_until
from test_demo import total


def record(start, folder, more=""):
    """Runs the demo with its load; returns it, its configuration and its admin address."""
    places = elsewhere()
    listen, admin, scale = (places[f"127.0.0.1:{port}"] for port in (8080, 8081, 8082))
    demo = start(
        f"penstock demo --load --record {folder} {more} --listen {listen} --admin {admin} --scale {scale}"
    )
    demo.wait_for(r"^Ctrl-C drains and ends\.", 600)
    config = next(line.split()[1] for line in demo.lines if line.startswith("config"))
    text = open(config).read()
    return demo, text, f"http://{admin}"


def replay(folder, more=""):
    done = run(f"penstock replay {folder} --quiet {more}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_recorded_is_decided_again_and_differently_under_another_file(start, tmp_path):
    folder = tmp_path / "record"
    demo, config, admin = record(start, folder)
    for tenant, of_class in (("reports", "standard"), ("chat", "interactive")):
        wait_until(f"requests of {tenant}", lambda t=tenant, c=of_class: total(
            admin, "penstock_requests_total", outcome="success", tenant=t, **{"class": c}))
    wait_until("many requests", lambda: total(admin, "penstock_requests_total") > 60)
    assert demo.stop() == 0
    first = json.loads(replay(folder, "-o json"))
    assert first["record"]["whole"] and first["record"]["requests"] > 20, first["record"]
    assert first["decisions"]["differing_steps"] == 0, first["decisions"]
    assert first["decisions"]["same"] == first["decisions"]["recorded"] > 60
    assert "Same decisions: all" in replay(folder)
    text = "".join(file.read_text() for file in folder.iterdir())
    assert "water" not in text and "pst_" not in text and "digest" not in text

    # Only chat may use the interactive class, and nothing else is served.
    new = tmp_path / "new.yaml"
    new.write_text(re.sub(r"(?m)^  reports:\n(?:    .*\n)+", "", config))
    told = replay(folder, f"--config {new} -o csv")
    rows = {(row["tenant"], row["class"], row["what"]): row for row in csv.DictReader(io.StringIO(told))}
    assert {what for _, _, what in rows} == {"happened", "model", "predicted"}
    gone = rows["reports", "standard", "predicted"]
    assert int(gone["requests"]) == int(gone["refused"]) == int(rows["reports", "standard", "happened"]["requests"]) > 0
    kept = rows["chat", "interactive", "predicted"]
    assert int(kept["served"]) > 0 and int(kept["refused"]) == 0
    assert "The model against what happened" in replay(folder, f"--config {new}")

    assert json.loads(replay(folder, "--list -o json"))["runs"][0]["bytes"] > 10_000
    assert run(f"penstock replay {folder} --run 7").returncode == 1
    nothing = run(f"penstock replay {tmp_path}")
    assert (nothing.returncode, nothing.stdout) == (1, "") and "no record is there" in nothing.stderr


def test_a_killed_gateway_leaves_a_record_within_its_size(start, tmp_path):
    folder = tmp_path / "record"
    demo, _, _ = record(start, folder, "--record-size 1MiB")
    wait_until("a record", lambda: sum(file.stat().st_size for file in folder.iterdir()) > 100_000)
    demo.process.kill()
    demo.process.wait(10)
    told = json.loads(replay(folder, "-o json"))
    assert told["record"]["whole"] and told["decisions"]["differing_steps"] == 0, told
    assert run("penstock serve --record x --record-size 9KiB").stderr.startswith("penstock: --record-size")
