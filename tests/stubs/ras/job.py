"""The job that the stand-in tells of, and what the service says of it in JSON and in text.

Written from NCCL's user guide (RAS) and from what src/ras/client_support.cc of the releases named
prints; `RELEASES` holds what differs between them.
"""

import json
from collections import defaultdict

from msgspec import Struct, field

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
ERRORS = {2: "System error", 6: "Remote process error"}


class Release(Struct, frozen=True):
    json: bool
    per_operation: bool
    """2.26 and later: counts of each operation, and missing ranks with their process."""
    digits: int


RELEASES = {
    "2.24.3": Release(json=False, per_operation=False, digits=2),
    "2.26.2": Release(json=False, per_operation=True, digits=2),
    "2.28.3": Release(json=False, per_operation=True, digits=3),
    "2.28.7": Release(json=True, per_operation=True, digits=3),
    "2.30.7": Release(json=True, per_operation=True, digits=3),
}


class Process(Struct):
    """One rank, one GPU."""

    host: str
    pid: int
    cuda: int
    nvml: int
    dead: bool = False
    unresponsive: bool = False


class Communicator(Struct):
    """Its ranks, by index into the job's processes, and what each has launched."""

    hash: int
    members: list[int]
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    """By rank of this communicator; 0 of each operation where not set."""
    errors: dict[int, int] = field(default_factory=dict)
    finalizing: set[int] = field(default_factory=set)

    def launched(self, rank: int) -> dict[str, int]:
        return {name: self.counts.get(rank, {}).get(name, 0) for name in FUNCTIONS}

    def step(self, operation: str = "AllReduce", times: int = 1, but: tuple[int, ...] = ()) -> None:
        for rank in range(len(self.members)):
            if rank not in but:
                mine = self.counts.setdefault(rank, {})
                mine[operation] = mine.get(operation, 0) + times


class Job(Struct):
    processes: list[Process]
    communicators: list[Communicator]

    def there(self, one: Communicator) -> list[int]:
        return [r for r in range(len(one.members)) if self._answers(one, r)]

    def _answers(self, one: Communicator, rank: int) -> bool:
        process = self.processes[one.members[rank]]
        return not process.dead and not process.unresponsive

    def absent(self, one: Communicator) -> list[int]:
        there = set(self.there(one))
        return [rank for rank in range(len(one.members)) if rank not in there]


def job(nodes: int = 2, gpus: int = 4, reverse: bool = False) -> Job:
    """One process a GPU, one communicator of all, one of each GPU index (data parallel)."""
    processes = [
        Process(
            f"10.0.0.{1 + node}", 1000 * (node + 1) + gpu, gpu, gpus - 1 - gpu if reverse else gpu
        )
        for node in range(nodes)
        for gpu in range(gpus)
    ]
    everyone = list(range(nodes * gpus))
    return Job(processes, [Communicator(0xAE94423CFBB2EF4A, everyone)])


def as_json(state: Job, release: str) -> str:
    communicators = []
    for one in state.communicators:
        ranks = [_json_rank(state, one, rank) for rank in state.there(one)]
        missing = [_json_missing(state, one, rank) for rank in state.absent(one)]
        communicators.append(
            {
                "hash": f"0x{one.hash:x}",
                "secondary_hash": f"0x{one.hash + 1:x}:0x{one.hash + 2:x}",
                "size": len(one.members), "ranks_count": len(ranks),
                "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": missing,
            }
        )  # fmt: skip
    document = {
        "nccl_version": release, "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
        "timestamp": "2026-11-21 13:06:53", "communicators_count": len(communicators),
        "communicators": communicators, "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }  # fmt: skip
    return json.dumps(document, indent=2) + "\n"


def _json_process(state: Job, one: Communicator, rank: int) -> dict[str, object]:
    p = state.processes[one.members[rank]]
    return {"rank": rank, "host": p.host, "pid": p.pid, "cuda_dev": p.cuda, "nvml_dev": p.nvml}


def _json_rank(state: Job, one: Communicator, rank: int) -> dict[str, object]:
    status = {
        "init_state": 0, "async_error": one.errors.get(rank, 0),
        "finalize_called": rank in one.finalizing, "destroy_flag": False, "abort_flag": False,
    }  # fmt: skip
    counts = one.launched(rank)
    return {**_json_process(state, one, rank), "status": status, "collective_counts": counts}


def _json_missing(state: Job, one: Communicator, rank: int) -> dict[str, object]:
    process = state.processes[one.members[rank]]
    gone = process.dead or process.unresponsive
    status = {"unresponsive": gone, "considered_dead": process.dead}
    return {**_json_process(state, one, rank), "status": status}


def as_text(state: Job, release: str) -> str:
    """A section for each communicator with something to say, each a group of its own."""
    r = RELEASES[release]
    hosts = {process.host for process in state.processes}
    lines = [
        f"NCCL version {release} compiled with CUDA 12.8",
        "CUDA runtime version 12080, driver version 12080", "", "Job summary", "===========", "",
        "  Nodes  Processes         GPUs  Processes     GPUs",
        "(total)   per node  per process    (total)  (total)",
        f"{len(hosts):7d}  {len(state.processes) // len(hosts):9d}  {1:11d}"
        f"  {len(state.processes):9d}  {len(state.processes):7d}",
        "", f"Communicators... ({0.01:.{r.digits}f}s)", "=============", "",
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
        "    #  in group  per comm  per node  per comm  in group",
    ]  # fmt: skip
    for number, one in enumerate(state.communicators):
        status = "FINALIZE" if one.finalizing else "RUNNING"
        lines.append(
            f"{number:5d}  {1:8d}  {len(hosts):8d}  {'4':>8s}  {len(one.members):8d}"
            f"  {len(state.there(one)):8d}  {status:>8s}  {_flags(state, one):>6s}"
        )
    lines += ["", "Errors", "======", "", *_dead(state)]
    for number, one in enumerate(state.communicators):
        lines += _incomplete(state, one, number, r) + _failed(state, one, number)
    lines += ["Warnings", "========", ""]
    if any(process.unresponsive for process in state.processes):
        lines += ["TIMEOUT", "  Encountered 2 communication timeouts while gathering data", ""]
    for number, one in enumerate(state.communicators):
        lines += _mismatch(state, one, number, r)
    return "\n".join(lines) + "\n"


def _flags(state: Job, one: Communicator) -> str:
    flags = ["INCOMPLETE"] if state.absent(one) else []
    flags += ["ERROR"] if one.errors else []
    differs = len({tuple(one.launched(rank).items()) for rank in state.there(one)}) > 1
    flags += ["MISMATCH"] if differs else []
    return ",".join(flags) or "OK"


def _managed(state: Job, one: Communicator, rank: int) -> str:
    p = state.processes[one.members[rank]]
    gpu = f"{p.cuda}" if p.cuda == p.nvml else f"{p.cuda} (NVML {p.nvml})"
    return f"GPU {gpu} managed by process {p.pid} on node {p.host}"


def _dead(state: Job) -> list[str]:
    dead = [process for process in state.processes if process.dead]
    if not dead:
        return []
    text = f"  {len(dead)} job process is considered dead (unreachable via the RAS network)"
    rows = [f"  Process {p.pid} on node {p.host} managing GPU {p.cuda}" for p in dead]
    return ["DEAD", text, *rows, ""]


def _incomplete(state: Job, one: Communicator, number: int, r: Release) -> list[str]:
    gone = state.absent(one)
    if not gone:
        return []
    s = "s" if len(gone) > 1 else ""
    head = f"#{number}-0 ({one.hash:016x}) INCOMPLETE"
    lines = [head, f"  Missing communicator data from {len(gone)} rank{s}"]
    if r.per_operation:
        lines += [f"  Rank {rank} -- {_managed(state, one, rank)}" for rank in gone]
    else:
        lines += [f"  The missing rank{s}: {','.join(map(str, gone))}"]
    return [*lines, ""]


def _failed(state: Job, one: Communicator, number: int) -> list[str]:
    if not one.errors:
        return []
    s = "s" if len(one.errors) > 1 else ""
    lines = [f"#{number}-0 ({one.hash:016x}) ERROR"]
    lines += [f"  Asynchronous error{s} on {len(one.errors)} rank{s}"]
    by_code: dict[int, list[int]] = defaultdict(list)
    for rank, code in one.errors.items():
        by_code[code].append(rank)
    for code, ranks in by_code.items():
        if len(ranks) > 1:
            lines.append(f"  {len(ranks)} ranks reported {ERRORS[code]}")
            lines += [f"  Rank {rank} -- {_managed(state, one, rank)}" for rank in ranks]
        else:
            whose = _managed(state, one, ranks[0])
            lines.append(f"  Rank {ranks[0]} reported {ERRORS[code]} -- {whose}")
    return [*lines, ""]


def _mismatch(state: Job, one: Communicator, number: int, r: Release) -> list[str]:
    lines: list[str] = []
    there = state.there(one)
    for name in FUNCTIONS if r.per_operation else ("collective",):
        groups: dict[int, list[int]] = defaultdict(list)
        for rank in there:
            mine = one.launched(rank)
            groups[mine[name] if r.per_operation else sum(mine.values())].append(rank)
        if len(groups) < 2:
            continue
        lines.append(f"  Communicator ranks have different {name} operation counts")
        for count, ranks in sorted(groups.items(), key=lambda g: -len(g[1])):
            lines += _group(state, one, count, ranks, r)
        lines.append("")
    return [f"#{number}-0 ({one.hash:016x}) MISMATCH", *lines] if lines else []


def _group(state: Job, one: Communicator, count: int, ranks: list[int], r: Release) -> list[str]:
    some = count or not r.per_operation
    did = f"launched up to operation {count}" if some else "not launched any operations"
    if len(ranks) == 1:
        return [f"  Rank {ranks[0]} has {did} -- {_managed(state, one, ranks[0])}"]
    few = ranks if 2 * len(ranks) < len(one.members) else []
    return [
        f"  {len(ranks)} ranks have {did}",
        *(f"  Rank {rank} -- {_managed(state, one, rank)}" for rank in few),
    ]
