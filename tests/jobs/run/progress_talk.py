"""Processes that tell their progress, and what was heard of it."""

import os
import socket
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

from hpctl import progress
from hpctl.jobs.run.progress_notes import (
    ProgressNote,
    ProgressNoteFileReader,
    ProgressNoteListener,
    ReceivedProgressNote,
)
from tests.process import run_text
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]


def environment(address: str, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "SLURM_PROCID")}
    return {**kept, "PYTHONPATH": str(ROOT), progress.VARIABLE: address, "RANK": "3", **more}


def python(code: str, address: str, **more: str) -> str:
    done = run_text(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment(address, **more), check=True
    )
    return done.stdout


def heard(
    source: ProgressNoteListener | ProgressNoteFileReader, many: int, timeout: float = PATIENCE_S
) -> list[ProgressNote]:
    found: list[ReceivedProgressNote] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < many and time.monotonic() < deadline:
        found += source.take()
        time.sleep(0.01)
    return [one.note for one in found]


CALLS = """
    from hpctl import progress
    progress.phase("warm up")
    progress.step(12, loss=0.25, tokens=4096, lr=0.5)
    with progress.saving():
        pass
    progress.checkpoint("/a dir/50%", 12, seconds=1.5)
    progress.done()
"""


@contextmanager
def sender(address: str):
    kind, _, where = address.partition(":")
    if kind == "unix":
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix:
            yield lambda raw: unix.sendto(raw, where)
    else:
        host, port = where.partition(",")[0].rsplit(":", 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            yield lambda raw: udp.sendto(raw, (host, int(port)))
