"""Every command of the README, run in order as a reader would, from the README's
own file. A command that is new there is run, too; one that needs more than a
shell has an entry in SPECIAL."""

import json
import re
import shutil

import pytest
import yaml
from conftest import ROOT, Running, elsewhere, moved, run
from documents import blocks, help_examples, is_long_running, readme_commands

READY = {
    "demo": r"^Ctrl-C drains and ends\.",
    "serve": r"server started",
    "sim-engine": r"simulated engine on http://",
}


class Reader:
    """Somebody who works through the README in one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.places = elsewhere()
        self.key = ""
        self.running = []
        self.outputs = {}
        (config,) = blocks("yaml")
        self.config = moved(config, self.places)

    def write_config(self):
        """The README's file with the reader's key, on ports that are free."""
        text = self.config
        if printed := self.outputs.get("penstock keys new"):
            line = re.search(r"- \{id: .*\}", printed).group()
            text = re.sub(r"- \{id: .*\}", lambda _: line, text)
        server = {"listen": self.places["127.0.0.1:8080"], "admin": self.places["127.0.0.1:8081"]}
        (self.folder / "penstock.yaml").write_text(f"{text}\nserver: {json.dumps(server)}\n")

    def run(self, command):
        at_root = command.startswith(("cargo ", "tests/", "docker "))
        folder = ROOT if at_root else self.folder
        asked = moved(command, self.places)
        if is_long_running(command):
            return self.start(asked, folder)
        done = run(asked, cwd=folder, KEY=self.key, PENSTOCK_ADMIN=self.places["127.0.0.1:8081"])
        assert done.returncode == 0, done.stderr
        self.outputs[command] = done.stdout
        if found := re.search(r"^  (pst_\S+)$", done.stdout, re.M):
            self.key = found.group(1)
        return done.stdout

    def start(self, command, folder):
        name = next(name for name in READY if f" {name}" in command)
        if name == "demo":
            command += f" --listen {self.places['127.0.0.1:8080']} --admin {self.places['127.0.0.1:8081']}"
            command += f" --scale {self.places['127.0.0.1:8082']}"
        started = Running(command, cwd=folder, KEY=self.key)
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


def run_all(_reader):
    """This suite is a part of it: here only that it tells of its suites."""
    done = run("tests/run no-such-suite")
    assert done.returncode == 2
    for script in (ROOT / "tests" / "suites").glob("*.sh"):
        assert script.stem in done.stderr
        assert re.search(rf"^#   tests/run {script.stem} ", (ROOT / "tests" / "run").read_text(), re.M)


def compose(_reader):
    """test_compose.py runs what is in it; with Docker its own check, too."""
    if shutil.which("docker") and run("docker compose version").returncode == 0:
        done = run("docker compose -f docker/compose.yaml config --quiet")
        assert done.returncode == 0, done.stderr


SPECIAL = {"tests/run": run_all, "docker compose -f docker/compose.yaml up --build": compose}

#: What the output of a command must have in it.
SHOWN = {
    "penstock check penstock.yaml": r"penstock.yaml is valid",
    "/v1/models": r'"Qwen/Qwen3-8B"',
    "/v1/chat/completions": r"data: \[DONE\]",
    "/admin/v1/reload": r'"outcome":"unchanged"',
    "/metrics": r'penstock_requests_total\{.*outcome="success".*\} 1',
    "/admin/v1/replicas": r'"replicas":\[\{',
    "/admin/v1/queues": r'"queues":',
    "/scale/v1/pools": r'"pool":"qwen"',
    "penstock keda": r"(?s)kind: ScaledObject.*type: external-push",
    "penstock status": r"(?s)^POOL +STATE.*^qwen/\S+ +serving .*^no overrides are in force$",
    "pools list": r"^qwen +ready +2/2 ",
    "replicas list": r"^qwen/\S+ +serving +\d+/256 ",
    "tenants list": r"^research +1.0 ",
    "replicas drain": r"^qwen/\S+: drain, for 30m; before: as the file says$",
    "replicas uncordon": r": as the file says; before: drain$",
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


@pytest.mark.parametrize("command", readme_commands())
def test_command(reader, command):
    if special := SPECIAL.get(command):
        return special(reader)
    reader.write_config()
    output = reader.run(command)
    for part, pattern in SHOWN.items():
        if part in command:
            assert re.search(pattern, output, re.M), output


def test_hash_is_what_new_printed(reader):
    line = re.search(r"- \{id: .*\}", reader.outputs["penstock keys new"]).group()
    (hashed,) = [text for command, text in reader.outputs.items() if "keys hash" in command]
    assert hashed.strip() == line


def test_readme_file_is_valid(tmp_path):
    (config,) = blocks("yaml")
    (tmp_path / "penstock.yaml").write_text(config)
    done = run("penstock check penstock.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "penstock.yaml is valid\n")
    assert yaml.safe_load(config)["pools"]


def asks_a_gateway(command):
    asks = command.split()[1] in ("status", "explain", "pools", "replicas", "tenants", "usage")
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


def test_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    missing = [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (ROOT / link).exists()]
    assert missing == []


@pytest.mark.parametrize("command", help_examples())
def test_help_example(command, tmp_path, start):
    """The examples of the help texts run as they are printed."""
    places = elsewhere()
    (config,) = blocks("yaml")
    server = {"listen": places["127.0.0.1:8080"], "admin": places["127.0.0.1:8081"]}
    file = f"{moved(config, places)}\nserver: {json.dumps(server)}\n"
    (tmp_path / "penstock.yaml").write_text(file)
    asked = moved(command, places).replace("/etc/", f"{tmp_path}/etc/")
    asked = asked.replace("/models/llama", str(ROOT / "tests/fixtures/tokenizers/byte-level"))
    request = {"messages": [{"role": "user", "content": "how high is the water?"}]}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request) + "\n")
    for folder in ("etc/penstock", "etc/bash_completion.d"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(tmp_path / "penstock.yaml", tmp_path / "etc/penstock/penstock.yaml")
    (tmp_path / "loadtest").symlink_to(ROOT / "loadtest")
    if asks_a_gateway(asked):
        key = key_of(tmp_path)
        gateway = start("penstock serve", cwd=tmp_path)
        gateway.wait_for(READY["serve"])
        if "usage" in asked:
            gateway.wait_for("usage database takes rows")
        if "explain" in asked:
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
