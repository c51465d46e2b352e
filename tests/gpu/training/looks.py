"""What hpctl sees of ranks that hang: their stacks, and NCCL's RAS service."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.gpu.boxes import wait_for
from tests.gpu.training.ranks import Rank

RAS_S = 12.0


def wait_until_hung(folder: Path, ranks: list[Rank], culprit: int, limit_s: float) -> str:
    """Wait until the culprit is where it hangs and the others are where they wait.

    Returns "" or why that did not come.
    """
    files = [folder / f"hung.{culprit}"]
    files += [folder / f"waits.{rank}" for rank in range(len(ranks)) if rank != culprit]

    def is_over() -> bool:
        return all(file.exists() for file in files) or any(rank.code is not None for rank in ranks)

    if not wait_for(is_over, limit_s):
        return f"it never hung within {limit_s:.0f} s"
    if not all(file.exists() for file in files):
        errors = " | ".join(rank.err[-300:] for rank in ranks if rank.code not in (None, 0))
        return f"exit codes {[rank.code for rank in ranks]}: {errors}"
    return ""


def look_at_stacks(job: int, world: int, *, native: bool) -> dict[str, Any]:
    """Return what `hpctl stacks` makes of the ranks of a job, one "node" each, timed."""
    from hpctl.jobs.hangs import stacks
    from hpctl.jobs.hangs.stack_groups import diagnose_hang_from_rank_stacks

    began = time.monotonic()

    def look(rank: int) -> Any:
        return stacks.read_node_stacks(str(job), os.geteuid(), f"n{rank}", "", native=native)

    with ThreadPoolExecutor(world) as pool:
        dumps = list(pool.map(look, range(world)))
    took_s = time.monotonic() - began
    verdict = diagnose_hang_from_rank_stacks(dumps, [f"n{rank}" for rank in range(world)])
    return {
        "took_s": round(took_s, 2),
        "text": verdict.text,
        "suspects": [[one.rank, one.function, one.why[:200]] for one in verdict.suspects],
        "groups": [[list(group.ranks), group.place] for group in verdict.groups],
        "errors": list(verdict.errors),
        "flight": [one.flight for dump in dumps for one in dump.ranks],
    }


def names_only(stacks: dict[str, Any], culprit: int) -> bool:
    """Return whether stacks name the culprit and nobody else."""
    return [suspect[0] for suspect in stacks["suspects"]] == [culprit]


def talk_to_ras(port: int, *, as_json: bool) -> bytes:
    """Return what NCCL's RAS service answers, as it comes. Raises OSError."""
    with socket.create_connection(("localhost", port), timeout=RAS_S) as talk:
        stream = talk.makefile("rb")
        words = ["CLIENT PROTOCOL 2", "TIMEOUT 5"]
        if as_json:
            words.append("SET FORMAT json")
        for word in words:
            talk.sendall(word.encode() + b"\n")
            if not stream.readline():
                raise OSError(f"RAS closed the connection after {word!r}")
        talk.sendall(b"VERBOSE STATUS\n")
        return stream.read()


def judge_by_ras(port: int, apart_s: float) -> dict[str, Any]:
    """Return whom hpctl names by two looks at the RAS service. Raises HpctlError."""
    from hpctl.jobs.hangs import ras_judge, ras_report

    where = ras_report.parse_ras_address(f"localhost:{port}")
    first = ras_judge.RasReportSample(ras_report.query_ras_service(where, RAS_S), time.monotonic())
    time.sleep(apart_s)
    second = ras_judge.RasReportSample(ras_report.query_ras_service(where, RAS_S), time.monotonic())
    finding = ras_judge.diagnose_hang_from_ras_samples(first, second)
    return {
        "cause": str(finding.cause),
        "why": finding.why,
        "ranks": [member.rank for member in finding.members],
        "sure": finding.sure,
    }
