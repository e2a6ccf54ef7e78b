"""Commands that change a gateway, and those that look for what keeps one from working."""

import json
import time

from conftest import free_ports, run, wait_until
from test_commands import ONE


def test_verbs_refuse_with_the_next_step(tmp_path, start):
    listen, admin = free_ports(2)
    (tmp_path / "penstock.yaml").write_text(f"{ONE}server: {{listen: {listen}, admin: {admin}}}\n")
    gateway = start("penstock serve", cwd=tmp_path)
    gateway.wait_for("server started")
    for command, said in {
        "pools cordon q": "there are: p",
        "replicas drain p/http://127.0.0.1:8": "did you mean `p/http://127.0.0.1:9`?",
        "tenants pause default --for soon": "write it like",
        "tenants boost default --by 0": "from 0.01 to 100",
        "explain ../status": "no request `../status` is remembered",
    }.items():
        done = run(f"penstock {command}", PENSTOCK_ADMIN=admin)
        assert (done.returncode, done.stdout) == (1, ""), command
        assert said in done.stderr, done.stderr
    drained = run("penstock replicas drain p/http://127.0.0.1:9 --json", PENSTOCK_ADMIN=admin)
    answer = json.loads(drained.stdout)
    assert answer["after"] == "drain" and "this was the last" in answer["notes"][0]
    status = json.loads(run("penstock status --json", PENSTOCK_ADMIN=admin).stdout)
    assert [row["kind"] for row in status["overrides"]] == ["drain"]
    assert gateway.stop() == 0


def test_doctor_exit_codes(tmp_path, start):
    engine = start("penstock sim-engine --listen 127.0.0.1:0 --model m").wait_for(r"http://\S+").group()
    listen, admin = free_ports(2)
    alive = f"{ONE}server: {{listen: {listen}, admin: {admin}}}\n".replace("http://127.0.0.1:9", engine)
    (tmp_path / "good.yaml").write_text(alive)
    (tmp_path / "other.yaml").write_text(alive.replace("[m]", "[n]"))
    (tmp_path / "lonely.yaml").write_text(alive.replace(engine, "http://127.0.0.1:9"))
    (tmp_path / "bad.yaml").write_text(alive.replace("vllm", "vlmm"))
    expected = {"good.yaml": (0, set()), "other.yaml": (1, {"models"}), "lonely.yaml": (1, {"engines"})}
    for name, (code, failed) in expected.items():
        done = run(f"penstock doctor {name} -o json", cwd=tmp_path)
        found = {row["check"] for row in json.loads(done.stdout) if row["result"] == "failed"}
        assert (done.returncode, found) == (code, failed), done.stdout
        assert run(f"penstock doctor {name}", cwd=tmp_path).returncode == code
    assert run("penstock doctor bad.yaml", cwd=tmp_path).returncode == 1
    assert run("penstock doctor absent.yaml", cwd=tmp_path).returncode == 2


def test_a_drain_waits_for_the_end_of_the_work(tmp_path, start):
    """`drain --wait` gives up after --timeout; without one in reach it ends when the answer has ended, and not before."""
    # Slow enough that the answer takes a while.
    engine = start("penstock sim-engine --listen 127.0.0.1:0 --model m --speed 0.05").wait_for(r"http://\S+").group()
    listen, admin = free_ports(2)
    text = f"{ONE}server: {{listen: {listen}, admin: {admin}}}\n".replace("http://127.0.0.1:9", engine)
    (tmp_path / "penstock.yaml").write_text(text)
    gateway = start("penstock serve", cwd=tmp_path)
    gateway.wait_for("server started")
    body = json.dumps({"model": "m", "stream": True, "max_tokens": 100, "messages": [{"role": "user", "content": "x"}]})
    answer = start(f"curl -sN http://{listen}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'")
    answer.wait_for("^data: ")
    drain = f"penstock replicas drain p/{engine} --wait --admin http://{admin}"

    hasty = run(f"{drain} --timeout 1s")
    assert hasty.returncode == 1 and "1 sequences still run at p/" in hasty.stderr, hasty.stderr
    assert "the drain goes on" in hasty.stderr

    patient = start(drain)
    patient.wait_for("1 sequences still run there; waiting for their end")
    # Several looks at the gateway later the work still runs, and so does the command.
    time.sleep(2)
    assert patient.process.poll() is None and "data: [DONE]" not in answer.output
    assert patient.process.wait(timeout=120) == 0
    # The gateway has relayed everything; curl may need a moment to print it.
    wait_until("the end of the answer", lambda: "data: [DONE]" in answer.output, 2)
    patient.reader.join(timeout=10)
    assert "nothing runs there any more, after" in patient.output
    assert gateway.stop() == 0
