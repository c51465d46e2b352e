"""Faults of hpctl's own parts and of what they stand on, each with its end.

| kind | what happens | over |
|---|---|---|
| agent-killed, intake-killed, page-killed | SIGKILL | its keeper has started another |
| daemon-in-PHASE | SIGKILL while a recovery is in that phase | it is started, as by systemd |
| slurmctld-away | SIGKILL of slurmctld | it is started |
| database-away | SIGKILL of MariaDB's server; of a file, its directory is gone | it is back |
| clock-head, clock-node | the daemon's, or an agent's, wall clock is set | it is right again |
| crowded-queue | an array of 100,000 tasks waits | it is cancelled |
| few-descriptors, little-memory | prlimit(2) on the running daemon | the limit is lifted |
| second-daemon | a second daemon is started on the same state | it has ended |
| disk-full | the state directory's file system is full | room is made |
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hpctl.sandbox.proctree import list_descendants
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary import job_recovery, node_recovery
from hpctl.vocabulary.job_recovery import JobRecoveryPhase
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from tests.daemon.chaos import Chaos
from tests.soak.scene import Fault, Scene, Strike
from tests.soak.status import Struck

BLOCK = 1 << 16
DISK_MIB = 300
"""More than hpctl wants free (hpctl/engine/state_disk.py), and quickly filled."""
PHASE_S = 25.0
"""How long a daemon waits to be killed in its phase: where none comes, nothing is struck."""
CLOCK_S = (30, 200, 3600)
"""How far a clock is off: within what MUNGE takes, at its end, and beyond it. slurmctld keeps the
machine's own, which on a real head is the daemon's as well: so no node gets a mark of HyperPod's
health agent meanwhile, whose age is told by both."""
NAMED_S, FULL_S = 10.0, 12.0
"""How soon `status` names a full disk, and for how long one is full at least."""
CROWD = 100_000
OFF = (
    NodeRecoveryPhase.ACCEPTING,
    NodeRecoveryPhase.UNRESERVING,
    JobRecoveryPhase.SAVING,
    JobRecoveryPhase.EXCISING,
)
"""Phases of features that the soak's configuration has off, or that pass within one cycle."""


@contextmanager
def small_disk() -> Iterator[Path]:
    """Mount a file system of DISK_MIB for a state directory. Needs root."""
    point = Path(tempfile.mkdtemp(prefix="hpctl-disk-"))
    point.chmod(0o755)
    options = f"size={DISK_MIB}m,mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)
        point.rmdir()


def _kill_agent(scene: Scene) -> Struck | None:
    node = scene.node_of_a_job()
    if not node:
        return None
    scene.live.sandbox.inject(node, "kill-agent")
    return Struck(f"the agent of {node} is killed")


def _kill_child(word: bytes, name: str) -> Strike:
    """Kill a process that the daemon keeps, known by an argument of it."""

    def strike(scene: Scene) -> Struck | None:
        daemon = daemon_pid(scene.live)
        for pid in list_descendants(daemon) if daemon else []:
            if word in arguments_of(pid):
                os.kill(pid, signal.SIGKILL)
                return Struck(f"{name} (pid {pid}) is killed")
        return None

    return strike


def arguments_of(pid: int) -> list[bytes]:
    """Return a process's arguments; none where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def daemon_pid(live: Chaos) -> int:
    """Return the daemon's pid; 0 while it does not run."""
    return int(live.sandbox.status()["services"].get("daemon", 0))


def _kill_in(phase: NodeRecoveryPhase | JobRecoveryPhase) -> Strike:
    """Kill the daemon the moment that a recovery is journaled to be in a phase."""
    recoveries: dict[type, Callable[[Chaos], list[str]]] = {
        NodeRecoveryPhase: lambda live: [r.phase for r in live.node_recoveries()],
        JobRecoveryPhase: lambda live: [r.phase for r in live.job_recoveries()],
    }

    def strike(scene: Scene) -> Struck | None:
        look = recoveries[type(phase)]
        until, broken = time.monotonic() + PHASE_S, False
        while phase not in look(scene.live):
            if time.monotonic() > until:
                return None
            if not broken:
                broken = _break_a_node(scene)
            time.sleep(0.02)
        scene.live.sandbox.kill_daemon()
        back = time.time() + scene.chance.choice((0.1, 1, 4))
        line = f"the daemon is killed in {phase}"
        return Struck(line, back, lambda: start_daemon(scene.live))

    return strike


def _break_a_node(scene: Scene) -> bool:
    """Break a node that has a job, for a recovery to be there."""
    node = scene.node_of_a_job()
    if node:
        scene.live.sandbox.inject(node, "xid", code=scene.chance.choice((48, 79)))
    return bool(node)


def start_daemon(live: Chaos) -> None:
    """Start the daemon as its unit's Restart= does, until it serves. Raises HpctlError after 120 s
    of trying."""
    until = time.monotonic() + 120
    while not daemon_pid(live):
        try:
            live.sandbox.start_daemon()
        except HpctlError:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def _lose_slurmctld(scene: Scene) -> Struck | None:
    if not scene.slurm_has_saved():
        return None
    sandbox = scene.live.sandbox
    sandbox.kill_slurmctld()
    back = time.time() + scene.chance.uniform(2, scene.around.away_s)
    return Struck("slurmctld is away", back, sandbox.start_slurmctld, "Slurm cannot be read")


def _lose_database(scene: Scene) -> Struck | None:
    """End the database's server; of a file, rename its directory."""
    back = time.time() + scene.chance.uniform(2, scene.around.away_s)
    database = scene.around.database
    if database is not None:
        away = database.away()
        away.__enter__()
        return Struck("the database is away", back, lambda: away.__exit__(None, None, None))
    here = scene.live.config.state_dir
    there = here.rename(here.with_name(f"{here.name}-away"))
    return Struck("the state directory is away", back, lambda: there.rename(here))


def _set_clock(host: Callable[[Scene], str | None]) -> Strike:
    def strike(scene: Scene) -> Struck | None:
        name = host(scene)
        if name is None:
            return None
        if scene.marked:
            return None
        offset = scene.chance.choice(CLOCK_S) * scene.chance.choice((-1, 1))
        scene.live.sandbox.set_clock(name, offset)
        back = time.time() + scene.chance.uniform(3, 15)
        line = f"the clock of {name or 'the head'} is set by {offset:+d} s"
        return Struck(line, back, lambda: scene.live.sandbox.set_clock(name, 0))

    return strike


def _crowd_queue(scene: Scene) -> Struck | None:
    """Submit a held array of 100,000 tasks.

    As records of their own they are more than slurmctld 22.05 takes: it answers nothing for minutes
    while they are cancelled.
    """
    sandbox = scene.live.sandbox
    script = Path(sandbox.state_dir) / "crowd.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    held = ["--parsable", "--hold", f"--array=1-{CROWD}", "--output=/dev/null", "--gres=gpu:8"]
    job = sandbox.run(["sbatch", *held, str(script)]).stdout.strip()

    def cancel() -> None:
        sandbox.run(["scancel", job], check=False, timeout=120)

    back = time.time() + scene.chance.uniform(10, 30)
    return Struck(f"{CROWD} jobs are queued", back, cancel)


def _limit(kind: int, used: Callable[[int], int], spare: int, what: str) -> Strike:
    """Bound what the running daemon may have, by what it uses and a few more."""

    def strike(scene: Scene) -> Struck | None:
        pid = daemon_pid(scene.live)
        if not pid:
            return None
        before = resource.prlimit(pid, kind)
        bound = used(pid) + scene.chance.randint(0, spare)
        resource.prlimit(pid, kind, (bound, before[1]))

        def lift() -> None:
            # Where it ended meanwhile there is no limit left, and its successor has none.
            if daemon_pid(scene.live) == pid:
                resource.prlimit(pid, kind, before)

        back = time.time() + scene.chance.uniform(3, 12)
        return Struck(f"the daemon has {bound} {what}", back, lift)

    return strike


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _half_the_memory(pid: int) -> int:
    """Half of the address space that a process has: it gets no more of it, and what it starts has
    enough."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize() // 2


def _start_second(scene: Scene) -> Struck | None:
    """Start a second daemon on the same state: it must end, and say why."""
    if not daemon_pid(scene.live):
        return None
    done = scene.live.second_daemon()
    assert done.returncode == 1, f"a second daemon ran: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return Struck("a second daemon is started, and refused")


def _fill_disk(scene: Scene) -> Struck | None:
    disk = scene.around.disk
    if disk is None or scene.around.database is not None:
        return None
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        # Until there is no room: the daemon writes meanwhile.
        while True:
            file.write(bytes(BLOCK))
    back = time.time() + scene.chance.uniform(FULL_S, max(FULL_S, scene.around.away_s))
    return Struck("the state disk is full", back, ballast.unlink, "short of room", named_s=NAMED_S)


def _head(_: Scene) -> str:
    return ""


def _node(scene: Scene) -> str | None:
    return scene.node_of_a_job() or None


_PHASES = [p for p in NodeRecoveryPhase if p not in node_recovery.ENDS and p not in OFF]
_JOB_PHASES = [p for p in JobRecoveryPhase if p not in job_recovery.ENDS and p not in OFF]

OWN_FAULTS = (
    Fault("agent-killed", 2, _kill_agent),
    Fault("intake-killed", 2, _kill_child(b"hpctl.daemon.intake", "the intake")),
    Fault("page-killed", 1, _kill_child(b"page", "the page")),
    *(Fault(f"daemon-in-{phase}", 1, _kill_in(phase), of_head=True) for phase in _PHASES),
    *(Fault(f"daemon-in-job-{phase}", 1, _kill_in(phase), of_head=True) for phase in _JOB_PHASES),
    Fault("slurmctld-away", 2, _lose_slurmctld, of_head=True),
    Fault("database-away", 3, _lose_database, of_head=True),
    Fault("clock-head", 3, _set_clock(_head), of_head=True),
    Fault("clock-node", 2, _set_clock(_node)),
    Fault("crowded-queue", 1, _crowd_queue, of_head=True),
    Fault(
        "few-descriptors",
        2,
        _limit(resource.RLIMIT_NOFILE, _descriptors, 4, "descriptors"),
        of_head=True,
    ),
    Fault(
        "little-memory",
        2,
        _limit(resource.RLIMIT_AS, _half_the_memory, 0, "bytes of address space"),
        of_head=True,
    ),
    Fault("second-daemon", 1, _start_second, of_head=True),
    Fault("disk-full", 2, _fill_disk, of_head=True),
)
