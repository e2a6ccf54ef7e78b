"""How commands print: formats, and colours on a terminal."""

import json
import os
import pty
import signal
import subprocess

import pytest
from conftest import environment, free_ports, run
from documents import subcommands
from test_commands import ONE


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
        assert "a.yaml is valid" in new.stdout or json.loads(new.stdout), new.stdout
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
