"""Completion in real shells: names of the running gateway, names with colons among them."""

import contextlib
import json
import os

from conftest import get, run, wait_until
from test_demo import begin

ZSHRC = "fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; PS1='ready> '\n"


def test_shells_complete_names(start, tmp_path):
    _, admin = begin(start)
    rows = json.loads(get(f"{admin}/admin/v1/replicas"))["replicas"]
    h100 = {row["replica"] for row in rows if row["replica"].startswith("h100/")}
    assert h100
    fish_offers(admin, "tenants pause ", {"chat", "reports", "search"})
    fish_offers(admin, "replicas cordon h100/", h100)
    with zsh(admin, tmp_path) as completes:
        completes("pools drain h", "pools drain h100")
        completes("tenants pause re", "tenants pause reports")
        name = min(h100)
        completes(f"replicas cordon {name[:-1]}", f"replicas cordon {name}")


def fish_offers(admin, line, wanted):
    """fish offers exactly the names, besides flags. It is asked again: the gateway has 300 ms for its names."""
    def are_offered():
        done = run(f"""fish -c 'penstock completion fish | source; complete -C "penstock {line}"'""", PENSTOCK_ADMIN=admin)
        assert done.returncode == 0, done.stderr
        return {text for text in done.stdout.splitlines() if not text.startswith("--")} == wanted
    wait_until(f"{line}in fish", are_offered)


@contextlib.contextmanager
def zsh(admin, folder):
    """A function that types the beginning of a command into zsh, asks for its completion, and waits for it."""
    assert run(f"penstock completion zsh > {folder}/_penstock").returncode == 0
    (folder / ".zshrc").write_text(ZSHRC.format(folder=folder))
    tmux = f"tmux -L penstock-zsh-{os.getpid()}"
    shown = lambda text: f"ready> {text}" in run(f"{tmux} capture-pane -p -J -t zsh").stdout
    started = run(f"{tmux} new-session -d -s zsh -x 120 -y 40 'PENSTOCK_ADMIN={admin} ZDOTDIR={folder} zsh'")
    assert started.returncode == 0, started.stderr

    def completes(begun, whole):
        def is_completed():
            run(f"{tmux} send-keys -t zsh C-u 'penstock {begun}' Tab")
            with contextlib.suppress(AssertionError):
                return wait_until(whole, lambda: shown(f"penstock {whole}"), 5)
        wait_until(f"{whole} in zsh", is_completed)

    try:
        wait_until("the prompt", lambda: shown(""))
        yield completes
    finally:
        run(f"{tmux} kill-server")
