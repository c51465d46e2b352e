"""Zombies, and how near the machine is to its limits of tasks and of open files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpctl.agent.check import CannotTell, Limits, Machine, Observation
from hpctl.agent.procs import Scan
from hpctl.core.model import Verdict


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts now, and the kernel's limits."""

    zombies: int
    tasks: int
    tasks_max: int
    files: int
    files_max: int


_scan = Scan()


def gather(machine: Machine) -> Sample:
    """Count. Raises CannotTell, NotHere."""
    try:
        tasks = int(machine.text("/proc/loadavg").split()[3].partition("/")[2])
        # pid_max bounds the ids and threads-max the tasks: the smaller is what is met first.
        most = min(int(machine.text(f"/proc/sys/kernel/{n}")) for n in ("pid_max", "threads-max"))
        files, _, files_max = map(int, machine.text("/proc/sys/fs/file-nr").split())
    except (ValueError, IndexError) as error:
        raise CannotTell(f"/proc is not as it should be: {error}") from error
    zombies = sum(task.state == "Z" for task in _scan.tasks(machine))
    return Sample(zombies, tasks, most, files, files_max)


def judge(seen: Sample, before: Sample | None, limits: Limits) -> Iterable[Observation]:
    """`zombies`; `tasks` and `files`, each a WARN first and a FAIL when nearly used up."""
    if seen.zombies >= limits["zombies"]:
        detail = f"{seen.zombies} zombies"
        yield Observation("zombies", verdict=Verdict.WARN, detail=detail)
    counted = (("tasks", seen.tasks, seen.tasks_max), ("files", seen.files, seen.files_max))
    for code, used, most in counted:
        percent = 100 * used / max(most, 1)
        if percent >= limits["warn_pct"]:
            bad = percent >= limits["fail_pct"]
            detail = f"{used} of {most} ({percent:.0f} %)"
            yield Observation(code, "", Verdict.FAIL if bad else Verdict.WARN, detail)
