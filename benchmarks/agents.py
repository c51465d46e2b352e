"""Ten thousand agents that are well: what hearing them costs, and how long one waits.

One connection an agent, a heartbeat every ten seconds each, real munged, real journal, with the
daemon's own loop at work beside them: its reading of Slurm's text holds the interpreter's lock,
and that is what a heartbeat waits for. The rivals: the same heartbeats with a MUNGE credential
each, and the same bytes to the bare web server, which shows how much of a wait is the machine's.
"""

import asyncio
import resource
import time
from pathlib import Path

from msgspec import Struct

from benchmarks.fleet import Deed, Member, beat, cpu_seconds, join_all
from benchmarks.intake import Intake, running
from benchmarks.table import Outcome, Row, median, p99

AGENTS = 10_000
EVERY_S = 10.0
SECONDS = 30.0
RIVAL_SECONDS = 10.0
RIVAL_AGENTS = 500
"""More credentials a second from one address than the intake's bounds allow were refused."""
CPU_BAR = 25.0
P99_BAR_MS = 50.0


class Figures(Struct, frozen=True):
    """What was seen while all agents sent heartbeats."""

    taken: list[float]
    intake_percent: float
    daemon_percent: float

    @property
    def ms(self) -> list[float]:
        return [1e3 * t for t in self.taken]


def run() -> Outcome:
    """All agents join, then beat; then once more with credentials."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < AGENTS + 100:
        raise RuntimeError(f"{AGENTS} connections need more than {hard} open files (ulimit -Hn)")
    with running(nodes=AGENTS, pinned=False) as intake:
        joined_s, ours, rival, memory = asyncio.run(_measure(intake))
    with running(nodes=AGENTS, mode="busy", pinned=False) as intake:
        treating = asyncio.run(_treating(intake))
    with running(nodes=AGENTS, mode="hello", pinned=False) as intake:
        hello = asyncio.run(_hello(intake))
    each, bare, calm = "a MUNGE credential each", "bare uvicorn, hello", "none open"
    rows = [
        Row(
            f"{AGENTS:,} agents: intake and munged, of one core",
            ours.intake_percent, "%", each, rival.intake_percent * AGENTS / RIVAL_AGENTS, CPU_BAR,
        ),
        Row(
            f"{AGENTS:,} agents: intake and munged, of one core",
            ours.intake_percent, "%", bare, hello.intake_percent,
        ),
        Row("heartbeat to answer, p99", p99(ours.ms), "ms", bare, p99(hello.ms), P99_BAR_MS),
        Row("heartbeat to answer, median", median(ours.ms), "ms", bare, median(hello.ms)),
        Row("the same with a recovery open, p99", p99(treating.ms), "ms", calm, p99(ours.ms)),
        Row("the same, median", median(treating.ms), "ms", calm, median(ours.ms)),
        Row("the whole daemon, its loop included, of one core", ours.daemon_percent, "%"),
        Row("the daemon's memory with all connections open", memory, "MB"),
        Row("all agents join after a restart", joined_s, "s"),
    ]  # fmt: skip
    notes = [
        f"{len(ours.taken):,} heartbeats in {SECONDS:g} s, each agent every {EVERY_S:g} s, spread"
        f" evenly; the rivals for {RIVAL_SECONDS:g} s; all answered",
        "the agents' process shares the machine, and its own delays are in the times, ours and the"
        " rivals' alike; the bare server has the same loop beside it",
        f"with a credential each: {RIVAL_AGENTS} agents, times {AGENTS // RIVAL_AGENTS}",
        "with a recovery open: the loop goes round without a pause, and reads the whole of Slurm"
        " each time, where the daemon reads a part",
        "joining: a report by credential each, which opens its session; as fast as it goes, while"
        " real agents come within their next heartbeat",
    ]
    return Outcome("agents", rows, notes)


async def _measure(intake: Intake) -> tuple[float, Figures, Figures, float]:
    members = [Member(n, intake.port, intake.agents_socket) for n in range(AGENTS)]
    begun = time.perf_counter()
    await join_all(members)
    joined_s = time.perf_counter() - begun
    memory = memory_mb(intake.process.pid) + memory_mb(intake.pid)
    ours = await _beating(intake, members, Member.heartbeat, SECONDS)
    few = members[:: AGENTS // RIVAL_AGENTS]
    rival = await _beating(intake, few, Member.heartbeat_by_credential, RIVAL_SECONDS)
    return joined_s, ours, rival, memory


async def _treating(intake: Intake) -> Figures:
    members = [Member(n, intake.port, intake.agents_socket) for n in range(AGENTS)]
    await join_all(members)
    return await _beating(intake, members, Member.heartbeat, RIVAL_SECONDS)


async def _hello(intake: Intake) -> Figures:
    members = [Member(n, intake.port, intake.agents_socket) for n in range(AGENTS)]
    for member in members:
        await member.connect()
    return await _beating(intake, members, Member.hello, RIVAL_SECONDS)


async def _beating(intake: Intake, members: list[Member], deed: Deed, seconds: float) -> Figures:
    def used() -> tuple[float, float]:
        munged = cpu_seconds(intake.head_munged)
        return intake.own_cpu() + munged, intake.cpu()

    before = used()
    taken = await beat(members, deed, EVERY_S, seconds)
    after = used()
    percent = [100 * (b - a) / seconds for a, b in zip(before, after, strict=True)]
    return Figures(taken, percent[0], percent[1])


def memory_mb(pid: int) -> float:
    """What a process has in memory."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS in /proc")
