"""The commands, files, links and anchors that the documents and the help texts
show.

Languages of code blocks: `sh` has one command a line. `console` has commands behind
`$ ` with lines of their output, in which `...` stands for anything and numbers and
times for others. `yaml` is a configuration or a part of one, `json` is JSON, `python` is
what a test of its own runs, `text` is for people only. A comment on the line before a block says that it is only looked at:

    <!-- not run: why -->                    commands: their words are checked
    <!-- checked as YAML only: why -->       YAML that is not Penstock's
"""

import re
import shlex
import subprocess
from typing import NamedTuple

import yaml
from conftest import BIN, ROOT

DOCS = ROOT / "docs"
LANGUAGES = {"sh", "console", "yaml", "json", "python", "text"}

#: A fenced block: the comment before it, its language and its text.
FENCE = re.compile(r"(?:^<!-- (not run|checked as YAML only): [^\n]+ -->\n)?^```(\w*)\n(.*?)^```$", re.S | re.M)


class Block(NamedTuple):
    mark: str
    language: str
    text: str


class Step(NamedTuple):
    """A command of a page, and lines that its output has."""

    page: str
    command: str
    shown: tuple
    runs: bool


def pages():
    """The README, and every page of docs/SUMMARY.md in the order of the summary."""
    listed = re.findall(r"\]\(([^)]+\.md)\)", (DOCS / "SUMMARY.md").read_text())
    return [ROOT / "README.md", *(DOCS / name for name in listed)]


def linked_pages():
    """Every page whose links must resolve."""
    more = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md", "config/kubernetes/chart/README.md")]
    return [*pages(), DOCS / "SUMMARY.md", *more]


def name_of(page):
    return str(page.relative_to(ROOT))


def all_blocks(page):
    return [Block(mark or "", language, text) for mark, language, text in FENCE.findall(page.read_text())]


def blocks(language, page=ROOT / "README.md"):
    """The code blocks of a page in a language, but for those that a comment marks."""
    return [block.text for block in all_blocks(page) if block.language == language and not block.mark]


def steps_of(page):
    """The commands of a page."""
    found = []
    for block in all_blocks(page):
        runs = block.mark != "not run"
        if block.language == "sh":
            found += [Step(name_of(page), line, (), runs) for line in block.text.splitlines() if line.strip()]
        elif block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
                command, *shown = part.splitlines()
                found.append(Step(name_of(page), command, tuple(filter(str.strip, shown)), runs))
    return found


def steps():
    """Every command of the pages, in the order of the pages."""
    return [step for page in pages() for step in steps_of(page)]


def shape(line):
    """A line without its numbers, times and widths of columns."""
    line = re.sub(r"\d[\d.,]*", "0", line)
    line = re.sub(r"\b0 ?(?:us|ms|s|m|h)(?:0(?:s|m))?(?![a-z])", "T", line)
    return " ".join(line.split())


def lacks(output, shown):
    """The lines of `shown` that the output does not have, by their shape."""
    had = [shape(line) for line in output.splitlines()]
    patterns = {line: ".*".join(re.escape(" ".join(part.split())) for part in shape(line).split("...")) for line in shown}
    return [line for line, pattern in patterns.items() if not any(re.fullmatch(pattern, one) for one in had)]


def unknown_words(command, known):
    """What of a command no `--help` knows. `known` has the help of every command."""
    wrong = []
    for part in re.split(r" \| | && ", command):
        words = shlex.split(part)
        if words[:1] != ["penstock"]:
            continue
        path = ()
        while len(words) > len(path) + 1 and (*path, words[len(path) + 1]) in known:
            path = (*path, words[len(path) + 1])
        options = {word.partition("=")[0] for word in words[1:] if word.startswith("--")}
        wrong += [option for option in sorted(options) if not re.search(rf"{option}\b", known[path])]
        wrong += [] if path or len(words) == 1 or options else [words[1]]
    return wrong


def main_config():
    """The one configuration file of the README, on which all pages build."""
    (config,) = blocks("yaml")
    return config


def merged(base, more):
    """`base` with what `more` adds or replaces, key by key."""
    if not (isinstance(base, dict) and isinstance(more, dict)):
        return more
    added = {key: merged(base.get(key), value) for key, value in more.items()}
    return {**base, **added}


def configs():
    """Every YAML block of the pages as a whole configuration, with the name of its
    page. A block without `version` is a part: it is put into the README's file."""
    found = []
    for page in pages():
        for number, block in enumerate(blocks("yaml", page), 1):
            whole = yaml.safe_load(block)
            if "version" not in whole:
                block = yaml.safe_dump(merged(yaml.safe_load(main_config()), whole))
            found.append((f"{name_of(page)} {number}", block))
    return found


def foreign_yaml():
    """YAML blocks that are not Penstock's."""
    return [(name_of(page), block.text) for page in pages() for block in all_blocks(page)
            if block.language == "yaml" and block.mark]


def json_blocks():
    return [(name_of(page), block.text) for page in pages() for block in all_blocks(page) if block.language == "json"]


def text_of(page):
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page):
    """The anchors of a page's headings, as GitHub and mdBook make them."""
    found = []
    for heading in re.findall(r"^#+ +(.+?) *$", text_of(page), re.M):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        again = sum(1 for other in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other))
        found.append(f"{anchor}-{again}" if again else anchor)
    return found


def links(page):
    """The relative links of a page: the target's path and the anchor, which may be
    empty."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text_of(page))
    return [
        (target.partition("#")[0], target.partition("#")[2])
        for target in targets
        if not re.match(r"[a-z]+:", target)
    ]


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
