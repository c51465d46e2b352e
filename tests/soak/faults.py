"""What a soak does to a cluster: each fault as it comes in life, and how it passes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpctl.ports import HpctlError
from tests.integration.chaos import Chaos
from tests.soak.jobs import Job


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was done: a line about it, and what ends it (at `until`, if it must end)."""

    line: str
    until: float = 0.0
    end: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a fault may strike."""

    live: Chaos
    jobs: list[Job]
    chance: random.Random

    def node_of_a_job(self) -> str:
        """A node in service with a running job on it, else any in service, else ""."""
        view = self.live.scheduler.view()
        fine = {n for n, node in view.nodes.items() if node.in_service and node.responding}
        mine = {job.number for job in self.jobs}
        busy = {n for j in view.jobs.values() if j.running and int(j.id) in mine for n in j.nodes}
        pool = sorted(fine & busy) or sorted(fine)
        return str(self.chance.choice(pool)) if pool else ""

    def rank(self, *, missed: bool = False) -> int:
        """The pid of a random rank of a random job, 0 where none runs. `missed`: of a job in which
        somebody misses it, a supervisor or another rank."""
        jobs = [job for job in self.jobs if job.shape.ranks > 1 or not missed]
        pids = [pid for job in jobs for pid in ranks_of(job)]
        return self.chance.choice(pids) if pids else 0


def ranks_of(job: Job) -> list[int]:
    """The training processes of a job, found by the checkpoint directory that they were given."""
    mark = f"HPCTL_CHECKPOINT_DIR={job.directory}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = any(each.startswith(b"SLURM_PROCID=") for each in environment)
        # srun and `hpctl run` have the environment too, and the words; a rank is the interpreter
        # that runs the training itself.
        python = b"python" in words[0].rpartition(b"/")[2]
        training = words[1:3] == [b"-m", b"hpctl.sandbox.training"]
        if python and training and rank and mark in environment:
            found.append(int(entry.name))
    return found


def _xid(code: int) -> Callable[[Scene], Struck | None]:
    def strike(scene: Scene) -> Struck | None:
        node = scene.node_of_a_job()
        if not node:
            return None
        scene.live.sandbox.inject(node, "xid", code=code)
        return Struck(f"Xid {code} on {node}")

    return strike


def _mark(action: str) -> Callable[[Scene], Struck | None]:
    def strike(scene: Scene) -> Struck | None:
        node = scene.node_of_a_job()
        if not node:
            return None
        scene.live.sandbox.inject(node, f"hma-{action}")
        return Struck(f"HyperPod's health agent wants {node} to {action}")

    return strike


def _kill_node(scene: Scene) -> Struck | None:
    node = scene.node_of_a_job()
    if not node:
        return None
    scene.live.sandbox.inject(node, "kill-node")
    return Struck(f"{node} dies")


def _freeze_node(scene: Scene) -> Struck | None:
    node = scene.node_of_a_job()
    if not node:
        return None
    scene.live.sandbox.inject(node, "freeze-node")

    def thaw() -> None:
        # Replaced meanwhile, it is another machine, and nothing is frozen.
        try:
            scene.live.sandbox.inject(node, "thaw-node")
        except HpctlError:
            return

    return Struck(f"{node} freezes", time.time() + scene.chance.uniform(3, 25), thaw)


def _hang_agent(scene: Scene) -> Struck | None:
    node = scene.node_of_a_job()
    if not node:
        return None
    scene.live.sandbox.inject(node, "hang-agent")
    return Struck(f"the agent of {node} hangs")


def _kill_rank(scene: Scene) -> Struck | None:
    pid = scene.rank()
    return _signal(pid, signal.SIGKILL, f"rank {pid} is killed") if pid else None


def _stop_rank(scene: Scene) -> Struck | None:
    # That a rank alone does nothing is seen by `hpctl run` only, under which this one is not.
    pid = scene.rank(missed=True)
    return _signal(pid, signal.SIGSTOP, f"rank {pid} hangs") if pid else None


def _signal(pid: int, number: signal.Signals, line: str) -> Struck | None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return None
    return Struck(line)


def _tear_checkpoint(scene: Scene) -> Struck | None:
    """A shard of the newest checkpoint loses its second half, as after a full disk."""
    job = scene.chance.choice(scene.jobs)
    shards = sorted(job.directory.glob("step-*[0-9]/rank-*.npz"))
    if len(shards) < 4 * job.shape.ranks:  # leave it something to resume from
        return None
    try:
        os.truncate(shards[-1], shards[-1].stat().st_size // 2)
    except FileNotFoundError:
        return None
    return Struck(f"{shards[-1].parent.name} of job {job.number} is torn")


STATE_SAVE_S = 10.0
"""slurmctld writes its jobs down up to 5 s late (SAVE_MAX_WAIT): killed before, it forgets a job
that it has just accepted, and gives its number to the next one. No one could heal that."""


def _lose_slurmctld(scene: Scene) -> Struck | None:
    sandbox = scene.live.sandbox
    if any(time.time() - job.submitted < STATE_SAVE_S for job in scene.jobs):
        return None
    sandbox.kill_slurmctld()
    back = time.time() + scene.chance.uniform(0.5, 6)
    return Struck("slurmctld dies", back, sandbox.start_slurmctld)


def _lose_daemon(scene: Scene) -> Struck | None:
    sandbox = scene.live.sandbox
    sandbox.kill_daemon()
    back = time.time() + scene.chance.uniform(0.1, 6)
    return Struck("the daemon is killed", back, sandbox.start_daemon)


def _api(kind: str, **how: object) -> Callable[[Scene], Struck | None]:
    def strike(scene: Scene) -> Struck | None:
        sandbox = scene.live.sandbox
        sandbox.inject_api(kind, **how)
        end = time.time() + scene.chance.uniform(2, 10)
        return Struck(f"the cloud: {kind}", end, lambda: sandbox.inject_api("clear"))

    return strike


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind, and how often it comes beside the others."""

    name: str
    weight: int
    strike: Callable[[Scene], Struck | None]


FAULTS = (
    Fault("xid-79", 3, _xid(79)),
    Fault("xid-48", 2, _xid(48)),
    Fault("xid-154", 1, _xid(154)),
    Fault("xid-31", 1, _xid(31)),
    Fault("hma-reboot", 1, _mark("reboot")),
    Fault("hma-replace", 1, _mark("replace")),
    Fault("kill-node", 2, _kill_node),
    Fault("freeze-node", 2, _freeze_node),
    Fault("hang-agent", 1, _hang_agent),
    Fault("kill-rank", 4, _kill_rank),
    Fault("stop-rank", 2, _stop_rank),
    Fault("torn-checkpoint", 3, _tear_checkpoint),
    Fault("slurmctld", 1, _lose_slurmctld),
    Fault("daemon", 2, _lose_daemon),
    Fault("throttle", 1, _api("throttle", calls=5)),
    Fault("latency", 1, _api("latency", seconds=1.0, calls=5)),
    Fault("drop-reply", 1, _api("drop-reply", calls=1)),
    Fault("no-capacity", 1, _api("no-capacity", seconds=0.5, calls=2)),
)
