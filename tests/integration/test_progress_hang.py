"""A hang, from ranks that really stop."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import datetime

import pytest

from hpctl.core.compat import UTC
from hpctl.core.run_policy import RunPolicy
from hpctl.core.trouble import Kind, Trouble
from hpctl.jobs.progress.listen import NoteListener, listen
from hpctl.jobs.progress.run_progress import RunProgress
from tests.integration.progress_talk import environment

RANK = """
    import sys, time
    from hpctl import progress
    n = 0
    while True:
        n += 1
        progress.phase("compute")
        time.sleep(0.05)
        progress.phase("exchange")
        sys.stdout.write("x")
        sys.stdout.flush()
        if not sys.stdin.read(1):
            break
        progress.step(n, loss=1.0 / n)
"""


class Lockstep:
    """Ranks that wait for each other at each step, as a collective makes them."""

    def __init__(self, address: str, ranks: int) -> None:
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(RANK)],
                env=environment(address, RANK=str(rank), SLURMD_NODENAME=f"n{rank // 2}"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
            )
            for rank in range(ranks)
        ]
        self._thread = threading.Thread(target=self._exchange, daemon=True)
        self._thread.start()

    def _exchange(self) -> None:
        while True:
            for rank in self.ranks:
                assert rank.stdout
                if not rank.stdout.read(1):
                    return
            for rank in self.ranks:
                assert rank.stdin
                try:
                    rank.stdin.write(b"x")
                except BrokenPipeError:
                    return

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
        self._thread.join(timeout=10)
        for rank in self.ranks:
            rank.wait(timeout=10)
            for pipe in (rank.stdin, rank.stdout):
                assert pipe
                pipe.close()


def listened(book: RunProgress, listener: NoteListener, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for one in listener.take():
            book.add(one.note, one.at)
        time.sleep(0.005)


def stop_while_it_computes(
    run: Lockstep, book: RunProgress, listener: NoteListener, rank: int
) -> None:
    """Stop it between its words `compute` and `exchange`; it may get past while it is stopped."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        listened(book, listener, 0.005)
        if (book.step or 0) > 20 and book.ranks[rank].phase == "compute":
            run.ranks[rank].send_signal(signal.SIGSTOP)
            listened(book, listener, 0.3)
            if book.ranks[rank].phase == "compute":
                return
            run.ranks[rank].send_signal(signal.SIGCONT)
    raise AssertionError("it never computes when it is stopped")


@pytest.mark.parametrize("peers", [[], ["localhost"]], ids=["unix", "udp"])
def test_a_rank_that_is_stopped_is_named(peers: list[str]) -> None:
    policy = RunPolicy(hang_floor_s=1.5, hang_factor=3.0)
    book = RunProgress(policy, time.monotonic(), datetime.now(UTC), ranks=4)
    trouble: Trouble | None = None
    with listen(peers) as listener:
        run = Lockstep(listener.address, 4)
        try:
            stop_while_it_computes(run, book, listener, 2)
            stopped = book.moved
            while trouble is None and time.monotonic() < stopped + 30:
                listened(book, listener, 0.05)
                trouble = book.trouble(time.monotonic())
            took = time.monotonic() - stopped
        finally:
            run.kill()
    assert trouble is not None
    assert trouble.kind is Kind.HANG
    assert (trouble.rank, trouble.node) == (2, "n1")
    assert "rank 2 on n1 is in compute, the other 3 in exchange" in trouble.why
    assert took < 10.0
