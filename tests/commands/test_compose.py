"""What the container files ask of the binary and of the tree."""

import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import urllib.error

import pytest
import yaml
from conftest import BIN, BIN_DIR, ROOT, free_ports, get, run, wait_until

COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
OURS = {name: row for name, row in COMPOSE["services"].items() if row["image"].startswith("penstock")}
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
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



def test_health_checks_say_when_a_service_is_ready(start, tmp_path):
    """Those of the gateway and of the engines, against the services themselves."""
    listen, admin = free_ports(2)
    engine = start("penstock sim-engine --listen 127.0.0.1:0 --model sim").wait_for(r"http://(\S+)").group(1)
    check = OURS["engine-a"]["healthcheck"]["test"]
    assert check[0] == "CMD" and check[1] == "/usr/local/bin/penstock"
    words = [word.replace("127.0.0.1:8000", engine) for word in check[2:]]
    assert words != check[2:]
    assert run(shlex.join(["penstock", *words])).returncode == 0

    (tmp_path / "penstock.yaml").write_text(
        f"version: 1\nauth: {{mode: off}}\nserver: {{listen: {listen}, admin: {admin}}}\n"
        f"pools: {{p: {{engine: vllm, models: [sim], replicas: [http://{engine}]}}}}\n"
    )
    check = OURS["gateway"]["healthcheck"]["test"]
    assert check == ["CMD", "/usr/local/bin/penstock", "ready"]
    from_image = re.search(r"^HEALTHCHECK .*\n +CMD (\[.*\])$", DOCKERFILE, re.M).group(1)
    assert json.loads(from_image) == check[1:]
    here = {"PENSTOCK_ADMIN": f"http://{admin}"}
    done = run("penstock ready", **here)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"nobody answers at http://{admin}/readyz" in done.stderr
    gateway = start("penstock serve", cwd=tmp_path)
    gateway.wait_for("server started")
    wait_until("readiness", lambda: run("penstock ready", **here).stdout == "ready\n")

    done = run(f"penstock ready http://{admin}/admin/v1/nothing")
    assert done.returncode == 1 and "answers 404" in done.stderr
    assert gateway.stop() == 0
    assert run("penstock ready", **here).returncode == 1


def test_services_wait_for_each_other():
    for name, row in COMPOSE["services"].items():
        assert row["healthcheck"]["test"][0] == "CMD", name
        for needed, how in row.get("depends_on", {}).items():
            assert needed in COMPOSE["services"] and how == {"condition": "service_healthy"}
    assert set(OURS["gateway"]["depends_on"]) == {"engine-a", "engine-b"}
    for port in (port for row in COMPOSE["services"].values() for port in row.get("ports", [])):
        assert port.startswith("127.0.0.1:"), "published on loopback only"


def test_grafana_finds_prometheus_and_the_dashboards():
    sources = yaml.safe_load((ROOT / "docker" / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert [source["url"] for source in sources] == ["http://prometheus:9090"]
    provider = yaml.safe_load((ROOT / "docker" / "grafana" / "dashboards.yaml").read_text())["providers"][0]
    mounts = {mount.split(":")[1]: mount.split(":")[0] for mount in COMPOSE["services"]["grafana"]["volumes"]}
    assert mounts[provider["options"]["path"]] == "../config/grafana"
    for there, here in mounts.items():
        assert not here.startswith("./") or (ROOT / "docker" / here).exists(), there
    assert (ROOT / "config" / "grafana").is_dir()
    for dashboard in (ROOT / "config" / "grafana").glob("*.json"):
        asked = set(re.findall(r'"uid": "([^"]+)"', dashboard.read_text()))
        assert not {uid for uid in asked if "$" not in uid and not uid.startswith("penstock-")}, dashboard


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
    exposed = re.search(r"^EXPOSE (.*)$", DOCKERFILE, re.M).group(1)
    assert exposed.split() == [*ports, "8082"]
    assert OURS["gateway"]["ports"] == [f"127.0.0.1:{port}:{port}" for port in ports]


def test_grace_outlasts_the_drain():
    effective = run("penstock check docker/penstock.yaml")
    assert effective.returncode == 0
    allowed = int(COMPOSE["services"]["gateway"]["stop_grace_period"].removesuffix("s"))
    assert allowed >= 60 + 5, "server.drain_grace is one minute by default"


def test_prometheus_file_is_valid(tmp_path):
    """With the rules that its container sees."""
    text = (ROOT / "docker" / "prometheus.yml").read_text()
    mounts = [mount.split(":")[:2] for mount in COMPOSE["services"]["prometheus"]["volumes"]]
    (rules,) = [there for here, there in mounts if here == "../config/prometheus"]
    assert rules in text
    (tmp_path / "prometheus.yml").write_text(text.replace(rules, str(ROOT / "config" / "prometheus")))
    done = run(f"promtool check config {tmp_path}/prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = {path.name for path in (ROOT / "config" / "prometheus").glob("*.yaml") if "test" not in path.name}
    loaded = {pathlib.Path(path).name for path in re.findall(r"Checking (\S+\.yaml)", done.stdout)}
    assert loaded == shown
    targets = [target for job in yaml.safe_load(text)["scrape_configs"] for row in job["static_configs"] for target in row["targets"]]
    assert targets == ["gateway:8081", "engine-a:8000", "engine-b:8000"]


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
        shutil.copy(ROOT / path, folder / path, follow_symlinks=False)
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


@pytest.mark.parametrize(
    ("build", "target", "triple", "compiler"),
    [
        ("amd64", "amd64", "x86_64-unknown-linux-gnu", None),
        ("amd64", "arm64", "aarch64-unknown-linux-gnu", "aarch64-linux-gnu-gcc"),
        ("arm64", "amd64", "x86_64-unknown-linux-gnu", "x86_64-linux-gnu-gcc"),
        ("arm64", "arm64", "aarch64-unknown-linux-gnu", None),
    ],
)
def test_the_image_is_built_for_each_architecture(tmp_path, build, target, triple, compiler):
    """The steps of docker/cross.sh, with cargo, rustup and apt-get that note what they
    are told."""
    tools = tmp_path / "tools"
    tools.mkdir()
    note = f'echo "$(basename $0) $*" >>{tmp_path}/told'
    for name in ("apt-get", "rustup"):
        (tools / name).write_text(f"#!/bin/sh\n{note}\n")
    made = f"mkdir -p target/{triple}/dist && echo program >target/{triple}/dist/penstock"
    (tools / "cargo").write_text(f"#!/bin/sh\n{note}\nenv >{tmp_path}/env\n{made}\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    where = {"BUILDARCH": build, "TARGETARCH": target, "PATH": f"{tools}:/usr/bin:/bin"}
    script = ROOT / "docker" / "cross.sh"
    steps = ["setup", f"build {tmp_path}/out/penstock"]
    if build != target:
        steps.insert(1, f"profile {tmp_path}/none")
    for step in steps:
        done = subprocess.run(["sh", "-c", f"sh {script} {step}"], cwd=tmp_path, env=where, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    told = (tmp_path / "told").read_text()
    assert f"cargo auditable build --locked --profile dist --target {triple} -p penstock" in told
    assert (f"rustup target add {triple}" in told) == (build != target)
    assert (tmp_path / "out" / "penstock").read_text() == "program\n"
    assert "profile-" not in told and not (tmp_path / "none").exists()
    set_up = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert set_up.get(f"CC_{triple.replace('-', '_')}") == compiler
    assert set_up.get(f"CARGO_TARGET_{triple.replace('-', '_').upper()}_LINKER") == compiler


def test_the_image_is_built_for_what_runs_often(tmp_path):
    """The profile's steps: counters in the program, load, one file, which the build then reads."""
    tools, sysroot = tmp_path / "tools", tmp_path / "sysroot" / "lib" / "rustlib" / "x86_64-unknown-linux-gnu" / "bin"
    for folder in (tools, sysroot, tmp_path / "docker"):
        folder.mkdir(parents=True)
    note = f'echo "$(basename $0) $* $RUSTFLAGS" >>{tmp_path}/told'
    made = "mkdir -p target/x86_64-unknown-linux-gnu/dist && echo program >target/x86_64-unknown-linux-gnu/dist/penstock"
    (tools / "cargo").write_text(f"#!/bin/sh\n{note}\n{made}\n")
    (tools / "rustc").write_text(f"#!/bin/sh\necho {tmp_path}/sysroot\n")
    (sysroot / "llvm-profdata").write_text(f'#!/bin/sh\n{note}\necho counts >"$3"\n')
    (tmp_path / "docker" / "train.sh").write_text(f"{note}\n")
    for tool in (*tools.iterdir(), *sysroot.iterdir()):
        tool.chmod(0o755)
    where = {"BUILDARCH": "amd64", "TARGETARCH": "amd64", "PATH": f"{tools}:/usr/bin:/bin"}
    profile = tmp_path / "out" / "penstock.profdata"
    for step, more in ((f"profile {profile}", {}), (f"build {tmp_path}/out/penstock", {"PENSTOCK_PROFILE": str(profile)})):
        command = f"sh {ROOT / 'docker' / 'cross.sh'} {step}"
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=where | more, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    counters, loads, trained, merged, built = (tmp_path / "told").read_text().splitlines()
    folder = re.search(r"-Cprofile-generate=(\S+)", counters).group(1)
    in_common = "cargo auditable build --locked --profile dist --target x86_64-unknown-linux-gnu"
    assert counters.startswith(f"{in_common} --target-dir target/profile -p penstock ") and "-p penstock-loadtest" in loads
    assert trained.split()[1:4] == ["target/profile/x86_64-unknown-linux-gnu/dist/penstock", "target/release/loadtest", folder]
    assert merged.split()[1:] == ["merge", "-o", str(profile), folder] and profile.read_text() == "counts\n"
    assert built.startswith(f"{in_common} -p penstock ") and built.endswith(f"-Cprofile-use={profile}")


def test_the_training_run_serves_its_load(tmp_path):
    """docker/train.sh with a program that counts nothing."""
    script = ROOT / "docker" / "train.sh"
    environment = os.environ | {"TRAIN_ROWS": "latency,streams64", "TRAIN_PORT": "19480"}
    command = ["sh", script, BIN, BIN_DIR / "loadtest", tmp_path / "raw"]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"CPU µs/chunk, 64 streams +\|.*\| [1-9]", done.stdout), done.stdout


def test_the_image_gets_what_its_steps_name():
    """Every file that the Dockerfile copies is in its context; nothing of the image is
    root's, and the stages are where the release says them by digest."""
    assert re.findall(r"^ARG (\w+_IMAGE)=\S+$", DOCKERFILE, re.M) == ["RUST_IMAGE", "BASE_IMAGE"]
    assert re.findall(r"^FROM (?:--platform=\$BUILDPLATFORM )?\$\{(\w+)\}", DOCKERFILE, re.M) == ["RUST_IMAGE", "BASE_IMAGE"]
    assert re.search(r"^USER [1-9]\d+:[1-9]\d+$", DOCKERFILE, re.M)
    context = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {"!docker/cross.sh", "!docker/train.sh"} <= set(context)
    released = (ROOT / "docs" / "operations" / "release.md").read_text()
    assert "RUST_IMAGE" in released and "BASE_IMAGE" in released


@pytest.mark.skipif(os.geteuid() != 0, reason="a root folder of its own needs root")
def test_the_program_needs_no_more_than_its_image_has(start, tmp_path):
    """A root with what distroless/cc has (glibc, libgcc, the roots of certificates, no
    shell), read by a user without rights: the image's command, health check and end."""
    root = tmp_path / "root"
    linked = subprocess.run(["ldd", BIN], text=True, capture_output=True, check=True).stdout
    libraries = re.findall(r"(/\S+)(?: \(0x)", linked)
    allowed = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert {pathlib.Path(path).name for path in libraries} <= allowed
    for path in libraries:
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path[1:])
    for path in ("usr/local/bin", "etc/penstock", "etc/ssl/certs"):
        (root / path).mkdir(parents=True)
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs")
    shutil.copy(BIN, root / "usr/local/bin/penstock")
    listen, admin = free_ports(2)
    (root / "etc/penstock/penstock.yaml").write_text(
        f"version: 1\nauth: {{mode: off}}\nserver: {{listen: {listen}, admin: {admin}}}\n"
        "pools: {p: {engine: vllm, models: [m], replicas: [http://127.0.0.1:9]}}\n"
    )
    for parent in (tmp_path, *tmp_path.parents):
        if str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    user = re.search(r"^USER (\S+)$", DOCKERFILE, re.M).group(1)
    inside = f"chroot --userspec={user} {root}"
    (entry,) = json.loads(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.M).group(1))
    command = json.loads(re.search(r"^CMD (.*)$", DOCKERFILE, re.M).group(1))
    running = start(shlex.join([*inside.split(), entry, *command]))
    running.wait_for("server started")
    check = json.loads(re.search(r"^HEALTHCHECK .*\n +CMD (\[.*\])$", DOCKERFILE, re.M).group(1))
    assert run(shlex.join([*inside.split(), *check, "--admin", f"http://{admin}"])).stdout == "ready\n"
    assert running.stop() == 0


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
        # Event streams end after minutes only.
        if method == "GET" and "{" not in route and route not in ("/admin/v1/live", "/admin/v1/events"):
            assert get(f"http://{admin}{route}")
    assert gateway.stop() == 0

    def gone():
        try:
            return not get(f"http://{admin}/livez")
        except urllib.error.URLError:
            return True

    wait_until("end of the admin port", gone)
