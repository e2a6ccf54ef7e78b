"""The Node SDKs: runs `node --test` once and reports each of its tests as one."""

import json
import os
import pathlib
import re
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
FILES = ["openai.test.mjs", "anthropic.test.mjs"]
RESULT = re.compile(r"^(not )?ok \d+ - (.*?)(?: # .*)?$")


def results(tap):
    """Name to (passed, what TAP says of it), for the tests of one file."""
    found, name = {}, None
    for line in tap.splitlines():
        if match := RESULT.match(line):
            name = match.group(2)
            assert name not in found, f"two tests are called {name}"
            found[name] = (match.group(1) is None, "")
        elif name is not None:
            found[name] = (found[name][0], f"{found[name][1]}{line}\n")
    return found


def run(file, *options, **given):
    given["packages"] = os.environ["PENSTOCK_SDK_NODE"]
    environment = {**os.environ, "PENSTOCK_TEST": json.dumps(given), "NO_COLOR": "1"}
    command = ["node", *options, str(HERE / file)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def node(gateway, fleet):
    """Every result, by file and name."""
    given = {
        "url": gateway.url,
        "admin": gateway.admin,
        "keys": gateway.keys,
        "log": str(gateway.log_path),
        "brittle": [engine.url for engine in fleet.engines["brittle"]],
    }
    found = {}
    for file in FILES:
        done = run(file, "--test-reporter=tap", **given)
        found[file] = results(done.stdout)
        assert found[file], done.stdout + done.stderr
    return found


def names():
    """Every test of the files, without running one."""
    for file in FILES:
        listed = run(file, list=True)
        assert listed.returncode == 0, listed.stdout + listed.stderr
        for name in listed.stdout.splitlines():
            yield pytest.param(file, name, id=f"{file.removesuffix('.test.mjs')}: {name}")


@pytest.mark.parametrize(("file", "name"), list(names()))
def test_node(node, file, name):
    assert name in node[file], f"did not run; there are {sorted(node[file])}"
    passed, said = node[file][name]
    assert passed, said
