"""How long a person waits for a command: whole processes, at 8 and at 10,000 nodes.

`status`, `explain` and `nodes` are measured twice: beside a daemon's loop, whose world they read,
and without one, when they read a real SQLite journal in which every agent has reported, and Slurm
by stand-ins of its commands that print at once.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from msgspec import Struct

from benchmarks import scontrol_text
from benchmarks.table import Outcome, Row, median
from benchmarks.world import CLOCK, World, node_name
from hpctl.engine.journal.events import GateBlocked
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.store import JournalStore
from hpctl.vocabulary.identity import NodeName, RuleId

RUNS, HELP_RUNS = 7, 20
HPCTL = str(Path(sys.executable).with_name("hpctl"))
"""The installed command: `python -m` takes 6 ms more, and nobody types it."""
HELP_BAR = 1.1
"""Times what `import click` takes."""
FLOOR = "python -c 'import click'"
SICK = node_name(7)
COMMANDS = {"status": ["status"], "explain": ["explain", SICK], "nodes": ["nodes", "--no-cloud"]}
BARS_S: dict[int, dict[str, float]] = {
    8: {"status": 0.2, "explain": 0.25},
    10_000: {"status": 0.4, "explain": 0.5, "nodes": 0.8},
}
STATUS_BARS: dict[int, float] = {8: 4.0, 10_000: 5.0}
"""Times the processor time of `import click`, beside a daemon: what a busy machine cannot spoil."""
OFFLINE_BARS_S: dict[int, dict[str, float]] = {
    8: {"status": 0.35, "explain": 0.35},
    10_000: {"status": 0.6, "explain": 0.6, "nodes": 1.5},
}


class Taken(Struct, frozen=True):
    """What a command took: seconds by the clock, and of a processor."""

    wall: float
    processor: float


def run() -> Outcome:
    """Ours and its two floors in turn, so that a busy moment hits all three alike."""
    ours, pure, click = _in_turn(
        [[HPCTL, "--help"], ["-c", "pass"], ["-c", "import click"]], HELP_RUNS
    )
    mine, floor = 1e3 * ours.wall, 1e3 * click.wall
    rows = [
        Row("hpctl --help, wall", mine, "ms", FLOOR, floor, HELP_BAR * floor),
        Row("hpctl --help, wall", mine, "ms", "python -c pass", 1e3 * pure.wall),
    ]
    for nodes, bars in BARS_S.items():
        rows += _at(nodes, bars)
    return Outcome("cli", rows, [
        f"medians of {HELP_RUNS} runs of --help and {RUNS} of the others, in turn",
        "one agent on each node has reported, one job for ten nodes; Slurm's commands are stand-ins"
        " that print the text of 22.05 at once: slurmctld's own time is not in it",
        "`no daemon`: what is computed from journal and Slurm; else the daemon's world is read",
    ])  # fmt: skip


def _at(nodes: int, bars: dict[str, float]) -> list[Row]:
    """The commands at one size, with and without a daemon, in turn."""
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as name:
        folders = Path(name, "served"), Path(name, "alone")
        for folder in folders:
            folder.mkdir()
        served, alone = (lay_out(folder, nodes) for folder in folders)
        asked = [
            [HPCTL, *args, "--config", config]
            for config in (served, alone)
            for args in COMMANDS.values()
        ]
        with _served(folders[0], nodes):
            *taken, floor = _in_turn([*asked, ["-c", "import click"]], RUNS)
    online, offline = taken[: len(COMMANDS)], taken[len(COMMANDS) :]
    rows = [
        Row(f"hpctl {what}, {nodes:,} nodes", one.wall, "s", FLOOR, floor.wall, bars.get(what))
        for what, one in zip(COMMANDS, online, strict=True)
    ]
    status = dict(zip(COMMANDS, online, strict=True))["status"]
    rows.append(
        Row(
            f"hpctl status, {nodes:,} nodes, processor time",
            status.processor,
            "s",
            FLOOR,
            floor.processor,
            STATUS_BARS[nodes] * floor.processor,
        )
    )
    offline_bars = OFFLINE_BARS_S[nodes]
    return rows + [
        Row(
            f"hpctl {what}, {nodes:,} nodes, no daemon",
            one.wall,
            "s",
            FLOOR,
            floor.wall,
            offline_bars.get(what),
        )
        for what, one in zip(COMMANDS, offline, strict=True)
    ]


@contextmanager
def _served(folder: Path, nodes: int) -> Iterator[None]:
    """A daemon's world for the commands."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.world_at", str(folder), str(nodes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the world is not served")
        try:
            yield
        finally:
            process.stdin.close()


def lay_out(folder: Path, nodes: int) -> str:
    """A state directory, a Slurm and the configuration that names both; that one's path."""
    world = World(nodes, nodes // 10)
    binaries = folder / "bin"
    binaries.mkdir()
    scontrol_text.install(world, binaries)
    path = folder / "hpctl.yaml"
    path.write_text(
        f"state_dir: {folder}\ncluster: {{name: bench, region: us-east-1}}\n"
        f"slurm: {{bin: {binaries}, adapter: cli}}\n"
    )
    store, now = JournalStore(f"sqlite:///{folder}/journal.db"), CLOCK.now()
    store.take_lease(DaemonIdentity("bench", 1, "0", "own", ""), None, now, 3600)
    store.append(
        [GateBlocked(now, SICK, "paused", "an operator paused hpctl", RuleId("kernel.xid/31"))]
    )
    store.record(list(world.health().values()))
    store.store_last_heard_times(
        dict.fromkeys(map(NodeName, world.slurm.nodes), now + timedelta(hours=9))
    )
    store.close()
    return str(path)


def _in_turn(commands: list[list[str]], runs: int) -> list[Taken]:
    """The medians of each."""
    taken: list[list[Taken]] = [[] for _ in commands]
    for _ in range(runs):
        for times, args in zip(taken, commands, strict=True):
            times.append(_start(args))
    return [
        Taken(median([one.wall for one in times]), median([one.processor for one in times]))
        for times in taken
    ]


def _start(args: list[str]) -> Taken:
    """One command to its end. A finding is exit code 1, and none here may be 2 or 3."""
    began, used = time.perf_counter(), _processor_s()
    done = subprocess.run(
        [sys.executable, *args], check=False, capture_output=True, text=True, timeout=60
    )
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        raise RuntimeError(
            f"{args}: {done.returncode}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"
        )
    return Taken(time.perf_counter() - began, _processor_s() - used)


def _processor_s() -> float:
    """Seconds of a processor that commands have used which ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
