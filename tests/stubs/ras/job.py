"""The job that the stand-in reports, and the JSON that the service makes of it.

Written from the user guide of NCCL (RAS) and from what src/ras/client_support.cc of 2.28.7
to 2.30.7 prints.
"""

import json

from msgspec import Struct, field

NEWEST = "2.30.7"
FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


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


def as_json(state: Job, release: str = NEWEST) -> str:
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
