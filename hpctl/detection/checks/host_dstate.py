"""Check `host.dstate`: tasks that sleep in a driver or a network file system and never run."""

import re
from collections.abc import Iterator
from itertools import chain

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
    get_latest_nvml_snapshot,
    make_fail_observation,
)
from hpctl.detection.procs import ProcessScanner, ProcTask, list_threads

# Tasks that have slept in the kernel for a minute without running, and in whose code.
#
# Every read from a disk shows state D; so a task counts from the first run at which it was in D,
# and only while its context switches do not grow: it has not run in between. Kernel threads are
# left out: some wait so when idle, and a stuck one soon blocks a process.
#
# Of processes on a GPU every thread is examined: PyTorch's backward pass and NCCL call the driver
# from separate threads, while the first one waits for them. Of others the first represents all.

MOST_THREADS = 512
"""Limit of the threads of one process that are examined."""


MOST_STUCK = 1024
"""Limit of the tasks whose place is read, the longest asleep first: the many that wait for a slow
file server must not hide the one that waits for a GPU."""


FRAMES = 12


# Modules as /proc/<pid>/stack names them in brackets, and what their functions' names begin with
# for kernels that show no stack but `wchan`.
DRIVERS = {
    "nvidia": (r"\[nvidia(_\w+)?\]", r"^(nvidia_|nv_|rm_|_nv\d|uvm_|os_acquire_)"),
    "efa": (r"\[(efa|ib_uverbs)\]", r"^(efa_|ib_uverbs_|uverbs_)"),
    "neuron": (r"\[neuron\]", r"^(neuron_|ndma_|nc_|ncdev_)"),
    "lustre": (r"\[(lustre|ptlrpc|mdc|osc|lov|lmv|obdclass|lnet)\]", r"^(ll_|ptlrpc_|ldlm_|cl_)"),
    "nfs": (r"\[(nfsv?\d*|sunrpc)\]", r"^(nfs\d*_|rpc_)"),
}


_BRACKETS = {name: re.compile(module) for name, (module, _) in DRIVERS.items()}


_WORDS = {name: re.compile(word, re.MULTILINE) for name, (_, word) in DRIVERS.items()}


_FRAME = re.compile(r"^\[<[^>]*>\]\s*", re.MULTILINE)


class StuckTask(Struct, frozen=True):
    """A task in D that has not run for `asleep_s`, and where in the kernel it sleeps."""

    pid: int
    comm: str
    asleep_s: float
    where: str


class _SleepingTaskRecord(Struct, frozen=True):
    since: float
    switches: str


SCAN = ProcessScanner()


KNOWN: dict[tuple[int, int], _SleepingTaskRecord] = {}
"""Tasks in D at the last look, by pid and start: when they were first seen, and their switches."""


def list_stuck_tasks(machine: CheckedMachine) -> tuple[StuckTask, ...]:
    """Return all tasks in D, longest first. Raises CheckResultUnknownError without a /proc."""
    now = machine.monotonic()
    found: dict[tuple[int, int], _SleepingTaskRecord] = {}
    stuck = []
    for task in _list_uninterruptible_sleep_tasks(machine):
        key, switches = (task.pid, task.start), _read_task_context_switches(machine, task)
        known = KNOWN.get(key)
        if known is None or known.switches != switches:
            known = _SleepingTaskRecord(now, switches)
        found[key] = known
        stuck.append((now - known.since, task))
    KNOWN.clear()
    KNOWN.update(found)
    stuck.sort(key=lambda pair: (-pair[0], pair[1].pid))
    # A task that was not in D at the last look cannot have been so for long: its place is not read.
    return tuple(
        StuckTask(
            task.pid, task.comm, age, read_task_kernel_stack(machine, task.pid) if age else ""
        )
        for age, task in stuck[:MOST_STUCK]
    )


def _list_uninterruptible_sleep_tasks(machine: CheckedMachine) -> Iterator[ProcTask]:
    on_gpus = _list_gpu_pids(machine)
    for task in SCAN.tasks(machine):
        if task.state == "D":
            yield task
        elif task.threads > 1 and (task.state == "Z" or task.pid in on_gpus):
            yield from (t for t in list_threads(machine, task, MOST_THREADS) if t.state == "D")


def _list_gpu_pids(machine: CheckedMachine) -> frozenset[int]:
    """Return the processes that NVML saw last; none where it hangs, which `gpu.hung` reports."""
    try:
        seen = get_latest_nvml_snapshot(machine)
    except (DeviceAbsentError, CheckResultUnknownError):
        return frozenset()
    processes = chain.from_iterable(gpu.processes or () for gpu in seen.gpus)
    return frozenset(process.pid for process in processes)


def _read_task_context_switches(machine: CheckedMachine, task: ProcTask) -> str:
    """Return how often a task has run, as text to compare. Empty once it has ended."""
    try:
        text = machine.text(f"/proc/{task.pid}/status")
    except (DeviceAbsentError, CheckResultUnknownError):
        return ""
    return text.partition("\nvoluntary_ctxt_switches")[2]


def read_task_kernel_stack(machine: CheckedMachine, pid: int) -> str:
    """Return the kernel's stack of a task, else the function it sleeps in; empty where neither
    shows."""
    for name in ("stack", "wchan"):
        try:
            text = machine.text(f"/proc/{pid}/{name}")
        except (DeviceAbsentError, CheckResultUnknownError):
            continue
        if text and text != "0":
            return "\n".join(_FRAME.sub("", text).splitlines()[:FRAMES])
    return ""


def find_driver_in_kernel_stack(where: str) -> str:
    """Return the driver of a stack, by the topmost frame that names one; empty for any other."""
    for frame in where.splitlines():
        for name in DRIVERS:
            if _BRACKETS[name].search(frame) or _WORDS[name].match(frame):
                return name
    return ""


def judge_stuck_tasks(
    seen: tuple[StuckTask, ...], before: tuple[StuckTask, ...] | None, limits: Limits
) -> Judged:
    """Return one observation a driver, with the task that has slept longest in it as evidence."""
    reported: set[str] = set()
    for stuck in seen:
        name = (
            find_driver_in_kernel_stack(stuck.where) if stuck.asleep_s >= limits["asleep_s"] else ""
        )
        if name and name not in reported:
            reported.add(name)
            detail = f"{stuck.comm} ({stuck.pid}) has not run for {stuck.asleep_s:.0f} s"
            yield make_fail_observation(name, "", detail, " < ".join(stuck.where.splitlines()))
