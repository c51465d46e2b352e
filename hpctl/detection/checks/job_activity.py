"""Numbers on what the processes of each Slurm job do, by which the head node finds hung jobs.

A process has one of five states, by what the kernel counted since the run before:

- working: it read or wrote, touched new memory, ran its main thread repeatedly between waits, or
  used more than one core; one that is new, or whose children ended, has worked too
- spinning: it used a core, or was ready to, and did none of this
- blocked: it sleeps where no signal reaches it (D), as on a dead file server
- waiting: its main thread sleeps on a futex, as a rank does in a collective of gloo
- asleep: anything else

Only processes that have used RANK_S of processor time are counted: a training run does not wait for
launchers and resource trackers. Those that work count as the node's traffic does. Shells are passed
over: what their children read and wrote is added to their own when those end. GPUs count by their
utilization and power. A process's control group, or the slurmstepd above it, names its job; both
belong to root. Its environment is read once, and only for what concerns this job.
"""

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct, field

from hpctl.detection.check import (
    CheckedMachine,
    CheckFunctions,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
    list_nvml_gpu_states,
)
from hpctl.detection.nvml.snapshot import GpuState
from hpctl.detection.procs import KERNEL_THREAD, read_proc_stat_fields
from hpctl.detection.slurm_jobs import ProcessJobFinder

RANK_S = 2.0
"""Importing torch takes this much."""
MOST_JOBS, MOST_NUMBERS = 16, 40
"""Per node: a report holds 64 numbers, of which hpctl's other checks take 20."""
MOST_PROCESSES = 1024
"""Processes of one job. A job with more counts as working, because any of the others may work: a
user who starts so many hides only that job's hangs."""
IO, FAULTS, SWITCHES, CPU = 64 * 1024, 10.0, 5.0, 0.2
"""From so many bytes, page faults and waits of the main thread a second, and so much of a core on,
a process works. Idle ranks of torch 2.13 show under 1 KiB, 2 faults and 1 % of a core; training,
loading, compiling and writing ones 150 KiB or 500 faults."""
TRAFFIC = 1e6
"""Bytes a second over a node's network cards or disks. They count where the node has a single
job."""
ONCE, AGAIN = 0.5, 1.0
"""Of `traffic`: a single sample may be a log's rotation, or a user's login session."""
_REFRESH = 10
_TICKS = os.sysconf("SC_CLK_TCK")
_VIRTUAL = ("lo", "veth", "docker", "br-", "ifb", "dummy", "virbr", "cni", "tun")
_DISKS = ("nvme", "sd", "vd", "xvd", "md", "dm-")
_HELPER = b"\0HPCTL_HELPER="
"""In the environment of what hpctl runs within a job, which works even while all ranks hang."""
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "busybox")
OTHERS: Mapping[bytes, float] = {b"HYPERPOD_HANG_RULES=": 1.0}
"""Other tools that handle hangs of a job, by variables in its environment."""


class JobProcessSample(Struct, frozen=True):
    """One process of a job. Counters since its start: `cpu` of it and `children` of those that it
    has waited for, in ticks; `io` in bytes; `switches` of its main thread."""

    job: str
    state: str
    cpu: int
    children: int
    faults: int
    io: int
    switches: int
    futex: bool
    other: float

    @property
    def rank(self) -> bool:
        """Return whether a run may wait for it."""
        return self.cpu >= RANK_S * _TICKS


class JobActivitySample(Struct, frozen=True):
    """All jobs' processes by pid and start. `traffic`: bytes of the node's cards and disks so far.
    `gpus`: utilization (0 to 1) and watts of each job's GPUs, means. `crowded`: jobs of which some
    processes were not examined."""

    at: float
    processes: Mapping[tuple[int, int], JobProcessSample]
    traffic: int = 0
    gpus: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    crowded: frozenset[str] = frozenset()


_holders: dict[tuple[int, int], tuple[str, float]] = {}
"""The job of each process that is in one, by pid and start, and which other tool handles it."""
_strangers: set[int] = set()
_crowd: dict[int, str] = {}
"""The job of each process that is not examined, because its job has too many."""
_signs: dict[str, float] = {}
"""The jobs whose last sample showed traffic, with its time."""
_runs = 0


def clear_job_process_cache() -> None:
    """Forget which processes are whose: a process id may be reused."""
    _strangers.clear()
    _crowd.clear()


def clear_job_sample_history() -> None:
    """Forget all that earlier samples showed, as a start of the agent does."""
    global _runs
    _runs = 0
    clear_job_process_cache()
    _holders.clear()
    _signs.clear()


def sample_job_processes(machine: CheckedMachine) -> JobActivitySample:
    """Examine the processes of all jobs. Raises CheckResultUnknownError without a /proc."""
    global _runs
    proc, now = str(machine.path("/proc")), machine.monotonic()
    if _runs % _REFRESH == 0:
        clear_job_process_cache()
    _runs += 1
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    except OSError as error:
        raise CheckResultUnknownError(f"/proc: {error.strerror}") from error
    _strangers.intersection_update(pids)
    for pid in _crowd.keys() - set(pids):
        del _crowd[pid]
    jobs, found = ProcessJobFinder(machine.path("/proc")), dict[tuple[int, int], JobProcessSample]()
    count = Counter[str]()
    for pid in pids:
        if pid not in _strangers and pid not in _crowd:
            with suppress(OSError, ValueError, IndexError):  # it has ended
                _sample_job_process(proc, pid, jobs, found, count)
    for gone in _holders.keys() - found.keys():
        del _holders[gone]
    crowded = frozenset(_crowd.values())
    return JobActivitySample(
        now,
        found,
        _count_node_traffic_bytes(machine),
        _compute_mean_gpu_load_by_job(machine, found),
        crowded,
    )


def _sample_job_process(
    proc: str,
    pid: int,
    jobs: ProcessJobFinder,
    found: dict[tuple[int, int], JobProcessSample],
    count: Counter[str],
) -> None:
    fields = read_proc_stat_fields(f"{proc}/{pid}/stat")
    if fields is None:
        return
    rest = fields[1]
    key, cpu = (pid, int(rest[19])), int(rest[11]) + int(rest[12])
    known = _holders.get(key)
    if known is None:
        job = "" if int(rest[6]) & KERNEL_THREAD else jobs.holder(pid)
        if not job:
            _strangers.add(pid)
            return
        known = _holders[key] = (job, -1.0)
    job, other = known
    if count[job] >= MOST_PROCESSES:
        _crowd[pid] = job
        return
    # A shell may become another program: it is examined again until it has used enough processor
    # time.
    if (cpu < RANK_S * _TICKS or other < 0) and _is_shell_executable(f"{proc}/{pid}/exe"):
        return
    io = switches = 0
    futex = False
    if cpu * 10 >= _TICKS:
        io = sum(_read_proc_file_counters(f"{proc}/{pid}/io", (b"rchar", b"wchar")))
    if cpu >= RANK_S * _TICKS:
        if other < 0:
            # Read while the process computes: one that hangs in a driver may hold the lock of its
            # memory forever.
            environ = b"\0" + _read_file_start(f"{proc}/{pid}/environ", 1 << 16)
            if _HELPER in environ:
                _strangers.add(pid)
                return
            other = max(
                (who for name, who in OTHERS.items() if b"\0" + name in environ), default=0.0
            )
            _holders[key] = (job, other)
        switches = sum(
            _read_proc_file_counters(f"{proc}/{pid}/status", (b"voluntary_ctxt_switches",))
        )
        futex = rest[0] == "S" and b"futex" in _read_file_start(f"{proc}/{pid}/wchan")
    count[job] += 1
    faults = int(rest[7]) + int(rest[9])
    children = int(rest[13]) + int(rest[14])
    found[key] = JobProcessSample(
        job, rest[0], cpu, children, faults, io, switches, futex, max(other, 0.0)
    )


def _is_shell_executable(exe: str) -> bool:
    with suppress(OSError):
        return os.path.basename(os.readlink(exe)) in _SHELLS
    return False


def _read_proc_file_counters(path: str, names: tuple[bytes, ...]) -> list[int]:
    lines = (line.partition(b":") for line in _read_file_start(path).splitlines())
    return [int(value) for name, _, value in lines if name in names]


def _read_file_start(path: str, most: int = 4096) -> bytes:
    """Return the beginning of a file; empty where it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, most)
    except OSError:
        return b""
    finally:
        os.close(file)


def _count_node_traffic_bytes(machine: CheckedMachine) -> int:
    """Return the bytes over real network cards, RDMA ports and disks since the boot."""
    total = 0
    for line in _read_file_start(str(machine.path("/proc/net/dev")), 1 << 16).splitlines()[2:]:
        name, _, rest = line.decode("ascii", "replace").partition(":")
        numbers = rest.split()
        if len(numbers) >= 9 and not name.strip().startswith(_VIRTUAL):
            total += int(numbers[0]) + int(numbers[8])
    for line in _read_file_start(str(machine.path("/proc/diskstats")), 1 << 16).splitlines():
        fields = line.decode("ascii", "replace").split()
        if len(fields) > 9 and fields[2].startswith(_DISKS):
            total += 512 * (int(fields[5]) + int(fields[9]))
    ports = str(machine.path("/sys/class/infiniband"))
    with suppress(OSError):
        for name in os.listdir(ports)[:64]:
            folder = f"{ports}/{name}/ports/1"
            efa = [f"hw_counters/{c}_bytes" for c in ("tx", "rx", "rdma_read", "rdma_write")]
            total += sum(int(_read_file_start(f"{folder}/{c}") or 0) for c in efa)
            counters = ("counters/port_xmit_data", "counters/port_rcv_data")
            total += 4 * sum(int(_read_file_start(f"{folder}/{c}") or 0) for c in counters)
    return total


def _compute_mean_gpu_load_by_job(
    machine: CheckedMachine, found: Mapping[tuple[int, int], JobProcessSample]
) -> Mapping[str, tuple[float, float]]:
    """Return the GPUs that each job's processes are on; all of them where the driver names no
    process."""
    try:
        gpus = list_nvml_gpu_states(machine)
    except (CheckResultUnknownError, DeviceAbsentError):
        return {}
    holders = {pid: process.job for (pid, _), process in found.items()}
    used: dict[str, list[GpuState]] = {}
    for gpu in gpus:
        pids = None if gpu.processes is None else {p.pid for p in gpu.processes}
        for job in {job for pid, job in holders.items() if pids is None or pid in pids}:
            used.setdefault(job, []).append(gpu)
    means = {}
    for job, its in used.items():
        percent = sum(gpu.utilization or 0 for gpu in its) / len(its)
        milliwatts = sum(gpu.power_mw or 0 for gpu in its) / len(its)
        means[job] = (percent / 100, milliwatts / 1000)
    return means


def return_no_observations(
    seen: JobActivitySample, before: JobActivitySample | None, limits: Limits
) -> Judged:
    """Return nothing: only all nodes of a job together show whether it hangs."""
    return ()


def compute_job_activity_gauges(
    seen: JobActivitySample, before: JobActivitySample | None
) -> Mapping[str, float]:
    """Return `job.<id>.<what>` for each job, in turn where not all fit. What is 0 is left out.
    `jobs`: how many there are; where it is present, a job that is not named has no process here."""
    if before is None or seen.at <= before.at:
        return {}
    seconds, jobs = seen.at - before.at, sorted({p.job for p in seen.processes.values()}, key=int)
    turn = _runs % max(len(jobs), 1)
    jobs = jobs[turn:] + jobs[:turn]
    alone = len(jobs) == 1 and seen.traffic - before.traffic > TRAFFIC * seconds
    moved = set(jobs) if alone else set()
    counts: dict[str, dict[str, float]] = {job: {} for job in jobs[:MOST_JOBS]}
    for key, process in seen.processes.items():
        its = counts.get(process.job)
        if its is None:
            continue
        what = classify_process_activity(process, before.processes.get(key), seconds)
        if process.rank:
            its[what] = its.get(what, 0.0) + 1
            its["ranks"] = its.get("ranks", 0.0) + 1
        elif what == "working":
            moved.add(process.job)
        its["other"] = max(its.get("other", 0.0), process.other)
    for job in seen.crowded & counts.keys():
        counts[job]["working"] = counts[job].get("working", 0.0) + 1
    for job in moved & counts.keys():
        counts[job]["traffic"] = AGAIN if _signs.get(job) == before.at else ONCE
    _signs.clear()
    _signs.update(dict.fromkeys(moved, seen.at))
    return _select_job_gauges_for_report(counts, seen, len(jobs))


def _select_job_gauges_for_report(
    counts: Mapping[str, Mapping[str, float]], seen: JobActivitySample, jobs: int
) -> Mapping[str, float]:
    """Return the numbers that fit into a report. Of a job that works, no other number of its
    processes matters."""
    found, complete = {"jobs": float(jobs)}, jobs <= MOST_JOBS
    for job, all_its in counts.items():
        busy, watts = seen.gpus.get(job, (0.0, 0.0))
        works = all_its.get("working")
        its = {**({"working": works} if works else all_its), "gpu_busy": busy, "gpu_w": watts}
        mine = {f"job.{job}.{name}": value for name, value in its.items() if value}
        if len(found) + len(mine) <= MOST_NUMBERS:
            found |= mine
        else:
            complete = False
    if not complete:
        del found["jobs"]
    return found


def classify_process_activity(
    now: JobProcessSample, before: JobProcessSample | None, seconds: float
) -> str:
    """Return what a process did since the run before."""
    if before is None:
        return "working" if now.cpu >= CPU * _TICKS else "asleep"
    cores = (now.cpu - before.cpu) / _TICKS / seconds
    children = (now.children - before.children) / _TICKS / seconds
    switches = (now.switches - before.switches) / seconds if before.rank else 0.0
    if (
        now.io - before.io > IO * seconds
        or now.faults - before.faults > FAULTS * seconds
        or cores > 1.5
        or (cores > CPU and switches > SWITCHES)
        or (now.rank and children > CPU)
    ):
        return "working"
    if now.state == "D":
        return "blocked"
    if cores > CPU or now.state == "R":
        return "spinning"
    return "waiting" if now.futex else "asleep"


CHECKS = {
    "job.activity": CheckFunctions(
        sample_job_processes, return_no_observations, compute_job_activity_gauges
    )
}
"""What the runner calls, by the check's name."""
