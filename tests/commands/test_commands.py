"""Each command by its results, its errors and its exit codes."""

import csv
import http.server
import io
import json
import os
import pty
import re
import signal
import ssl
import subprocess
import threading
import time

import pytest
from conftest import ROOT, elsewhere, environment, free_ports, run, wait_until
from documents import subcommands

HERE = ROOT / "tests" / "commands"
FILES = sorted(
    [*(ROOT / "config").glob("*.yaml"), *(ROOT / "config" / "examples").glob("*.yaml"), ROOT / "docker" / "penstock.yaml"]
)

ONE = """version: 1
auth: {mode: off}
pools: {p: {engine: vllm, models: [m], replicas: [http://127.0.0.1:9]}}
"""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_check_accepts_our_files(file):
    done = run(f"penstock check {file}")
    assert done.returncode == 0, done.stdout
    assert "error" not in done.stdout
    if file.parts[-2] in ("config", "examples"):
        assert done.stdout == f"{file} is valid\n"


def test_check_exit_codes(tmp_path):
    (tmp_path / "good.yaml").write_text(ONE)
    (tmp_path / "bad.yaml").write_text(ONE.replace("vllm", "vlmm"))
    (tmp_path / "warned.yaml").write_text(f"{ONE}server: {{admin: 0.0.0.0:8081}}\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.yaml").write_text("")
    expected = {
        "good.yaml": (0, True, "good.yaml is valid"),
        "warned.yaml": (0, True, "warned.yaml is valid, with 1 warning"),
        "bad.yaml": (1, False, "bad.yaml has 1 error"),
        "empty.yaml": (1, False, "empty.yaml has 3 errors"),
        "binary.yaml": (2, False, "error: cannot be read"),
        "absent.yaml": (2, False, "error: cannot be read"),
        ".": (2, False, "error: cannot be read"),
    }
    for name, (code, valid, said) in expected.items():
        text = run(f"penstock check {name}", cwd=tmp_path)
        assert (text.returncode, text.stderr) == (code, ""), name
        assert said in text.stdout, text.stdout
        as_json = run(f"penstock check {name} -o json", cwd=tmp_path)
        report = json.loads(as_json.stdout)
        assert (as_json.returncode, report["valid"]) == (code, valid), name
        assert all(problem["message"] for problem in report["problems"])
        as_csv = run(f"penstock check {name} -o csv", cwd=tmp_path)
        rows = list(csv.DictReader(io.StringIO(as_csv.stdout)))
        assert as_csv.returncode == code
        assert [(row["severity"], row["path"], row["message"]) for row in rows] == [
            (problem["severity"], problem["path"], problem["message"]) for problem in report["problems"]
        ]
        github = run(f"penstock check {name} --output github", cwd=tmp_path)
        assert github.returncode == code
        assert github.stdout.count("::error ") == text.stdout.count("error: ")


def test_check_reads_standard_input_and_files_for_elsewhere(tmp_path):
    config = ONE.replace("models: [m]", "models: [m], api_key: {env: PENSTOCK_NO_SUCH_VARIABLE}")
    config += "server: {tls: {cert: none.crt, key: none.key}}\nusage: {folder: none/usage}\n"
    config += "x-anchors: {a: &a 1}\nqueue: {requests: *a}\n"
    bare = run("penstock check -", stdin=config, cwd=tmp_path)
    assert bare.returncode == 1 and "standard input has 4 errors" in bare.stdout, bare.stdout
    offline = run("penstock check - --offline", stdin=config, cwd=tmp_path)
    assert offline.returncode == 0 and offline.stdout.count("not here, so not checked") == 4, offline.stdout
    wrong = run("penstock check --offline -", stdin=config.replace("vllm", "vlmm"), cwd=tmp_path)
    assert wrong.returncode == 1 and "did you mean" in wrong.stdout


def test_variables_are_not_expanded_and_said_so(tmp_path):
    (tmp_path / "penstock.yaml").write_text(ONE.replace("http://127.0.0.1:9", "'${ENGINE_URL}'"))
    done = run("penstock check", cwd=tmp_path, ENGINE_URL="http://127.0.0.1:9")
    assert done.returncode == 1 and "variables are not expanded" in done.stdout
    (tmp_path / "penstock.yaml").write_text(ONE.replace("[m]", "['${MODEL}']"))
    done = run("penstock check", cwd=tmp_path)
    assert done.returncode == 0 and "`${MODEL}` is taken as it stands" in done.stdout


def test_check_warns_about_keys_that_end(tmp_path):
    digest = "blake3:" + "1" * 64
    config = ONE.replace("auth: {mode: off}\n", "")
    config += f"tenants: {{red: {{keys: [{{id: aaaaaaaa, digest: '{digest}', expires: 2001-01-31}}]}}}}\n"
    (tmp_path / "penstock.yaml").write_text(config)
    done = run("penstock check", cwd=tmp_path)
    assert done.returncode == 0 and "`aaaaaaaa` ended at 2001-01-31T00:00:00Z" in done.stdout, done.stdout


def test_check_reads_key_files_beside_the_file(tmp_path):
    digest = "blake3:" + "1" * 64
    keys = tmp_path / "etc" / "keys"
    keys.mkdir(parents=True)
    config = ONE.replace("auth: {mode: off}\n", "auth: {keys_dir: keys}\ntenants: {red: {}}\n")
    (tmp_path / "etc" / "penstock.yaml").write_text(config)
    (keys / "red.yaml").write_text(f"tenant: red\nkeys: [{{id: aaaaaaaa, digest: '{digest}'}}]\n")
    done = run("penstock check etc/penstock.yaml", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.endswith("\netc/penstock.yaml is valid\n"), done.stdout
    (keys / "broken").write_text("tenant: red\nkyes: []\n")
    done = run("penstock check etc/penstock.yaml", cwd=tmp_path)
    assert done.returncode == 0 and "kyes: unknown key" in done.stdout and "the other files do" in done.stdout, done.stdout


def test_config_explain(tmp_path):
    (tmp_path / "penstock.yaml").write_text(ONE.replace("models: [m]", "models: [m], max_seqs: 7"))
    done = run("penstock config explain pools.p.max_seqs --config penstock.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in ("pools.*.max_seqs\n", "--max-num-seqs", "1 or more", "takes effect at once", "here      7",
                 "docs/reference/configuration.md#poolsmax_seqs"):
        assert said in done.stdout, done.stdout
    grace = run("penstock config explain server.drain_grace").stdout
    assert "default   1m" in grace and "at the next start" in grace, grace
    wrong = run("penstock config explain pools.p.max_seq")
    assert wrong.returncode == 1 and "did you mean `max_seqs`?" in wrong.stderr


def test_each_link_of_the_checker_leads_somewhere(tmp_path):
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    headings = re.findall(r"^#+ (.+)$", page, re.M)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    linked = set()
    for file in sorted((HERE / "broken").glob("*.yaml")):
        report = json.loads(run(f"penstock check {file} -o json").stdout)
        linked |= {problem["see"].partition("#")[2] for problem in report["problems"] if "see" in problem}
    schema = json.loads((ROOT / "config" / "schema.json").read_text())
    for section in schema["properties"]:
        linked.add(re.search(r"configuration.md#(\S+)", run(f"penstock config explain {section}").stdout).group(1))
    assert len(linked) > 20 and linked <= anchors, linked - anchors


def test_diff_says_who_gains_and_loses(tmp_path):
    old = f"{ONE}tenants: {{red: {{weight: 1}}, blue: {{weight: 1}}}}\n".replace("mode: off", "mode: off, tenant: red")
    new = old.replace("red: {weight: 1}", "red: {weight: 3, models: [m]}") + "server: {drain_grace: 5s}\n"
    (tmp_path / "old.yaml").write_text(old)
    (tmp_path / "new.yaml").write_text(new)
    done = run("penstock diff old.yaml new.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "red: gains: 50.0 % -> 75.0 % of the work" in done.stdout
    assert "blue: loses: 50.0 % -> 25.0 % of the work" in done.stdout
    at_once, restart = done.stdout.split("at the next start\n")
    assert "tenants.red.weight: 1.0 -> 3.0" in at_once and "server.drain_grace" in restart
    as_json = json.loads(run("penstock diff old.yaml new.yaml -o json", cwd=tmp_path).stdout)
    assert as_json["tenants"].keys() == {"red", "blue"}
    (tmp_path / "same.yaml").write_text(old)
    assert run("penstock diff old.yaml same.yaml", cwd=tmp_path).stdout == "nothing changes\n"
    (tmp_path / "bad.yaml").write_text(old.replace("vllm", "vlmm"))
    bad = run("penstock diff old.yaml bad.yaml", cwd=tmp_path)
    assert bad.returncode == 1 and "bad.yaml has errors" in bad.stderr


class Measured(http.server.BaseHTTPRequestHandler):
    """An admin port whose pool has shown what it can do."""

    BEST = {"ttft_seconds": 0.18, "first_tokens": 1200, "itl_seconds": 0.004, "gaps": 90000,
            "read_tokens_per_second": 21000}

    def do_GET(self):
        body = json.dumps({"pools": [{"pool": "p", "best": self.BEST}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_check_holds_promises_against_what_a_gateway_measured(tmp_path):
    one = ONE.replace("vllm", "openai")
    (tmp_path / "good.yaml").write_text(one)
    (tmp_path / "bold.yaml").write_text(f"{one}classes: {{fast: {{ttft: 100ms, itl: 5ms}}}}\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Measured) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        good = run(f"penstock check good.yaml --against {url}", cwd=tmp_path)
        bold = run(f"penstock check bold.yaml --against {url}", cwd=tmp_path)
        server.shutdown()
    assert (good.returncode, good.stdout) == (0, "good.yaml is valid\n")
    assert bold.returncode == 0 and "classes.fast.ttft: 100ms is promised" in bold.stdout, bold.stdout
    assert "the shortest first token of 1200 is 180ms, at the pool `p`" in bold.stdout
    assert bold.stdout.count("warning") == 2 and bold.stdout.endswith("valid, with 1 warning\n")
    (nobody,) = free_ports(1)
    lost = run(f"penstock check good.yaml --against http://{nobody}", cwd=tmp_path)
    assert lost.returncode == 1 and "no gateway answers at" in lost.stderr


class Guarded(Measured):
    """One that asks for an operator's token."""

    def do_GET(self):
        if self.headers["authorization"] != "Bearer right":
            self.send_error(401)
        else:
            super().do_GET()


def test_check_gets_into_a_guarded_admin_port(tmp_path):
    files = ROOT / "tests" / "fixtures" / "tls"
    (tmp_path / "good.yaml").write_text(ONE.replace("vllm", "openai"))
    (tmp_path / "token").write_text("right\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.crt", files / "server.key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        check = f"penstock check good.yaml --against https://127.0.0.1:{server.server_address[1]}"
        good, stranger, nobody = (
            run(f"{check} {options}", cwd=tmp_path)
            for options in (
                f"--ca {files}/ca.crt --token-file token",
                f"--ca {files}/other.crt --token-file token",
                f"--ca {files}/ca.crt",
            )
        )
        server.shutdown()
    assert (good.returncode, good.stdout) == (0, "good.yaml is valid\n"), good.stderr
    assert stranger.returncode == 1 and "--ca names its certificate's authorities" in stranger.stderr
    assert nobody.returncode == 1 and "401" in nobody.stderr
    lone = run("penstock check good.yaml --token-file token", cwd=tmp_path)
    assert lone.returncode == 1 and "--against says which" in lone.stderr


@pytest.mark.parametrize("name", ["fields", "syntax", "references"])
def test_broken_files_look_right(name):
    done = run(f"penstock check {name}.yaml", cwd=HERE / "broken")
    assert done.returncode == 1
    assert done.stdout == (HERE / "broken" / f"{name}.txt").read_text()


def test_schema_is_the_one_in_the_tree():
    assert run("penstock schema").stdout == (ROOT / "config" / "schema.json").read_text()


def test_output_formats_and_their_older_names(tmp_path):
    """`-o`, and the flags that it took the place of: both say the same, and --help shows one of them."""
    (tmp_path / "a.yaml").write_text(ONE)
    (tmp_path / "b.yaml").write_text(ONE.replace("[m]", "[m, n]"))
    (tmp_path / "nginx.conf").write_text("upstream llm { server 127.0.0.1:9; }\n")
    rows = [f"{at},300,20" for at in range(300)]
    (tmp_path / "calls.csv").write_text("\n".join(["t_s,in_tokens,out_tokens", *rows]))
    secret = "sk-00Xq3v9TtM0b7eKcYw2LpZ"
    for command, newer, older in (
        ("check a.yaml", "-o json", "--format json"),
        ("check a.yaml", "-o table", "--format text"),
        ("diff a.yaml b.yaml", "-o json", "--json"),
        ("keys hash", "-o json", "--json"),
        ("plan calls.csv --quiet", "-o json", "--json"),
    ):
        new, old = (run(f"penstock {command} {flags}", cwd=tmp_path, stdin=secret) for flags in (newer, older))
        assert (new.returncode, new.stdout) == (0, old.stdout), new.stderr
        assert new.stdout.startswith("a.yaml is valid") or json.loads(new.stdout), new.stdout
        words = command.split()[: 1 + command.startswith("keys")]
        shown = subcommands(tuple(words))[tuple(words)]
        assert "--output <FORMAT>" in shown and "--json" not in shown and "--format" not in shown
    assert json.loads(run("penstock keys new --json").stdout).keys() == {"key", "id", "digest"}
    wrong = run("penstock diff a.yaml b.yaml -o csv", cwd=tmp_path)
    assert wrong.returncode == 2 and "table, json" in wrong.stderr
    assert run("penstock diff a.yaml b.yaml -o table --json", cwd=tmp_path).returncode == 2, "one of both"

    # `-o` of import is the file that it writes.
    imports = "penstock import nginx nginx.conf --model m"
    new, old = (run(f"{imports} {flags} -o {number}.yaml", cwd=tmp_path)
                for number, flags in enumerate(("--report json", "--json")))
    assert (new.returncode, new.stdout) == (0, old.stdout) and json.loads(new.stdout)["rows"], new.stderr
    assert (tmp_path / "0.yaml").read_text() == (tmp_path / "1.yaml").read_text()


def test_keys(tmp_path):
    new = run("penstock keys new").stdout
    key = re.search(r"^  (pst_\S+)$", new, re.M).group(1)
    line = re.search(r"^  (- \{id: .*\})$", new, re.M).group(1)
    assert run("penstock keys new").stdout != new
    for stdin in (key, f"{key}\n", f"  {key} \r\n"):
        assert run("penstock keys hash", stdin=stdin).stdout == f"{line}\n"
    config = f"{ONE}tenants: {{red: {{keys: [{line[2:]}]}}}}\n".replace("auth: {mode: off}\n", "")
    (tmp_path / "penstock.yaml").write_text(config)
    assert run("penstock check", cwd=tmp_path).returncode == 0
    for stdin in ("", "sk-other", key[:24], f"{key} {key}", "hunter2 " * 5, "a" * 40):
        wrong = run("penstock keys hash", stdin=stdin)
        assert wrong.returncode == 1 and "penstock keys new" in wrong.stderr
        assert key[14:24] not in wrong.stderr
    made = json.loads(run("penstock keys new -o json").stdout)
    assert made["id"] in made["key"] and made["digest"].startswith("blake3:")


def test_keys_of_other_gateways(tmp_path):
    secrets = [f"sk-{number:02}Xq3v9TtM0b7eKcYw2LpZ" for number in range(3)]
    hashed = run("penstock keys hash", stdin="\n".join(secrets))
    assert hashed.returncode == 0 and "keeps only a random secret" in hashed.stderr
    lines = hashed.stdout.splitlines()
    assert len(set(lines)) == 3 and not any(secret in hashed.stdout for secret in secrets)
    as_json = run("penstock keys hash -o json", stdin=secrets[0]).stdout
    assert json.loads(as_json)["id"] in lines[0]
    as_csv = list(csv.DictReader(io.StringIO(run("penstock keys hash -o csv", stdin="\n".join(secrets)).stdout)))
    assert [f'- {{id: {row["id"]}, digest: "{row["digest"]}"}}' for row in as_csv] == lines
    entries = ", ".join(line[2:] for line in lines)
    config = f"{ONE}tenants: {{red: {{keys: [{entries}]}}}}\n".replace("auth: {mode: off}\n", "")
    (tmp_path / "penstock.yaml").write_text(config)
    assert run("penstock check", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, tmp_path):
    script = run(f"penstock completion {shell}").stdout
    assert f"PENSTOCK_COMPLETE={shell}" in script.replace('"', "")
    # The script asks the program, as fish's does here.
    assert run("PENSTOCK_COMPLETE=fish penstock -- penstock sim-e").stdout.startswith("sim-engine")
    if shell == "bash":
        (tmp_path / "penstock.bash").write_text(script)
        offered = run(
            "source ./penstock.bash; COMP_WORDS=(penstock ch); COMP_CWORD=1; "
            '_penstock penstock ch penstock; echo "${COMPREPLY[@]}"', cwd=tmp_path,
        )
        assert offered.stdout == "check\n", offered.stderr


def test_version():
    manifest = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.*)"$', manifest, re.M).group(1)
    assert run("penstock --version").stdout == f"penstock {version}\n"


def test_a_closed_pipe_is_no_error():
    for command in ("penstock schema", "penstock completion bash"):
        done = run(f"set -o pipefail; {command} | head -1")
        assert (done.returncode, done.stderr) == (0, ""), command


def test_every_command_explains_itself():
    texts = subcommands()
    assert {("serve",), ("demo",), ("check",), ("schema",), ("keys", "new"), ("sim-engine",)} <= texts.keys()
    assert {("status",), ("explain",), ("pools", "drain"), ("replicas", "list"), ("tenants", "pause")} <= texts.keys()
    for words, text in texts.items():
        assert "Usage: penstock" in text
        assert max(map(len, text.splitlines())) <= 100, words
        options = re.findall(r"^ +(-\w, )?--([\w-]+)(.*)$", text, re.M)
        assert options


def test_wrong_usage_is_exit_code_2():
    for command in ("penstock", "penstock chekc", "penstock serve --port 1", "penstock demo --listen x"):
        assert run(command).returncode == 2


def test_commands_that_ask_a_gateway_say_when_there_is_none():
    (admin,) = free_ports(1)
    for command in ("status", "explain x", "pools list", "replicas drain x", "tenants pause x --for 1m"):
        done = run(f"penstock {command} --admin http://{admin}")
        assert (done.returncode, done.stdout) == (1, ""), command
        assert f"no gateway answers at http://{admin}" in done.stderr and "PENSTOCK_ADMIN" in done.stderr


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


def test_serve_without_a_file_says_how_to_make_one(tmp_path):
    done = run("penstock serve", cwd=tmp_path)
    assert done.returncode == 2
    assert "penstock.yaml" in done.stderr and "penstock demo" in done.stderr
    example = re.search(r"\n\n((?:  .*\n)+)\n", done.stderr).group(1)
    (tmp_path / "penstock.yaml").write_text(re.sub("^  ", "", example, flags=re.M))
    assert run("penstock check", cwd=tmp_path).stdout == "penstock.yaml is valid\n"


def shown_on_a_terminal(command, until, cwd, **env):
    """All that a command writes to a terminal. It is told to end when it has written `until`."""
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=cwd, env=environment(**env), stdin=subprocess.DEVNULL,
        stdout=inside, stderr=inside,
    )
    os.close(inside)
    text, told = b"", False
    while True:
        try:
            text += os.read(terminal, 65_536)
        except OSError:
            # So ends a terminal whose other side is closed.
            break
        if until in text.decode(errors="replace") and not told:
            process.send_signal(signal.SIGINT)
            told = True
    os.close(terminal)
    process.wait(timeout=90)
    return text.decode()


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_is_respected(tmp_path, no_color):
    """By the log for people; `top` and clap's texts have colours, too."""
    listen, admin = free_ports(2)
    (tmp_path / "penstock.yaml").write_text(
        f"{ONE}server: {{listen: {listen}, admin: {admin}}}\ntelemetry: {{log: {{format: text}}}}\n"
    )
    log = shown_on_a_terminal("penstock serve", "server started", tmp_path, NO_COLOR=no_color)
    assert "server started" in log and ("\x1b[" in log) == (no_color == ""), log
    if no_color:
        for command in ("--help", "chekc", "check absent.yaml", "check", "pools list"):
            text = shown_on_a_terminal(f"penstock {command}", "\0", tmp_path, NO_COLOR=no_color, PENSTOCK_ADMIN=admin)
            assert text and "\x1b[" not in text, text


def test_serve_refuses_a_broken_file(tmp_path):
    (tmp_path / "penstock.yaml").write_text(ONE.replace("vllm", "vlmm"))
    done = run("penstock serve", cwd=tmp_path)
    assert done.returncode == 1
    assert "did you mean" in done.stderr and "penstock.yaml:3" in done.stderr


def test_serve_names_what_it_cannot_have(tmp_path, start):
    places = elsewhere()
    listen, admin, other = list(places.values())[:3]

    def config(listen, admin, more=""):
        (tmp_path / "penstock.yaml").write_text(f"{ONE}server: {{listen: {listen}, admin: {admin}}}\n{more}")

    config(listen, admin)
    first = start("penstock serve", cwd=tmp_path)
    first.wait_for("server started")
    for taken, field in (((listen, other), "server.listen"), ((other, admin), "server.admin")):
        config(*taken)
        done = run("penstock serve", cwd=tmp_path)
        assert done.returncode == 1
        assert field in done.stderr and "another program listens there" in done.stderr
    config(listen, admin)
    assert first.stop() == 0


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("{file: nowhere/key}", "nowhere/key"),
        ("{env: PENSTOCK_NO_SUCH_VARIABLE}", "PENSTOCK_NO_SUCH_VARIABLE"),
    ],
)
def test_unreadable_secrets_are_named(tmp_path, secret, said):
    text = ONE.replace("models: [m]", f"models: [m], api_key: {secret}")
    (tmp_path / "penstock.yaml").write_text(text)
    done = run("penstock check", cwd=tmp_path)
    assert done.returncode == 1
    assert said in done.stdout and "pools.p.api_key" in done.stdout
    assert "  = " in done.stdout, "says what to do"


def test_sim_engine_names_what_is_wrong(start):
    engine = start("penstock sim-engine --listen 127.0.0.1:0")
    address = engine.wait_for(r"http://(\S+)").group(1)
    busy = run(f"penstock sim-engine --listen {address}")
    assert busy.returncode == 1 and "another program listens there" in busy.stderr
    profile = run("penstock sim-engine --profile h200")
    assert profile.returncode == 1 and "h100-8b" in profile.stderr
    key = run("penstock sim-engine --api-key-env PENSTOCK_NO_SUCH_VARIABLE")
    assert key.returncode == 1 and "PENSTOCK_NO_SUCH_VARIABLE" in key.stderr
    models = subprocess.run(
        ["curl", "-s", f"http://{address}/v1/models"], text=True, capture_output=True, check=True
    )
    assert '"sim"' in models.stdout
    assert engine.stop() == 0


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
