"""The systemd unit, and what the .deb is made of."""

import re
import shutil
import subprocess
import tomllib

import pytest
import yaml
from conftest import BIN, ROOT, run

UNIT = ROOT / "config" / "systemd" / "penstock.service"
DEB = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["metadata"]["deb"]


def setting(name):
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.M)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path):
    unit = tmp_path / "penstock.service"
    unit.write_text(UNIT.read_text().replace("/usr/bin/penstock", str(BIN)))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], text=True, capture_output=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "penstock" in line]
    assert said == [], said


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_service_may_do_little():
    """The exposure that systemd computes, from 0 (nothing) to 10, is at most 1.2."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=12", "--no-pager", UNIT]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr
    assert setting("LimitCORE") == ["0"]


def test_the_unit_outlives_the_drain():
    (stop,) = setting("TimeoutStopSec")
    schema = (ROOT / "config" / "penstock.yaml").read_text()
    assert re.search(r"^  drain_grace: 1m ", schema, re.M)
    assert int(stop.removesuffix("s")) >= 60 + 10


def test_the_unit_runs_what_the_package_has():
    places = {target: source for source, target, _ in DEB["assets"]}
    (command,) = setting("ExecStart")
    program, verb, _, config = command.split()
    assert (program, verb) == ("/usr/bin/penstock", "serve")
    assert "usr/bin/" in places and places[config[1:]] == "config/examples/one-model.yaml"
    assert DEB["conf-files"] == [config]
    (before,) = setting("ExecStartPre")
    assert before == f"{program} check {config}"
    done = run(f"penstock check {ROOT / places[config[1:]]}")
    assert done.returncode == 0, done.stdout
    assert (ROOT / DEB["systemd-units"]["unit-scripts"] / UNIT.name).exists()


def test_the_package_has_files_of_this_tree():
    for source, target, mode in DEB["assets"]:
        if source.startswith("target/"):
            continue
        found = list(ROOT.glob(source))
        assert found, source
        assert mode == "644" and not target.startswith("/")


def test_what_the_unit_writes_is_writable():
    """The state folder is the working directory, and the rest is read-only."""
    assert setting("WorkingDirectory") == [f"/var/lib/{setting('StateDirectory')[0]}"]
    assert setting("ProtectSystem") == ["strict"] and setting("DynamicUser") == ["yes"]
    config = yaml.safe_load((ROOT / "config" / "penstock.yaml").read_text())
    assert int(setting("LimitNOFILE")[0]) >= 2 * config["server"]["max_connections"]
