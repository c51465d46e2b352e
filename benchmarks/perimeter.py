"""What five thousand strangers cost who connect, say half a head and stay.

A daemon goes round its loop without a pause, agents send their heartbeats: as ever, then beside
the strangers, in turn in the same run. Strangers have machines of their own; here they take
processor time of the two cores that everybody else is on, which alone multiplies a 99th percentile.
So the rival is the same daemon while the same strangers do the same to a listener that nobody
needs and that does next to nothing (`benchmarks.strangers sink`): what remains is what they
cost at our intake. The ratios are medians over the rounds, each of its round's own figures; those
over a machine without strangers are printed beside them.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from benchmarks.agents import memory_mb
from benchmarks.fleet import Member, beat, join_all
from benchmarks.intake import Intake, running
from benchmarks.table import Outcome, Row, median, p99

NODES = 200
STRANGERS = 5000
EVERY_S = 0.5
SECONDS = 6.0
ROUNDS = 7
BAR = 1.5
MEMORY_BAR_MB = 300.0


class Seen(Struct, frozen=True):
    """Heartbeats in milliseconds, and times round the loop in a second, of one round."""

    p99: float
    median: float
    rate: float


def run() -> Outcome:
    """Quiet, strangers elsewhere, strangers here: in turn."""
    quiet: list[Seen] = []
    elsewhere: list[Seen] = []
    here: list[Seen] = []
    memory = 0.0
    with running(NODES, "busy", pinned=False) as intake, _started("sink") as sink:
        rounds = [0]
        counting = threading.Thread(target=_count, args=(intake, rounds), daemon=True)
        counting.start()
        members = [Member(n, intake.port, intake.agents_socket) for n in range(NODES)]
        for _ in range(ROUNDS):
            quiet.append(asyncio.run(_measure(members, rounds)))
            with _started(sink, str(STRANGERS)):
                elsewhere.append(asyncio.run(_measure(members, rounds)))
            with _started(str(intake.port), str(STRANGERS)):
                here.append(asyncio.run(_measure(members, rounds)))
                memory = max(memory, memory_mb(intake.process.pid) + memory_mb(intake.pid))
    name = "strangers elsewhere"
    slower = [e.rate / h.rate for e, h in zip(elsewhere, here, strict=True)]
    rows = [
        _row("heartbeat to answer, p99", [s.p99 for s in here], name, [s.p99 for s in elsewhere]),
        _row("heartbeat to answer, p99", [s.p99 for s in here], "quiet", [s.p99 for s in quiet]),
        _row(
            "heartbeat to answer, median",
            [s.median for s in here], name, [s.median for s in elsewhere],
        ),
        Row("p99 over the rival's", _ratio(here, elsewhere), "x", bar=BAR),
        Row("p99 over that without strangers", _ratio(here, quiet), "x"),
        Row("times round the loop", median([s.rate for s in here]), "/s", name,
            median([s.rate for s in elsewhere])),
        Row("the rival's rate over this one", median(slower), "x", bar=BAR),
        Row("memory of daemon and intake", memory, "MB", bar=MEMORY_BAR_MB),
    ]  # fmt: skip
    notes = [
        f"{STRANGERS:,} connections from 100 addresses that have sent half a head and drip on;"
        " whoever is dropped connects again after five seconds or so",
        f"{NODES} agents, a heartbeat every {EVERY_S:g} s each; medians of {ROUNDS} rounds of"
        f" {SECONDS:g} s of each kind, in turn; strangers and sink are niced",
        "p99 here over elsewhere, by round: "
        + " ".join(f"{h.p99 / e.p99:.2f}" for h, e in zip(here, elsewhere, strict=True)),
    ]
    return Outcome("perimeter", rows, notes)


def _row(what: str, ours: list[float], name: str, rivals: list[float]) -> Row:
    return Row(what, median(ours), "ms", name, median(rivals))


def _ratio(ours: list[Seen], rivals: list[Seen]) -> float:
    return median([o.p99 / r.p99 for o, r in zip(ours, rivals, strict=True)])


@contextmanager
def _started(*arguments: str) -> Iterator[str]:
    """A program of the strangers', and the line that it says when it is in place."""
    python = ["nice", "-n", "10", sys.executable, "-m", "benchmarks.strangers"]
    process = subprocess.Popen([*python, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


async def _measure(members: list[Member], rounds: list[int]) -> Seen:
    await join_all(members)
    before, begun = rounds[0], time.monotonic()
    taken = await beat(members, Member.heartbeat, EVERY_S, SECONDS)
    rate = (rounds[0] - before) / (time.monotonic() - begun)
    return Seen(1e3 * p99(taken), 1e3 * median(taken), rate)


def _count(intake: Intake, rounds: list[int]) -> None:
    assert intake.process.stdout is not None
    for _ in intake.process.stdout:
        rounds[0] += 1
