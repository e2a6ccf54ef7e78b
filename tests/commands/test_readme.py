"""Every command of the README and of the pages under docs, run in order as a reader
would, from the README's own file. A command that is new there is run, too; one that
needs more than a shell has an entry in SPECIAL, and one that needs a situation (engines
that fail, a cluster) is marked in its page, and its words are checked. Output that a page
shows is compared. Beside the commands: every YAML block is a valid configuration, every
JSON block is JSON, and every link and anchor leads somewhere."""

import json
import re
import shutil
import time

import pytest
import reference
import yaml
from conftest import ROOT, Running, elsewhere, free_ports, moved, run, wait_until
from documents import (
    DOCS,
    LANGUAGES,
    all_blocks,
    anchors,
    configs,
    foreign_yaml,
    help_examples,
    is_long_running,
    json_blocks,
    lacks,
    linked_pages,
    links,
    main_config,
    name_of,
    pages,
    shape,
    steps,
    subcommands,
    text_of,
    unknown_words,
)

READY = {
    "demo": r"^Ctrl-C drains and ends\.",
    "serve": r"server started",
    "sim-engine": r"simulated engine on http://",
}


#: What stands for cargo's commands: the binaries are built already.
BUILT_COMMANDS = {
    "cargo build --release": "penstock --version",
    "cargo run --release -p penstock-loadtest -- ": "loadtest ",
    "cargo run --release -- ": "penstock ",
}


def without_cargo(command):
    for cargo, built in BUILT_COMMANDS.items():
        if command.startswith(cargo):
            return built + command.removeprefix(cargo)
    return command


class Reader:
    """Somebody who works through the pages in one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.places = elsewhere()
        self.key = ""
        self.running = []
        self.outputs = {}
        self.config = moved(main_config(), self.places)

    def write_config(self):
        """The README's file with the reader's key, on ports that are free."""
        text = self.config
        if printed := self.outputs.get("penstock keys new"):
            line = re.search(r"- \{id: .*\}", printed).group()
            text = re.sub(r"- \{id: .*\}", lambda _: line, text)
        server = {"listen": self.places["127.0.0.1:8080"], "admin": self.places["127.0.0.1:8081"]}
        (self.folder / "penstock.yaml").write_text(f"{text}\nserver: {json.dumps(server)}\n")

    def run(self, command):
        at_root = command.startswith(("cargo ", "tests/", "docker ")) or " loadtest/" in command or " config/" in command
        folder = ROOT if at_root else self.folder
        # Reports go there; a build has made it already.
        (ROOT / "target").mkdir(exist_ok=True)
        asked = moved(without_cargo(command), self.places)
        if is_long_running(command):
            return self.start(asked, folder)
        done = run(asked, cwd=folder, KEY=self.key, PENSTOCK_ADMIN=self.places["127.0.0.1:8081"])
        assert done.returncode == 0, done.stderr
        self.outputs.setdefault(command, done.stdout)
        # Of several new keys the first one is the reader's.
        if not self.key and (found := re.search(r"^  (pst_\S+)$", done.stdout, re.M)):
            self.key = found.group(1)
        return done.stdout

    def start(self, command, folder):
        again = [one for one in self.running if one.command == command and one.process.poll() is None]
        if again:
            return again[0].output
        name = next(name for name in READY if f" {name}" in command)
        if name == "demo":
            command += f" --listen {self.places['127.0.0.1:8080']} --admin {self.places['127.0.0.1:8081']}"
            command += f" --scale {self.places['127.0.0.1:8082']}"
        started = Running(command, cwd=folder, KEY=self.key)
        started.command = command
        self.running.append(started)
        started.wait_for(READY[name], 600)
        if name == "demo":
            # The next commands need its ports.
            assert started.stop() == 0
        return started.output

    def leave(self):
        codes = [one.stop() for one in reversed(self.running)]
        assert codes == [0] * len(codes)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    reader = Reader(tmp_path_factory.mktemp("readme"))
    yield reader
    reader.leave()


def test_the_runner_tells_of_its_suites():
    """This suite is a part of `tests/run`: here only that it lists its suites."""
    done = run("tests/run no-such-suite")
    assert done.returncode == 2
    suites = {script.stem for script in (ROOT / "tests" / "suites").glob("*.sh")} - {"lib"}
    assert suites == set(done.stderr.split(": ")[-1].split())
    assert suites == set(re.findall(r"^#   tests/run (\w+) +\w", (ROOT / "tests" / "run").read_text(), re.M))


def compose(_reader):
    """test_compose.py runs what is in it; with Docker its own check, too."""
    if shutil.which("docker") and run("docker compose version").returncode == 0:
        done = run("docker compose -f docker/compose.yaml config --quiet")
        assert done.returncode == 0, done.stderr


SPECIAL = {"docker compose -f docker/compose.yaml up --build --wait": compose}

#: What the output of a command must have in it.
SHOWN = {
    "penstock check penstock.yaml": r"penstock.yaml is valid|\"valid\": true",
    "/v1/models": r'"Qwen/Qwen3-8B"',
    '"stream": true': r"data: \[DONE\]",
    "/admin/v1/reload": r'"outcome":"unchanged"',
    "/metrics$": r'penstock_requests_total\{.*outcome="success".*\} [1-9]',
    "/admin/v1/replicas": r'"replicas":\[\{',
    "/admin/v1/queues": r'"queues":',
    "/scale/v1/pools": r'"pool":"qwen"',
    "penstock keda": r"(?s)kind: ScaledObject.*type: external-push",
    "penstock status": r"(?s)^POOL +STATE +IN SERVICE +RUNNING +WAITING +NEEDED +MODELS +SOURCE *$"
    r".*^REPLICA +STATE +RUNNING +READING +KV TOKENS +SPEED +TTFT OF 1000 +ROOM +LESS URGENT *$"
    r".*^qwen/\S+ +serving .*^no overrides are in force$",
    "pools list": r"^qwen +ready +2/2 ",
    "replicas list": r"^qwen/\S+ +serving +\d+/256 ",
    "tenants list": r"^research +1.0 ",
    "replicas drain": r"^qwen/\S+: drain, for 30m; before: as the file says$",
    "replicas uncordon": r": as the file says; before: (drain|spot_notice)$",
    "pools cordon": r"(?s)^qwen: cordon, for 5m.*this was the last.*nothing serves the model Qwen/Qwen3-8B",
    "pools uncordon": r"^qwen: as the file says; before: cordon$",
    "tenants pause": r"^research: pause, for 10m",
    "tenants boost": r"^research: boost x4, for 30m",
    "tenants resume": r"^research: as the file says; before: (pause|boost x4)$",
    "penstock explain": r"(?s)^request hello-1: finished, success, status 200.*try 1 to qwen/.*rule +alone",
    "keys hash": r"^- \{id: \w{8}, digest: \"blake3:[0-9a-f]{64}\"\}$",
    "penstock usage": r"(?s)REQUESTS|requests",
    "penstock --help": r"Usage: penstock <COMMAND>",
    "azure-load.yaml": r"^0\.7 +penstock +\d+",
    "-- plan": r"(?s)^RECOMMENDED$.*^  kept +\d\.\d{3} of requests within objective.*^ +traffic x1\.5 ",
    "burst.yaml": r"^1 +penstock max_seqs=16 +400",
}


#: Commands that only look: what they show may take a moment to come.
LOOKS = r"penstock (status|explain|\w+ list)|curl -s http://127\.0\.0\.1:8081/"


@pytest.mark.parametrize("step", [step for step in steps() if step.runs], ids=lambda step: f"{step.page} {step.command}")
def test_command(reader, step):
    if special := SPECIAL.get(step.command):
        special(reader)
        return
    reader.write_config()
    wrong = what_is_wrong(reader, step)
    # A replica that came back a moment ago starts slowly.
    deadline = time.monotonic() + (15 if re.match(LOOKS, step.command) else 0)
    while wrong and time.monotonic() < deadline:
        time.sleep(0.5)
        wrong = what_is_wrong(reader, step)
    assert not wrong, f"{step.page}: {wrong}"


def what_is_wrong(reader, step):
    """Runs the command; what its output lacks, with the output."""
    output = reader.run(step.command)
    patterns = [pattern for part, pattern in SHOWN.items() if re.search(part, step.command)]
    missing = [pattern for pattern in patterns if not re.search(pattern, output, re.M)]
    missing += lacks(output, [moved(line, reader.places) for line in step.shown])
    return f"the output lacks {missing}:\n{output}" if missing else ""


@pytest.fixture(scope="module")
def known():
    return subcommands()


@pytest.mark.parametrize("step", [step for step in steps() if not step.runs], ids=lambda step: f"{step.page} {step.command}")
def test_command_that_is_not_run(known, step):
    assert unknown_words(step.command, known) == []


def test_shapes():
    """The comparison itself: numbers and times do not matter, words do."""
    assert shape("a  4/4   12.5 ms in 1m57s") == shape("a 0/256 3 us in 3s")
    assert lacks("qwen/http://127.0.0.1:1 serving 0/8", ["qwen/... serving 4/4", "qwen/... ejected 4/4"]) == ["qwen/... ejected 4/4"]


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_blocks_have_a_known_language(page):
    assert {block.language for block in all_blocks(page)} <= LANGUAGES


@pytest.mark.parametrize(("page", "text"), json_blocks(), ids=lambda value: value if len(value) < 60 else "")
def test_json_block_is_json(page, text):
    json.loads(text)


@pytest.mark.parametrize(("page", "text"), foreign_yaml(), ids=lambda value: value if len(value) < 60 else "")
def test_foreign_yaml_is_yaml(page, text):
    yaml.safe_load(text)


def test_hash_is_what_new_printed(reader):
    line = re.search(r"- \{id: .*\}", reader.outputs["penstock keys new"]).group()
    (hashed,) = [text for command, text in reader.outputs.items() if "keys hash" in command]
    assert hashed.strip() == line


def test_readme_file_is_valid(tmp_path):
    (tmp_path / "penstock.yaml").write_text(main_config())
    done = run("penstock check penstock.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "penstock.yaml is valid\n")
    assert yaml.safe_load(main_config())["pools"]


#: The files that the pages' TLS settings name, and what stands for them.
TLS_FILES = {
    "tls.crt": "server.crt", "tls.key": "server.key", "clients.crt": "ca.crt",
    "scale.crt": "server.crt", "scale.key": "server.key", "keda-ca.crt": "ca.crt",
    "engines-ca.crt": "ca.crt", "valkey-ca.crt": "ca.crt", "gateway.crt": "server.crt", "gateway.key": "server.key",
}


@pytest.mark.parametrize(("place", "config"), configs(), ids=lambda value: value if len(value) < 60 else "")
def test_yaml_block_is_valid(place, config, tmp_path):
    for name, fixture in TLS_FILES.items():
        shutil.copy(ROOT / "tests" / "fixtures" / "tls" / fixture, tmp_path / name)
    (tmp_path / "valkey-password").write_text("secret\n")
    (tmp_path / "penstock.yaml").write_text(config)
    done = run("penstock check penstock.yaml", cwd=tmp_path, VLLM_API_KEY="secret")
    assert done.returncode == 0, f"{place}: {done.stdout}"


def asks_a_gateway(command):
    asks = command.split()[1] in (
        "status", "ready", "explain", "why", "pools", "replicas", "tenants", "queues",
        "requests", "tail", "top", "usage", "doctor",
    )
    return asks or "--against" in command


def key_of(folder):
    """Gives the tenant of the folder's file a new key."""
    new = run("penstock keys new").stdout
    line = re.search(r"- \{id: .*\}", new).group()
    file = folder / "penstock.yaml"
    file.write_text(re.sub(r"- \{id: .*\}", lambda _: line, file.read_text()))
    return re.search(r"pst_\S+", new).group()


def remember(listen, key):
    """A request that the gateway has heard of; no engine is there to serve it."""
    body = '{"model": "Qwen/Qwen3-8B", "messages": []}'
    done = run(
        f"curl -s http://{listen}/v1/chat/completions -H 'x-request-id: hello-1' -H 'Authorization: Bearer {key}' "
        f"-H 'x-request-timeout-ms: 300' -H 'Content-Type: application/json' -d '{body}'"
    )
    assert "deadline_unmeetable" in done.stdout, done.stdout


@pytest.mark.parametrize("page", linked_pages(), ids=name_of)
def test_links_lead_somewhere(page):
    broken = []
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert broken == []


def test_the_summary_lists_every_page():
    assert sorted(DOCS.rglob("*.md")) == sorted([*pages()[1:], DOCS / "SUMMARY.md"])


def test_pages_keep_their_bounds():
    lines = {name: len((ROOT / name).read_text().splitlines()) for name in ("README.md", "CONTRIBUTING.md")}
    assert lines["README.md"] <= 250 and lines["CONTRIBUTING.md"] <= 150, lines
    for page in (DOCS / "concepts.md", ROOT / "ARCHITECTURE.md"):
        glossary = page.read_text().partition("## Glossary")[2].partition("\n## ")[0]
        assert 10 < len(re.findall(r"^\| [^-]", glossary, re.M)) - 1 <= 40, page


@pytest.mark.parametrize("page", [page for page in linked_pages() if page.name != "ARCHITECTURE.md"], ids=name_of)
def test_paths_and_metrics_exist(page):
    """What a page names in the source tree is there, and so is every metric."""
    text = text_of(page)
    roots = r"(?:src|tests|loadtest|config|docker|docs|proto)"
    paths = set(re.findall(rf"`({roots}/[\w./-]*)`", text))
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    metrics = set(re.findall(r"`(penstock_[a-z_]*[a-z])`", text))
    assert metrics - set(reference.metric_rows()) == set()


#: Rows of the page about engines, and the abilities in the source.
ABILITIES = {
    "goes on with an answer that another engine began": "Continue",
    "orders its queue by `priority`": "Priority",
    "separates its prefix cache by `cache_salt`": "CacheSalt",
    "counts tokens (`/tokenize`)": "Tokenize",
    "refuses `max_tokens` beyond its window": "CheckMaxTokens",
    "as many choices as `n` says": "ManyChoices",
    "lists every name that it serves": "ListAllNames",
    "tells how many sequences it runs at once": "ReportSlots",
}


def test_the_page_about_engines_has_their_abilities():
    table = (DOCS / "operations/tested-engines.md").read_text().partition("## Which abilities")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    heads, rows = rows[0][1:], {row[0]: row[1:] for row in rows[2:]}
    files = {"TensorRT-LLM": "trtllm", "llama.cpp": "llamacpp"}
    for at, head in enumerate(heads):
        source = (ROOT / f"src/engines/{files.get(head, head.lower())}.rs").read_text()
        here = {row for row in rows if rows[row][at] != "–"}
        known = {row for row, name in ABILITIES.items() if f"Ability::{name}," in source or f"Ability::{name}]" in source}
        if "sleep: None" not in source:
            known.add("sleeps and wakes")
        assert here == known, head


#: Files that examples of the help texts name.
NAMED_FILES = {
    "config.yaml": "model_list: [{model_name: m, litellm_params: {model: hosted_vllm/m, api_base: 'http://127.0.0.1:9/v1'}}]\n",
    "keys.json": json.dumps({"keys": [{"token": "ab" * 32, "team_id": "t"}]}),
    "teams.json": json.dumps([{"team_id": "t", "team_alias": "Search"}]),
    "keys.txt": "sk-Xq3v9TtM0b7eKcYw2LpZ1A\n",
    "manifests.yaml": "kind: InferencePool\nmetadata: {name: p, namespace: models}\nspec: {targetPorts: [{number: 8000}]}\n",
    "nginx.conf": "upstream llm { server 127.0.0.1:9; }\n",
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A record of the demo's load."""
    folder, (listen, admin, scale) = tmp_path_factory.mktemp("replay") / "record", free_ports(3)
    demo = Running(f"penstock demo --load --record {folder} --listen {listen} --admin {admin} --scale {scale}")
    demo.wait_for(READY["demo"])
    wait_until("a record", lambda: sum(file.stat().st_size for file in folder.iterdir()) > 20_000)
    assert demo.stop() == 0
    return folder


@pytest.mark.parametrize("command", help_examples())
def test_help_example(command, tmp_path, start, request):
    """The examples of the help texts run as they are printed."""
    places = elsewhere()
    server = {"listen": places["127.0.0.1:8080"], "admin": places["127.0.0.1:8081"]}
    file = f"{moved(main_config(), places)}\nserver: {json.dumps(server)}\n"
    (tmp_path / "penstock.yaml").write_text(file)
    asked = moved(command, places).replace("/etc/", f"{tmp_path}/etc/")
    asked = asked.replace("/models/llama", str(ROOT / "tests/fixtures/tokenizers/byte-level"))
    prompt = {"messages": [{"role": "user", "content": "how high is the water?"}]}
    (tmp_path / "requests.jsonl").write_text(json.dumps(prompt) + "\n")
    for name, text in {**NAMED_FILES, "new.yaml": file}.items():
        (tmp_path / name).write_text(text)
    for folder in ("etc/penstock", "etc/bash_completion.d"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(tmp_path / "penstock.yaml", tmp_path / "etc/penstock/penstock.yaml")
    (tmp_path / "loadtest").symlink_to(ROOT / "loadtest")
    if command.startswith("penstock replay"):
        shutil.copytree(request.getfixturevalue("recorded"), tmp_path / "record")
    if asks_a_gateway(asked):
        key = key_of(tmp_path)
        if " doctor" in asked:
            # With all engines there, nothing fails.
            for address in (places["127.0.0.1:8001"], places["127.0.0.1:8002"]):
                engine = start(f"penstock sim-engine --listen {address} --model Qwen/Qwen3-8B")
                engine.wait_for(READY["sim-engine"])
        gateway = start("penstock serve", cwd=tmp_path)
        gateway.wait_for(READY["serve"])
        if "usage" in asked:
            gateway.wait_for("usage database takes rows")
        if " explain " in asked or " why " in asked:
            remember(server["listen"], key)
        done = run(asked, cwd=tmp_path, PENSTOCK_ADMIN=server["admin"])
        assert (done.returncode, done.stderr) == (0, "")
        assert gateway.stop() == 0
        return
    if not is_long_running(asked):
        key = re.search(r"pst_\S+", run("penstock keys new").stdout).group()
        done = run(asked, cwd=tmp_path, KEY=key)
        assert done.returncode == 0, done.stderr
        return
    name = next(name for name in READY if f" {name}" in asked)
    if name == "demo":
        asked += f" --listen {server['listen']} --admin {server['admin']}"
    started = start(asked, cwd=tmp_path)
    started.wait_for(READY[name])
    assert started.stop() == 0, started.output
