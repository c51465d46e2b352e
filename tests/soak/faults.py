"""What a soak does to a cluster: each fault as it comes in life, and how it passes.

What `hpctl status` has to name of each kind until it is over, and who says that it is over:

| kind | named | over |
|---|---|---|
| xid-79, -48, -154, hma-*, kill-node | the node | it serves again, on another boot |
| hang-agent | the node | it serves again, and that agent has gone, or goes on |
| freeze-node | the node | it serves again, thawed or on another boot |
| xid-31, kill-rank | the job | another run of it has proved itself or trains, or it has ended |
| stop-rank | the job, once a rank or a supervisor misses it | as above |
| torn-checkpoint | the job, where nothing newer follows | a newer one is saved, or as above |
| slurmctld | that Slurm cannot be read | slurmctld is started |
| daemon | that it is silent, once its lease is over | it is started |
| throttle, latency, drop-reply, no-capacity | each node that waits meanwhile | the cloud answers |

A torn checkpoint harms nobody while the job runs: the next one is whole a moment later, and
`hpctl explain JOB` names it. A run has proved itself once it has run for PROVE_S: on a slow machine
it may have done no step by then, which neither Slurm nor hpctl can tell of a job that reports no
progress. A cloud that errs is no trouble of its own: its own text stands in the lines of the nodes
that wait for it.
"""

import os
import signal
import time
from pathlib import Path

from hpctl.engine.config import ALONE_LEASE_S
from hpctl.toolkit.errors import HpctlError
from tests.soak.jobs import Job
from tests.soak.scene import PROVE_S, Fault, Scene, Strike, environment_of
from tests.soak.status import EVERY_S, Over, Serving, Struck


def _serves_again(scene: Scene, node: str) -> Over:
    """Whether a node serves again on another boot than now."""
    boot = scene.live.sandbox.node_dir(node) / "boot_id"
    before = boot.read_text()

    def over(now: Serving) -> bool | None:
        if now is None:
            return None
        return node in now and boot.exists() and boot.read_text() != before

    return over


def _trains_again(scene: Scene, job: Job) -> Over:
    """Whether another run of a job than those so far has done a step or runs for PROVE_S, or the
    job has ended."""
    before = set(job.directory.glob("progress-*.txt"))
    runs = scene.restarts_of(job)

    def over(now: Serving) -> bool:
        fresh = set(job.directory.glob("progress-*.txt")) - before
        if job.ended or any(path.stat().st_size for path in fresh):
            return True
        return now is not None and _has_proved_itself(scene, job, runs)

    return over


def _has_proved_itself(scene: Scene, job: Job, runs: int) -> bool:
    """Whether a job runs, after more restarts than `runs`, for as long as hpctl waits at least: it
    counts from when it sees the run, which is later than its start."""
    seen = scene.job_in_slurm(job)
    if seen is None or seen.start is None or not seen.running or seen.restarts <= runs:
        return False
    return time.time() - seen.start.timestamp() > PROVE_S - EVERY_S


def _on_node(line: str, kind: str, **how) -> Strike:
    """A fault of a node that has a job, if there is any; `line` tells it of the node."""

    def strike(scene: Scene) -> Struck | None:
        node = scene.node_of_a_job()
        if not node:
            return None
        over = _serves_again(scene, node)
        scene.live.sandbox.inject(node, kind, **how)
        return Struck(line.format(node), subject=node, over=over)

    return strike


def _page_fault(scene: Scene) -> Struck | None:
    """The driver ends the process that did it, and says so: the job's fault, not the node's."""
    job, pid = scene.rank()
    node = environment_of(pid).get("SLURMD_NODENAME", "") if job is not None else ""
    if job is None or not node:
        return None
    scene.live.sandbox.inject(node, "xid", code=31)
    return _signal(scene, job, pid, signal.SIGKILL, f"Xid 31 on {node}, which ends rank {pid}")


def _freeze_node(scene: Scene) -> Struck | None:
    node = scene.node_of_a_job()
    if not node:
        return None
    anew, thawed = _serves_again(scene, node), False
    scene.live.sandbox.inject(node, "freeze-node")

    def over(now: Serving) -> bool | None:
        again = thawed and now is not None and node in now
        return again or anew(now)

    def thaw() -> None:
        nonlocal thawed
        thawed = True
        # Replaced meanwhile, it is another machine, and nothing is frozen.
        try:
            scene.live.sandbox.inject(node, "thaw-node")
        except HpctlError:
            return

    until = time.time() + scene.chance.uniform(3, 25)
    return Struck(f"{node} freezes", until, thaw, node, over)


def _hang_agent(scene: Scene) -> Struck | None:
    node = scene.node_of_a_job()
    if not node:
        return None
    (row,) = [each for each in scene.live.sandbox.status()["nodes"] if each["node"] == node]
    scene.live.sandbox.inject(node, "hang-agent")

    def over(now: Serving) -> bool | None:
        # Who thaws a node wakes its agent, too.
        return None if now is None else node in now and not _stopped(row["agent_pid"])

    return Struck(f"the agent of {node} hangs", subject=node, over=over)


def _stopped(pid: int) -> bool:
    """Whether a process is there and stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def _kill_rank(scene: Scene) -> Struck | None:
    job, pid = scene.rank()
    line = f"rank {pid} is killed"
    return None if job is None else _signal(scene, job, pid, signal.SIGKILL, line)


def _stop_rank(scene: Scene) -> Struck | None:
    # That a rank alone does nothing is seen by `hpctl run` only, under which this one is not.
    job, pid = scene.rank(missed=True)
    return None if job is None else _signal(scene, job, pid, signal.SIGSTOP, f"rank {pid} hangs")


def _signal(scene: Scene, job: Job, pid: int, number: signal.Signals, line: str) -> Struck | None:
    over = _trains_again(scene, job)
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return None
    who = f"Job {job.number}"
    return Struck(f"{line}, of {who} ({job.shape.name})", subject=who, over=over)


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
    torn, anew = shards[-1].parent.name, _trains_again(scene, job)

    def over(now: Serving) -> bool | None:
        newer = any(path.name > torn for path in job.directory.glob("step-*[0-9]"))
        return newer or anew(now)

    who = f"Job {job.number}"
    return Struck(f"{torn} of {who} is torn", subject=who, over=over)


def _lose_slurmctld(scene: Scene) -> Struck | None:
    sandbox = scene.live.sandbox
    if not scene.slurm_has_saved():
        return None
    sandbox.kill_slurmctld()
    back = time.time() + scene.chance.uniform(0.5, 6)
    return Struck("slurmctld dies", back, sandbox.start_slurmctld, "Slurm cannot be read")


LEASE_S = ALONE_LEASE_S
"""Until a daemon's lease is over nobody can tell that it is away."""


def _lose_daemon(scene: Scene) -> Struck | None:
    sandbox = scene.live.sandbox
    sandbox.kill_daemon()
    # Back within its lease, mostly; else status has to miss it.
    back = time.time() + scene.chance.choice((0.1, 2, 6, LEASE_S + 10))
    return Struck("the daemon is killed", back, sandbox.start_daemon, "the daemon on")


def _api(kind: str, **how) -> Strike:
    def strike(scene: Scene) -> Struck | None:
        sandbox = scene.live.sandbox
        sandbox.inject_api(kind, **how)
        end = time.time() + scene.chance.uniform(2, 10)
        return Struck(f"the cloud: {kind}", end, lambda: sandbox.inject_api("clear"))

    return strike


FAULTS = (
    Fault("xid-79", 3, _on_node("Xid 79 on {}", "xid", code=79)),
    Fault("xid-48", 2, _on_node("Xid 48 on {}", "xid", code=48)),
    Fault("xid-154", 1, _on_node("Xid 154 on {}", "xid", code=154)),
    Fault("xid-31", 1, _page_fault),
    Fault("hma-reboot", 1, _on_node("HyperPod's health agent wants {} to reboot", "hma-reboot")),
    Fault("hma-replace", 1, _on_node("HyperPod's health agent wants {} to replace", "hma-replace")),
    Fault("kill-node", 2, _on_node("{} dies", "kill-node"), latent=True),
    Fault("freeze-node", 2, _freeze_node, latent=True),
    Fault("hang-agent", 1, _hang_agent, latent=True), Fault("kill-rank", 4, _kill_rank),
    Fault("stop-rank", 2, _stop_rank, latent=True), Fault("torn-checkpoint", 3, _tear_checkpoint),
    Fault("slurmctld", 1, _lose_slurmctld, of_head=True),
    Fault("daemon", 2, _lose_daemon, of_head=True),
    Fault("throttle", 1, _api("throttle", calls=5)),
    Fault("latency", 1, _api("latency", seconds=1.0, calls=5)),
    Fault("drop-reply", 1, _api("drop-reply", calls=1)),
    Fault("no-capacity", 1, _api("no-capacity", seconds=0.5, calls=2)),
)  # fmt: skip
