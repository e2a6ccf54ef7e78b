"""Each command by its results, its errors and its exit codes."""

import csv
import http.server
import io
import json
import re
import ssl
import subprocess
import threading

import pytest
from conftest import ROOT, elsewhere, free_ports, run
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
    one = ONE.replace("vllm", "openai, max_seqs: 8")
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
    (tmp_path / "good.yaml").write_text(ONE.replace("vllm", "openai, max_seqs: 8"))
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


def test_serve_without_a_file_says_how_to_make_one(tmp_path):
    done = run("penstock serve", cwd=tmp_path)
    assert done.returncode == 2
    assert "penstock.yaml" in done.stderr and "penstock demo" in done.stderr
    example = re.search(r"\n\n((?:  .*\n)+)\n", done.stderr).group(1)
    (tmp_path / "penstock.yaml").write_text(re.sub("^  ", "", example, flags=re.M))
    assert run("penstock check", cwd=tmp_path).stdout == "penstock.yaml is valid\n"


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
