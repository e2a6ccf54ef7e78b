"""The commands and files that the README and the help texts show."""

import re
import shlex
import subprocess

from conftest import BIN, ROOT


def blocks(language):
    """The code blocks of the README in a language."""
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.S | re.M)


def readme_commands():
    """Every command of the README, in order."""
    return [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


def subcommands(prefix=()):
    """Every command that `--help` leads to, by its words."""
    text = subprocess.run([BIN, *prefix, "--help"], text=True, capture_output=True, check=True).stdout
    found = {prefix: text}
    listed = re.search(r"^Commands:\n(.*?)^$", text, re.S | re.M)
    for name in re.findall(r"^  ([a-z-]+)", listed.group(1), re.M) if listed else []:
        if name != "help":
            found.update(subcommands((*prefix, name)))
    return found


def help_examples():
    """The examples of the help texts; what explains one stands behind two
    spaces."""
    found = []
    for text in subcommands().values():
        after = re.search(r"^(?:Examples?|Start here):\n(.*)", text, re.S | re.M)
        for line in after.group(1).splitlines() if after else []:
            command = re.split(r"\s{3,}", line.strip())[0]
            if re.match(r"(printf .*\| )?penstock\b", command):
                found.append(command)
    return found


def is_long_running(command):
    """Whether a command runs until it is stopped."""
    words = shlex.split(command)
    if words[:4] == ["cargo", "run", "--release", "--"]:
        words = ["penstock", *words[4:]]
    return words[:1] == ["penstock"] and words[1:2] in (["serve"], ["demo"], ["sim-engine"])
