"""What a live cluster reports when a test on it has failed: it is gone before anybody looks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from hpctl.engine.adapters import open_journal_reader
from hpctl.sandbox.api import Sandbox
from tests.live import Live

LINES = 150
"""How much of each log is shown."""


def left_behind(cluster: Live | Sandbox) -> dict[str, str]:
    """What Slurm, the journal (where a daemon keeps one), jobs and logs show, by title."""
    sandbox = cluster.sandbox if isinstance(cluster, Live) else cluster
    sources: dict[str, Callable[[], str]] = {
        f"scontrol show {what}": partial(sandbox.scontrol, "--oneliner", "show", what)
        for what in ("job", "step", "node")
    }
    for path in [*sandbox.state_dir.glob("job-*.log"), *sandbox.log_files()]:
        sources[path.name] = partial(_tail, path)
    if isinstance(cluster, Live):
        sources["journal"] = lambda: _journal(cluster)
        sources["hpctl status"] = partial(cluster.hpctl, "status", check=False)
    return {title: _attempt(source) for title, source in sources.items()}


def _journal(live: Live) -> str:
    store = open_journal_reader(live.config)
    try:
        return "\n".join([str(event) for event in store.events()][-LINES:])
    finally:
        store.close()


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-LINES:])


def _attempt(source: Callable[[], str]) -> str:
    """A cluster that a test broke may not answer: that must not hide the failure itself."""
    try:
        return source()
    except Exception as error:  # noqa: BLE001 (whatever it is, the failed test comes first)
        return f"{type(error).__name__}: {error}"
