"""The binary, free ports, and processes that end with the test."""

import itertools
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: The program under test.
BIN = pathlib.Path(os.environ.get("PENSTOCK_BIN") or ROOT / "target" / "debug" / "penstock")
BIN_DIR = BIN.parent

#: The addresses that the documents and the help texts use.
PORTS = (
    "127.0.0.1:8080",
    "127.0.0.1:8081",
    "127.0.0.1:8082",
    "127.0.0.1:8000",
    "127.0.0.1:8001",
    "127.0.0.1:8002",
)


def environment(**more):
    """The user's, with the binary and the suite's Python on the PATH."""
    path = os.pathsep.join([str(BIN_DIR), os.environ["SUITE_PYTHON_BIN"], os.environ["PATH"]])
    return {**os.environ, "PATH": path, **more}


#: Numbers of ports that are still to be given out: the system gives ports of their range to nobody who does not ask for
#: one by number.
NUMBERS = itertools.count(os.getpid() * 97)


def free_ports(count):
    """Loopback addresses that nobody listens on, and that stay so."""
    found = []
    while len(found) < count:
        address = f"127.0.0.1:{10_000 + next(NUMBERS) % 20_000}"
        if is_free(address):
            found.append(address)
    return found


def is_free(address):
    host, port = address.split(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError:
        return False
    return True


def elsewhere():
    """The documents' addresses, each with a free one to use in its place: others may be at work on this machine."""
    return dict(zip(PORTS, free_ports(len(PORTS))))


def moved(text, places):
    """`text` with its addresses replaced."""
    return re.sub("|".join(map(re.escape, places)), lambda found: places[found.group()], text)


def wait_until(what, condition, seconds=60):
    """Waits for a condition; fails when it does not come."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.05)
    return value


def run(command, cwd=ROOT, stdin=None, **env):
    """Runs a shell command as printed."""
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, env=environment(**env), input=stdin, text=True,
        capture_output=True, timeout=600, check=False,
    )


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


class Running:
    """A command that runs until it is told to stop."""

    def __init__(self, command, cwd=ROOT, **env):
        self.lines = []
        # `exec`, so that a signal reaches the program and not the shell.
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=cwd, env=environment(**env), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self):
        return "\n".join(self.lines)

    def wait_for(self, pattern, seconds=60):
        """Waits for a line and returns the match."""
        def look():
            found = next((m for line in list(self.lines) if (m := re.search(pattern, line))), None)
            assert found or self.process.poll() is None, f"ended early:\n{self.output}"
            return found
        return wait_until(f"line with {pattern!r}", look, seconds)

    def stop(self, how=signal.SIGINT):
        """Asks it to stop; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(timeout=90)
        self.reader.join(timeout=10)
        return code


@pytest.fixture
def start():
    """Starts commands, and ends what is left of them."""
    started = []

    def begin(command, **options):
        started.append(Running(command, **options))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
