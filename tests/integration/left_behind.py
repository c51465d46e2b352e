"""What a live cluster says when a test on it has failed: it is gone before anybody looks."""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from hpctl.sandbox.api import Sandbox
from hpctl.wiring import open_store
from tests.integration.live import Live

LINES = 250
"""How much of each log is shown."""


def told(cluster: Live | Sandbox) -> dict[str, str]:
    """What Slurm, the journal (where a daemon keeps one) and the logs say, by title."""
    sandbox = cluster.sandbox if isinstance(cluster, Live) else cluster
    logs = sandbox.spec.layout.logs
    sources: dict[str, Callable[[], str]] = {
        "the jobs' output": lambda: _outputs(sandbox),
        "scontrol show job": lambda: sandbox.scontrol("show", "job"),
        "scontrol show step": lambda: sandbox.scontrol("--oneliner", "show", "step"),
        "scontrol show node": lambda: sandbox.scontrol("--oneliner", "show", "node"),
        "the jobs' processes": lambda: _processes(sandbox),
        "slurmctld.log": lambda: _tail((logs / "slurmctld.log").read_text(errors="replace")),
        "slurmd logs": lambda: _slurmds(logs),
    }
    if isinstance(cluster, Live):
        sources["journal"] = lambda: _journal(cluster)
        sources["daemon.out"] = lambda: _tail((logs / "daemon.out").read_text(errors="replace"))
    return {title: _attempt(source) for title, source in sources.items()}


def _journal(live: Live) -> str:
    store = open_store(live.config)
    try:
        return _tail("\n".join(str(event) for event in store.events()))
    finally:
        store.close()


def _outputs(sandbox: Sandbox) -> str:
    """The files that the jobs write to, as far as Slurm still knows the jobs."""
    shown = sandbox.scontrol("show", "job")
    paths = [Path(name) for name in dict.fromkeys(re.findall(r"^\s*StdOut=(.+)$", shown, re.M))]
    return "\n".join(
        f"{path}:\n{_tail(path.read_text(errors='replace'))}" for path in paths if path.is_file()
    )


def _processes(sandbox: Sandbox) -> str:
    """What runs in jobs, and where in the kernel each of its threads waits."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            env = (place / "environ").read_text(errors="replace")
            if str(sandbox.state_dir) in env and "SLURM_JOB_ID=" in env:
                words = (place / "cmdline").read_text(errors="replace").replace("\0", " ")
                waits = [path.read_text() for path in sorted(place.glob("task/*/wchan"))]
                found.append(f"{place.name} ({' '.join(waits)}): {words}")
    return "\n".join(found)


def _slurmds(logs: Path) -> str:
    found = sorted(logs.glob("**/*slurmd*.log"))
    return "\n".join(
        f"{path.name}: {line}"
        for path in found
        for line in path.read_text(errors="replace").splitlines()[-30:]
    )


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-LINES:])


def _attempt(source: Callable[[], str]) -> str:
    """A cluster that a test broke may not answer: that must not hide the failure itself."""
    try:
        return source()
    except Exception as error:  # noqa: BLE001 (whatever it is, the failed test comes first)
        return f"{type(error).__name__}: {error}"
