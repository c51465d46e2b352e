"""What a journal of months and years costs: the daemon's start, memory and cycle, the commands.

Made-up days of a very busy cluster (`past.py`), each size in a process of its own (`years_at.py`).
"""

import json
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks import scontrol_text
from benchmarks.past import Past
from benchmarks.table import Outcome, Row, median, seconds_of
from benchmarks.world import CLOCK, NODES_OF_YEARS, World
from hpctl.engine.journal.events import NodeRecoveryOpened
from hpctl.engine.journal.store import JournalStore

DAYS = 365
STATUS_RUNS = 3
START_BAR_S, CYCLE_BAR_S, MEMORY_BAR_MB, STATUS_BAR_S = 3.0, 0.02, 100, 5.0
WIDE = 2000
SCREENS = {"top": 1.0, "events": 1.0, "status": 1.0, "explain": 1.0, "report": None}
"""Commands at WIDE nodes, one screen each through a pipe, and their bars in seconds."""
LATER = "the same, nothing retired"


def run() -> Outcome:
    """One year, with what is past retired and without, beside an empty journal."""
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as name:
        folder = Path(name)
        newest = _fill(folder / "full", DAYS)
        _fill(folder / "empty", 0)
        empty, full = _at(folder / "empty"), _at(folder / "full")
        commands = {"status": ["status"], "explain": ["explain", newest]}
        none = _command(folder / "empty", ["status"])
        slow = {what: _command(folder / "full", args, 1) for what, args in commands.items()}
        retired = json.loads(_python("benchmarks.years_at", "retire", folder / "full"))
        kept = _at(folder / "full")
        fast = {what: _command(folder / "full", args) for what, args in commands.items()}
        oldest = _command(folder / "full", ["explain", retired["oldest"]], 1)
        last = {"explain": [_fill(folder / "wide", DAYS, WIDE)]}
        _python("benchmarks.years_at", "retire", folder / "wide")
        screens = {w: _command(folder / "wide", [w, *last.get(w, ())]) for w in SCREENS}
    rows = [
        Row("start: memory rebuilt", kept["start_s"], "s", LATER, full["start_s"], START_BAR_S),
        Row("memory, over an empty journal's", kept["mb"] - empty["mb"], "MB", LATER,
            full["mb"] - empty["mb"], MEMORY_BAR_MB),
        Row("a quiet cycle, 1 000 nodes", 1e3 * kept["cycle_s"], "ms", LATER,
            1e3 * full["cycle_s"], 1e3 * CYCLE_BAR_S),
        *(
            Row(f"hpctl {what}", fast[what], "s", LATER, slow[what], STATUS_BAR_S)
            for what in commands
        ),
        *(
            Row(f"hpctl {what}, {WIDE:,} nodes", screens[what], "s", "empty journal", none, bar)
            for what, bar in SCREENS.items()
        ),
        Row("hpctl explain of what is past", oldest, "s", "of what is not", fast["explain"]),
        Row("retiring, once a day", retired["daily_s"], "s", "nine months", retired["first_s"]),
    ]  # fmt: skip
    notes = [
        f"{full['events']:,} events in {DAYS} days, {kept['events']:,} of them not past",
        f"with an empty journal: a cycle {1e3 * empty['cycle_s']:.1f} ms,"
        f" hpctl status {none:.2f} s",
    ]
    return Outcome("years: a year of a very busy cluster in the journal", rows, notes)


def _fill(folder: Path, days: int, nodes: int = NODES_OF_YEARS) -> str:
    """A state directory with so many days behind it; the id of the last recovery."""
    folder.mkdir()
    slurm = folder / "bin"
    slurm.mkdir()
    scontrol_text.install(World(nodes, nodes // 10), slurm)
    (folder / "hpctl.yaml").write_text(
        f"state_dir: {folder}\ncluster: {{provider: none}}\nslurm: {{bin: {slurm}, adapter: cli}}\n"
    )
    store = JournalStore(f"sqlite:///{folder}/journal.db")
    now, past, newest = CLOCK.now(), Past(nodes), ""
    for day in range(days, 0, -1):
        events = list(past.day(now - timedelta(days=day)))
        store.append(events)
        newest = [e.recovery for e in events if isinstance(e, NodeRecoveryOpened)][-1]
    store.close()
    return newest


def _python(*args: object) -> str:
    return subprocess.run(
        [sys.executable, "-m", *map(str, args)], check=True, capture_output=True, text=True
    ).stdout


def _at(folder: Path) -> Any:
    return json.loads(_python("benchmarks.years_at", "measure", folder))


def _command(folder: Path, args: list[str], runs: int = STATUS_RUNS) -> float:
    """Seconds of a whole command. Its exit code may be 3, for no daemon runs here; Slurm answers,
    by stand-ins of its commands: tries of one that is away would be timed as well."""
    command = [sys.executable, "-m", "hpctl", *args, "--config", str(folder / "hpctl.yaml")]

    def once() -> None:
        subprocess.run(command, capture_output=True, check=False)

    return median(seconds_of(once, runs))
