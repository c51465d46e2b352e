"""How many authenticated reports a second one core's intake takes, real munged included.

The rivals are the same messages with a MUNGE credential each, which is what sessions are for, and
the bare web server answering "hello": what remains is what it costs to believe a report.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from benchmarks.fleet import Deed, Member, cpu_seconds, join_all, munged, new_key, rush
from benchmarks.table import Outcome, Row, median

RUNS = 3
SECONDS = 3.0
AGENTS = 64
"""Connections, each with one message under way."""
BAR = 5000.0


class Intake(Struct, frozen=True):
    """A running daemon, its intake and the two munged, of its node and of the agents'."""

    process: subprocess.Popen[str]
    port: int
    pid: int
    """The intake's process; the rival's is the daemon's own."""
    head_munged: int
    agents_socket: Path

    def cpu(self) -> float:
        """Processor seconds that daemon, intake and munged have used so far."""
        pids = {self.process.pid, self.pid, self.head_munged}
        return sum(cpu_seconds(pid) for pid in pids)

    def own_cpu(self) -> float:
        """Processor seconds of the intake alone: all but the daemon's main thread, the loop's."""
        loop = cpu_seconds(self.process.pid, self.process.pid)
        return self.cpu() - cpu_seconds(self.head_munged) - loop


@contextmanager
def running(nodes: int = 0, mode: str = "hpctl", *, pinned: bool = True) -> Iterator[Intake]:
    """An intake in a process of its own; pinned: on one core together with its munged."""
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        key = new_key(directory)
        with (
            munged(directory, "head", key) as (head_socket, head_munged),
            munged(directory, "agents", key) as (agents_socket, _),
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.intake_at", str(head_socket), str(nodes), mode],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                output = json.loads(process.stdout.readline())
                for pid in (process.pid, output["intake"], head_munged) if pinned else ():
                    _pin(pid, {max(os.sched_getaffinity(0))})
                yield Intake(process, output["port"], output["intake"], head_munged, agents_socket)
            finally:
                process.stdin.close()
                process.wait(30)


def _pin(pid: int, core: set[int]) -> None:
    """All threads of a process on one core: the bar is that of one core."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), core)


class Rate(Struct, frozen=True):
    """Messages by the clock, and by the processor time of intake and munged."""

    a_second: float
    a_cpu_second: float


def _rate(intake: Intake, members: list[Member], deed: Deed) -> Rate:
    async def go() -> Rate:
        await join_all(members)
        before = intake.cpu()
        count, seconds = await rush(members, deed, SECONDS)
        return Rate(count / seconds, count / (intake.cpu() - before))

    return asyncio.run(go())


def _measured(mode: str, deed: Deed, first: int) -> Rate:
    with running(mode=mode) as intake:
        members = [Member(first + n, intake.port, intake.agents_socket) for n in range(AGENTS)]
        return _rate(intake, members, deed)


def run() -> Outcome:
    """Ours and the rivals in turn."""
    deeds: dict[str, tuple[str, Deed]] = {
        "heartbeat": ("hpctl", Member.heartbeat),
        "heartbeat, credential": ("hpctl", Member.heartbeat_by_credential),
        "event": ("hpctl", Member.event),
        "event, credential": ("hpctl", Member.event_by_credential),
    }
    rates: dict[str, list[Rate]] = {name: [] for name in (*deeds, "hello")}
    for _ in range(RUNS):
        for name, (mode, deed) in deeds.items():
            rates[name].append(_measured(mode, deed, 0))
        rates["hello"].append(_hello_rate())
    by_cpu = {name: median([r.a_cpu_second for r in found]) for name, found in rates.items()}
    by_clock = {name: median([r.a_second for r in found]) for name, found in rates.items()}
    each, bare = "a MUNGE credential each", "bare uvicorn, hello"
    unit = "/CPU s"
    rows = [
        Row(
            "heartbeats in sessions",
            by_cpu["heartbeat"], unit, each, by_cpu["heartbeat, credential"], BAR, least=True,
        ),
        Row("heartbeats in sessions", by_cpu["heartbeat"], unit, bare, by_cpu["hello"]),
        Row(
            "reports of a new finding, stored",
            by_cpu["event"], unit, each, by_cpu["event, credential"],
        ),
        Row(
            "heartbeats by the clock, on one core",
            by_clock["heartbeat"], "/s", bare, by_clock["hello"],
        ),
        Row(
            "stored reports by the clock, on one core",
            by_clock["event"], "/s", each, by_clock["event, credential"],
        ),
    ]  # fmt: skip
    notes = [
        f"medians of {RUNS} runs of {SECONDS:g} s, {AGENTS} connections; intake and its munged"
        " are pinned to one core with the daemon and all counted; the agents have another munged",
        "/CPU s: in one second of that core's time. By the clock it is less where others have"
        " the core too, as on this machine the agents do",
        "journal_mode=WAL, synchronous=FULL: what waits at the same time is stored in one go",
    ]
    return Outcome("intake", rows, notes)


def _hello_rate() -> Rate:
    async def go(intake: Intake) -> Rate:
        members = [Member(n, intake.port, intake.agents_socket) for n in range(AGENTS)]
        for member in members:
            await member.connect()
        before = intake.cpu()
        count, seconds = await rush(members, Member.hello, SECONDS)
        return Rate(count / seconds, count / (intake.cpu() - before))

    with running(mode="hello") as intake:
        return asyncio.run(go(intake))
