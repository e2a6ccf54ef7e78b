"""`penstock plan` by its results and its errors."""

import json

from conftest import elsewhere, run
from test_commands import ONE

PLAN = "penstock plan loadtest/traces/azure2023_code.csv.gz --quiet"


def test_plan_as_json_and_as_a_page(tmp_path):
    page = tmp_path / "plan.html"
    done = run(f"{PLAN} --traffic x2 --add-replica --class interactive.max_wait=2s -o json --html {page}")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    report = json.loads(done.stdout)
    assert report["promise"]["holds"] and min(report["promise"]["kept"]) >= 0.99
    advice = report["advice"]
    assert 1 <= advice["floor"] <= advice["maximum"]
    (fixed,) = [fleet for fleet in report["fleets"] if fleet["name"] == "fixed peak"]
    assert fixed["run"]["replicas"] == advice["maximum"]
    more, strict, twice = (row["run"] for row in report["what_if"])
    assert more["replicas"] == advice["maximum"] + 1 and more["cost_per_hour"] > fixed["cost_per_hour"]
    assert twice["goodput"] <= fixed["run"]["goodput"] and strict["refused"] >= fixed["run"]["refused"]
    html = page.read_text()
    assert html.count("<svg") == 5 and "<script" not in html and "src=" not in html
    for answer in report["answers"]:
        assert answer["question"] in html


def test_plan_reads_any_table_with_times_and_tokens(tmp_path):
    rows = [f"2026-11-16 18:{second // 60:02}:{second % 60:02},{200 + second},{20},red" for second in range(300)]
    table = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens,who", *rows])
    (tmp_path / "calls.csv").write_text(table)
    done = run("penstock plan calls.csv --start 30s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "300 requests in 4m 59s" in done.stdout and max(map(len, done.stdout.splitlines())) <= 80
    (tmp_path / "odd.csv").write_text(table.replace("ContextTokens", "Size"))
    odd = run("penstock plan odd.csv", cwd=tmp_path)
    assert odd.returncode == 1 and "odd.csv:1: the header has no column `in_tokens`" in odd.stderr
    named = run("penstock plan odd.csv --columns input=Size -o json", cwd=tmp_path)
    assert named.returncode == 0 and json.loads(named.stdout)["source"]["requests"] == 300


def test_plan_says_what_is_wrong(tmp_path):
    (tmp_path / "bad.csv").write_text("t_s,in_tokens,out_tokens\n0,5,5\n1,many,5\n")
    (tmp_path / "gold.csv").write_text("t_s,class,in_tokens,out_tokens\n0,gold,5,5\n")
    (tmp_path / "good.csv").write_text("t_s,in_tokens,out_tokens\n0,5,5\n1,5,5\n")
    (tmp_path / "old.json").write_text('{"version": 99, "pools": [], "rows": []}')
    (tmp_path / "new.json").write_text('{"version": 1, "pools": [], "rows": []}')
    (tmp_path / "penstock.yaml").write_text(ONE)
    for command, said in {
        "": "nothing to plan from",
        "none.csv": "none.csv: cannot read it",
        "bad.csv": "bad.csv:3: column `in_tokens`: must be a number of tokens, found `many`",
        "gold.csv": "the class `gold`, which is not known; there are: interactive, standard, batch",
        "good.csv --profile h200": "there are: a10-8b",
        "good.csv --rates fast": "write it like read=21000,gap=8ms",
        "good.csv --add-replica east": "there is no pool `east`; there are: h100-8b",
        "good.csv --class slow.ttft=1s": "there is no class `slow`",
        "good.csv --keep 2": "from 0.5 to 1",
        "good.csv --mix gold=1": "classes are: interactive",
        "good.csv --columns size=x": "there are: time, input, output",
        "good.csv --traffic more": "write it like x1.5",
        "good.csv --itl 1ms": "whatever the fleet",
        "--config penstock.yaml": "has no `usage.folder`",
        "--config none.yaml": "none.yaml",
        "--journal none": "none is not a folder",
        "--state none.json": "there is no none.json; a gateway with `scale.state_file` writes it",
        "--state bad.csv": "--state: cannot read bad.csv",
        "--state old.json": "old.json is of version 99",
        "--state new.json": "no whole minute of demand yet",
        "--live http://127.0.0.1:9": "no gateway answers at http://127.0.0.1:9",
        "good.csv --config penstock.yaml --pool q": "there is no pool `q`",
    }.items():
        done = run(f"penstock plan {command}", cwd=tmp_path)
        assert done.returncode in (1, 2) and done.stdout == "", command
        assert said in done.stderr, (command, done.stderr)


def test_plan_takes_classes_prices_and_replicas_from_a_configuration(tmp_path):
    config = ONE.replace("models: [m]", "models: [m], price: 2.5, cold_start: 4m")
    (tmp_path / "penstock.yaml").write_text(f"{config}classes: {{chat: {{ttft: 2s, itl: 60ms}}, night: {{max_wait: 8h}}}}\n")
    rows = [f"{at},{('chat', 'night')[at % 2]},300,20" for at in range(300)]
    (tmp_path / "calls.csv").write_text("\n".join(["t_s,class,in_tokens,out_tokens", *rows]))
    done = run("penstock plan calls.csv --config penstock.yaml -o json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    setting = report["setting"]
    assert (setting["pool"], setting["price_per_hour"], setting["start_s"]) == ("p", 2.5, 240)
    assert report["fleets"][0]["name"] == "today" and report["fleets"][0]["mean"] == 1
    classes = {row["name"]: row for row in report["measured"]["classes"]}
    assert classes["chat"]["ttft_s"] == 2 and classes["night"]["waits_for_a_start"]


def test_plan_reads_what_a_gateway_wrote_down(tmp_path):
    row = {"kind": "request", "tenant": "red", "class": "interactive", "model": "m", "pool": "p",
           "input_tokens": 400, "output_tokens": 30, "queue_us": 20_000}
    lines = [json.dumps({**row, "time_ms": 1_790_000_000_000 + 500 * at}) for at in range(400)]
    (tmp_path / "usage").mkdir()
    (tmp_path / "usage" / "usage-00000001.jsonl").write_text("\n".join(lines) + "\n")
    done = run("penstock plan --journal usage -o json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["source"]["requests"] == 400 and report["measured"]["queue"]["wait_s"]["p50"] == 0.02
    nobody = run("penstock plan --journal usage --model n", cwd=tmp_path)
    assert nobody.returncode == 1 and "no request of the model `n`" in nobody.stderr


def seen(counts):
    return {"counts": [counts.get(bucket, 0) for bucket in range(61)]}


def test_plan_reads_what_a_gateway_has_seen(tmp_path, start):
    minutes = [{"level": 4, "peak": 9, "arrived": 60, "refused": 0, "input": 24_000, "output": 1_800}] * 30
    row = {
        "minutes": minutes, "levels": seen({5: 1_800}), "prompts": seen({18: 900, 20: 900}),
        "outputs": seen({10: 1_800}), "waits": seen({9: 1_800}), "stays": seen({17: 1_800}),
        "bursts": [{"height": 9.0, "usual": 1.0, "length": 20.0}], "watched": 1_800, "kept": 1_800, "missed": 0,
    }
    rows = [
        {"kind": kind, "name": name, "seen": row} for kind, name in (("class", "interactive"), ("model", "m"))
    ]
    state = {"version": 1, "pools": [{"name": "p", "cost": 0.001, "start": 75.0}], "rows": rows}
    (tmp_path / "demand.json").write_text(json.dumps(state))
    listen, admin = list(elsewhere().values())[:2]
    more = f"server: {{listen: {listen}, admin: {admin}}}\nscale: {{state_file: demand.json}}\n"
    (tmp_path / "penstock.yaml").write_text(ONE + more)
    gateway = start("penstock serve", cwd=tmp_path)
    gateway.wait_for("server started")
    reports = []
    for source in ("--state demand.json", f"--live http://{admin}", "--state demand.json --model m"):
        done = run(f"penstock plan {source} -o json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        reports.append(json.loads(done.stdout))
        measured = reports[-1]["measured"]
        assert reports[-1]["source"]["requests"] == 1_800 and reports[-1]["setting"]["start_s"] == 75
        assert 0.9 < measured["tokens"]["input"] / 400 < 1.1 and reports[-1]["promise"]["holds"]
        assert 16 < measured["queue"]["wait_s"]["p50"] * 1e3 < 24
        assert any("1 burst of more than twice" in note for note in reports[-1]["notes"])
    assert reports[0]["advice"] == reports[1]["advice"]
    other = run("penstock plan --state demand.json --model n", cwd=tmp_path)
    assert other.returncode == 1 and "nothing was seen of `n`, but of: m" in other.stderr
    assert gateway.stop() == 0
