"""What five thousand strangers cost who connect, say half a head and stay.

A daemon goes round its loop without a pause, agents send their heartbeats, both as ever and then
beside the strangers: the rival is the same daemon, undisturbed, in turn with it in the same run.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

from benchmarks.agents import memory_mb
from benchmarks.fleet import Member, beat, join_all
from benchmarks.intake import Intake, running
from benchmarks.table import Outcome, Row, median, p99

NODES = 200
STRANGERS = 5000
EVERY_S = 1.0
SECONDS = 8.0
ROUNDS = 3
BAR = 1.5
MEMORY_BAR_MB = 300.0


@dataclass
class Seen:
    """Heartbeats in milliseconds, and times round the loop in a second."""

    ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


def run() -> Outcome:
    """Calm and crowded in turn."""
    calm, crowded = Seen(), Seen()
    memory = 0.0
    with running(NODES, "busy", pinned=False) as intake:
        rounds = [0]
        counting = threading.Thread(target=_count, args=(intake, rounds), daemon=True)
        counting.start()
        members = [Member(n, intake.port, intake.agents_socket) for n in range(NODES)]
        for _ in range(ROUNDS):
            asyncio.run(_measure(members, rounds, calm))
            python = ["nice", "-n", "10", sys.executable, "-m", "benchmarks.strangers"]
            words = [*python, str(intake.port), str(STRANGERS)]
            crowd = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert crowd.stdout is not None
            crowd.stdout.readline()
            try:
                asyncio.run(_measure(members, rounds, crowded))
                memory = max(memory, memory_mb(intake.process.pid) + memory_mb(intake.pid))
            finally:
                crowd.kill()
                crowd.wait()
    slower = median(calm.rates) / median(crowded.rates)
    name = "undisturbed"
    rows = [
        Row("heartbeat to answer, p99", p99(crowded.ms), "ms", name, p99(calm.ms)),
        Row("heartbeat to answer, median", median(crowded.ms), "ms", name, median(calm.ms)),
        Row("p99 over the undisturbed one", p99(crowded.ms) / p99(calm.ms), "x", bar=BAR),
        Row("times round the loop", median(crowded.rates), "/s", name, median(calm.rates)),
        Row("undisturbed rate over this one", slower, "x", bar=BAR),
        Row("memory of daemon and intake", memory, "MB", bar=MEMORY_BAR_MB),
    ]
    notes = [
        f"{STRANGERS:,} connections from 100 addresses that have sent half a head and drip on;"
        " whoever is dropped connects again after five seconds or so",
        f"{NODES} agents, a heartbeat every {EVERY_S:g} s each; {ROUNDS} rounds of {SECONDS:g} s"
        " of each kind, in turn; the strangers, who would have machines of their own, are niced",
    ]
    return Outcome("perimeter", rows, notes)


async def _measure(members: list[Member], rounds: list[int], seen: Seen) -> None:
    await join_all(members)
    before, begun = rounds[0], time.monotonic()
    taken = await beat(members, Member.heartbeat, EVERY_S, SECONDS)
    seen.rates.append((rounds[0] - before) / (time.monotonic() - begun))
    seen.ms += [1e3 * t for t in taken]


def _count(intake: Intake, rounds: list[int]) -> None:
    assert intake.process.stdout is not None
    for _ in intake.process.stdout:
        rounds[0] += 1
