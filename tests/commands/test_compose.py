"""What the container files ask of the binary and of the tree."""

import fnmatch
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import urllib.error

import pytest
import yaml
from conftest import ROOT, free_ports, get, run, wait_until

COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
OURS = {name: row for name, row in COMPOSE["services"].items() if row["image"].startswith("penstock")}
DEMO_KEY = re.search(r"pst_\w+", (ROOT / "docker" / "penstock.yaml").read_text()).group()


def test_services_start_with_their_commands(start, tmp_path):
    """Every service's command line, on loopback ports in place of the
    network's names."""
    engines = {}
    for name, row in OURS.items():
        if row["command"][0] == "sim-engine":
            words = [re.sub(r"^0\.0\.0\.0:8000$", "127.0.0.1:0", word) for word in row["command"]]
            assert words != row["command"], "engines listen on all interfaces, port 8000"
            engine = start(shlex.join(["penstock", *words]))
            engines[f"{name}:8000"] = engine.wait_for(r"http://(\S+)").group(1)
    assert len(engines) == 2

    listen, admin = free_ports(2)
    config = (ROOT / "docker" / "penstock.yaml").read_text()
    for there, here in {**engines, "0.0.0.0:8080": listen, "0.0.0.0:8081": admin}.items():
        assert there in config
        config = config.replace(there, here)
    (tmp_path / "penstock.yaml").write_text(config)
    command = OURS["gateway"]["command"]
    mounted = OURS["gateway"]["volumes"][0].split(":")[1]
    assert mounted in command
    words = [str(tmp_path / "penstock.yaml") if word == mounted else word for word in command]
    gateway = start(shlex.join(["penstock", *words]))
    gateway.wait_for("server started")

    comment = re.search(r"^#   (curl .*?[^\\])$", (ROOT / "docker" / "compose.yaml").read_text(), re.S | re.M)
    curl = re.sub(r"^#", "", comment.group(1), flags=re.M).replace("127.0.0.1:8080", listen)
    done = run(curl)
    assert done.stdout.rstrip().endswith("data: [DONE]"), done.stdout + done.stderr
    assert gateway.stop() == 0

    for target in ("gateway:8081",):
        assert target in (ROOT / "docker" / "prometheus.yml").read_text()


def test_demo_key_is_the_one_in_the_file():
    hashed = run("penstock keys hash", stdin=DEMO_KEY).stdout
    stored = yaml.safe_load((ROOT / "docker" / "penstock.yaml").read_text())["tenants"]["demo"]["keys"][0]
    (row,) = yaml.safe_load(hashed)
    assert (row["id"], row["digest"]) == (stored["id"], stored["digest"])
    assert DEMO_KEY in (ROOT / "docker" / "compose.yaml").read_text()


def test_ports_agree():
    config = yaml.safe_load((ROOT / "docker" / "penstock.yaml").read_text())["server"]
    assert config["listen"].startswith("0.0.0.0:") and config["admin"].startswith("0.0.0.0:")
    ports = [config["listen"].split(":")[1], config["admin"].split(":")[1]]
    exposed = re.search(r"^EXPOSE (.*)$", (ROOT / "docker" / "Dockerfile").read_text(), re.M).group(1)
    assert exposed.split() == ports
    assert OURS["gateway"]["ports"] == [f"127.0.0.1:{port}:{port}" for port in ports]


def test_grace_outlasts_the_drain():
    effective = run("penstock check docker/penstock.yaml")
    assert effective.returncode == 0
    allowed = int(COMPOSE["services"]["gateway"]["stop_grace_period"].removesuffix("s"))
    assert allowed >= 60 + 5, "server.drain_grace is one minute by default"


def test_prometheus_file_is_valid():
    done = subprocess.run(
        ["promtool", "check", "config", ROOT / "docker" / "prometheus.yml"],
        text=True, capture_output=True, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """The files that `docker build` sees."""
    rules = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [rule.strip() for rule in rules if rule.strip() and not rule.startswith("#")]

    def admitted(path):
        seen = True
        for rule in rules:
            pattern = rule.removeprefix("!")
            parents = [path, *map(str, pathlib.PurePath(path).parents)]
            if any(fnmatch.fnmatch(part, pattern) for part in parents):
                seen = rule.startswith("!")
        return seen

    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True)
    folder = tmp_path_factory.mktemp("context")
    for path in filter(admitted, listed.stdout.splitlines()):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    return folder


def test_image_builds_from_what_is_admitted(context):
    """The manifests hold, and every file that the program embeds is there."""
    done = run("cargo metadata --locked --offline --no-deps --format-version 1", cwd=context)
    assert done.returncode == 0, done.stderr
    packages = json.loads(done.stdout)["packages"]
    targets = [pathlib.Path(target["src_path"]) for package in packages for target in package["targets"]]
    assert [str(path) for path in targets if not path.is_relative_to(context) or not path.exists()] == []
    assert any("penstock" == target["name"] for package in packages for target in package["targets"])
    missing = []
    for source in context.rglob("*.rs"):
        code = re.split(r"^#\[cfg\(test\)\]\nmod \w+ \{", source.read_text(), flags=re.M)[0]
        for name in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', code):
            if not (source.parent / name).exists():
                missing.append(f"{source.relative_to(context)}: {name}")
    assert missing == []
    assert (context / "src/sim/engine/profiles.json").exists()


def test_admin_answers_while_it_serves(start, tmp_path):
    """The routes that orchestrators and people use, of a gateway that drains
    at the end."""
    listen, admin = free_ports(2)
    (tmp_path / "penstock.yaml").write_text(
        "version: 1\nauth: {mode: off}\n"
        f"server: {{listen: {listen}, admin: {admin}}}\n"
        "usage: {folder: usage}\n"
        "pools: {p: {engine: vllm, models: [m], replicas: [http://127.0.0.1:9]}}\n"
    )
    gateway = start("penstock serve", cwd=tmp_path)
    gateway.wait_for("usage database takes rows")
    gateway.wait_for("server started")
    index = get(f"http://{admin}/")
    routes = re.findall(r"^(GET|POST) +(/\S*)", index, re.M)
    shown = (ROOT / "docs" / "reference" / "admin-api.md").read_text()
    for method, route in routes:
        if route != "/healthz":
            assert f"`{method} {route}" in shown, f"{route} is not in docs/reference/admin-api.md"
        if method == "GET" and "{" not in route:
            assert get(f"http://{admin}{route}")
    assert gateway.stop() == 0

    def gone():
        try:
            return not get(f"http://{admin}/livez")
        except urllib.error.URLError:
            return True

    wait_until("end of the admin port", gone)
