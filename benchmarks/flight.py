"""What it costs to name the rank that a job of 1,000 ranks waits for, by torch's flight recorder.

Made-up dumps in the form of torch 2.11 (dump version 2.10): 2,000 entries of 25 frames a rank, in
the world's group; one rank is one collective behind. The whole way of `hpctl run` is measured:
files, unpickled by bounded processes, aligned, and the answer read. The rival is what a person
would write: `pickle.loads` of every file in one process, which trusts them, and the alignment.
A second figure aligns 16,384 ranks from parsed entries, of which the reader keeps a few of each.
"""

import pickle
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.table import Outcome, Row
from hpctl.jobs.hangs.flight_files import MANY_FILES, diagnose_hang_from_dumps_in_subprocess
from hpctl.jobs.hangs.flight_recorder import (
    FlightRecorderDump,
    FlightRecorderEntry,
    FlightRecorderProcessGroup,
    diagnose_hang_from_recorder_dumps,
)

RANKS, ENTRIES, FRAMES = 1000, 2000, 25
LARGE = 16_384
KEPT = 8
"""Completed entries that are kept of each rank of a large job."""
BAR_S, BAR_MIB = 10.0, 2048.0


def make_dump(count: int, ranks: str) -> bytes:
    """Return the dump of a rank that waits in the last of ENTRIES collectives, if it came."""
    library = "/opt/venv/lib/python3.12/site-packages/torch"
    frames = [
        {"name": f"call_{n}", "filename": f"{library}/layer_{n}.py", "line": 10 + n}
        for n in range(FRAMES - 1)
    ]
    frames.append({"name": "train_step", "filename": "/shared/train.py", "line": 87})
    entries = [make_entry(seq, list(frames)) for seq in range(1, count + 1)]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    document = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
    return pickle.dumps(document, protocol=2)


def make_entry(seq: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one collective with the fields of torch 2.11."""
    return {
        "frames": frames,
        "record_id": seq - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python",
        "thread_id": "140140563464512",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1795768110452372746 + seq,
        "input_sizes": [[65536]],
        "input_dtypes": ["Float"],
        "output_sizes": [[65536]],
        "output_dtypes": ["Float"],
        "state": "completed" if seq < ENTRIES else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1795768110452372746 + seq,
        "retired": seq < ENTRIES,
        "timeout_ms": 600000,
        "is_p2p": False,
    }


def write_dumps(prefix: str) -> int:
    """Write the dumps of a job whose rank 617 is late; return the bytes of one."""
    ranks = str(list(range(RANKS)))
    waits, late = make_dump(ENTRIES, ranks), make_dump(ENTRIES - 1, ranks)
    for rank in range(RANKS):
        Path(f"{prefix}{rank}").write_bytes(late if rank == 617 else waits)
    return len(waits)


def make_parsed() -> list[FlightRecorderDump]:
    """Return what the reader keeps of a large job whose rank 617 is late."""
    group = FlightRecorderProcessGroup("0", "default_pg", tuple(range(LARGE)))
    return [
        FlightRecorderDump(
            rank,
            (group,),
            tuple(
                FlightRecorderEntry("0", seq, "all_reduce", (65536,), ("Float",), seq < ENTRIES)
                for seq in range(ENTRIES - KEPT, ENTRIES + (rank != 617))
            ),
        )
        for rank in range(LARGE)
    ]


def wall_and_cpu_s(work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall clock's and the processors' seconds, of child processes too."""
    before, begun = _used_s(), time.monotonic()
    work()
    return time.monotonic() - begun, _used_s() - before


def _used_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def load_all(prefix: str) -> None:
    """The rival's reading."""
    for rank in range(RANKS):
        pickle.loads(Path(f"{prefix}{rank}").read_bytes())


def run() -> Outcome:
    """Measure."""
    outcome = Outcome("flight")
    with tempfile.TemporaryDirectory() as folder:
        prefix = f"{folder}/flight-"
        size = write_dumps(prefix)
        found: list[tuple[int, ...]] = []
        wall, cpu = wall_and_cpu_s(
            lambda: found.append(
                diagnose_hang_from_dumps_in_subprocess(prefix, 0.0, read_s=600).ranks
            )
        )
        # Of the largest child so far, which is one of the readers.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        _, rival = wall_and_cpu_s(lambda: load_all(prefix))
    parsed = make_parsed()
    _, large = wall_and_cpu_s(lambda: found.append(diagnose_hang_from_recorder_dumps(parsed).ranks))
    plain = "pickle.loads of each file"
    outcome.rows = [
        Row(f"dumps of {RANKS} ranks", wall, "s", bar=BAR_S),
        Row("the same, processor time", cpu, "s", plain, rival),
        Row("the largest process", peak, "MiB", bar=BAR_MIB),
        Row(f"alignment of {LARGE} ranks", large, "s", bar=BAR_S),
        Row("right of 2 culprits", 50.0 * found.count((617,)), "%", bar=100, least=True),
    ]
    outcome.notes = [
        f"{ENTRIES} entries and {size / 1000:.0f} kB a rank; above {MANY_FILES} dumps an eighth of"
        " the entries is kept"
    ]
    return outcome
