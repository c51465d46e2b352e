"""Check `host.zombies`: zombies, and use of the kernel's limits of tasks and open files."""

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckObservation,
    CheckResultUnknownError,
    Judged,
    Limits,
    make_warn_observation,
)
from hpctl.detection.procs import ProcessScanner
from hpctl.vocabulary.model import DeviceVerdict

# Zombies, and the use of the machine's limits of tasks and of open files.


class ProcessCountSample(Struct, frozen=True):
    """Counts now, and the kernel's limits."""

    zombies: int
    tasks: int
    tasks_max: int
    files: int
    files_max: int


SCAN = ProcessScanner()


def count_processes_and_open_files(machine: CheckedMachine) -> ProcessCountSample:
    """Count zombies, tasks and open files. Raises CheckResultUnknownError, DeviceAbsentError."""
    try:
        tasks = int(machine.text("/proc/loadavg").split()[3].partition("/")[2])
        # pid_max bounds the ids and threads-max the tasks: the smaller is reached first.
        most = min(int(machine.text(f"/proc/sys/kernel/{n}")) for n in ("pid_max", "threads-max"))
        files, _, files_max = map(int, machine.text("/proc/sys/fs/file-nr").split())
    except (ValueError, IndexError) as error:
        raise CheckResultUnknownError(f"/proc is not as it should be: {error}") from error
    zombies = sum(task.state == "Z" for task in SCAN.tasks(machine))
    return ProcessCountSample(zombies, tasks, most, files, files_max)


def judge_process_and_file_counts(
    seen: ProcessCountSample, before: ProcessCountSample | None, limits: Limits
) -> Judged:
    """Return `zombies`; `tasks` and `files`, each a WARN first and a FAIL when nearly used up."""
    if seen.zombies >= limits["zombies"]:
        yield make_warn_observation("zombies", "", f"{seen.zombies} zombies")
    counted = (("tasks", seen.tasks, seen.tasks_max), ("files", seen.files, seen.files_max))
    for code, used, most in counted:
        percent = 100 * used / max(most, 1)
        if percent >= limits["warn_pct"]:
            bad = percent >= limits["fail_pct"]
            detail = f"{used} of {most} ({percent:.0f} %)"
            yield CheckObservation(
                code, "", DeviceVerdict.FAIL if bad else DeviceVerdict.WARN, detail
            )
