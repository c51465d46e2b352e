"""A Slurm in memory: states, COMPLETING, the 121 s begin delay; deterministic, its time passed in.

It keeps what was seen on real clusters, and the same contract suite runs on both: a requeued job
waits 121 s once COMPLETING has cleared; StartTime=now sent while COMPLETING is lost; DOWN kills
or requeues at once and drops the node from the completing set; DOWN alone returns to service when
slurmd registers, DRAIN and FAIL do not; each of these two clears the other. A requeue that reaches
it for a COMPLETING job brings it down. Nothing happens between calls of `tick`.
"""

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, field

from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode, SlurmReservation

BEGIN_DELAY_S = 121.0
EPILOG_S = 1.0
SLURMD_TIMEOUT_S = 300.0
REGISTER_S = 300.0
MIN_JOB_AGE_S = 300.0
UID = 1001
"""Whose jobs they are."""


class Node(Struct):
    """What slurmctld keeps of a node."""

    name: NodeName
    down: bool = False
    drained: bool = False
    failed: bool = False
    reason: str = ""
    reason_at: datetime | None = None
    responding: bool = True
    silent_since: datetime | None = None
    registered: datetime | None = None
    booted: datetime | None = None

    @property
    def foreign(self) -> bool:
        """Closed by somebody who is not hpctl."""
        return (self.drained or self.failed) and parse_recovery_id_from_reason(self.reason) is None

    def shut(self) -> tuple[bool, bool, str]:
        """What an administrator sees of it."""
        return (self.down, self.drained or self.failed, self.reason)

    def close(self, reason: str, at: datetime, *, fail: bool = False) -> None:
        """DRAIN or FAIL, each of which clears the other."""
        self.drained, self.failed, self.reason, self.reason_at = not fail, fail, reason, at


class Job(Struct):
    """What slurmctld keeps of a job, and what the test wants to know besides."""

    id: JobId
    submit: datetime
    size: int
    runtime_s: float
    requeue: bool = True
    comment: str = ""
    no_kill: bool = False
    least: int = 0
    """Of a range of nodes; `size` is the most."""
    per_node: int = 0
    tasks: int = 0
    last_size: int = 0
    state: str = "PENDING"
    restarts: int = 0
    nodes: tuple[NodeName, ...] = ()
    batch_host: NodeName | None = None
    exit_code: str = ""
    excluded: tuple[NodeName, ...] = ()
    admin_comment: str = ""
    completing_since: datetime | None = None
    begin: datetime | None = None
    revoked: tuple[datetime, tuple[NodeName, ...]] | None = None
    held: bool = False
    start: datetime | None = None
    end: datetime | None = None
    reason: str = ""
    name: str = ""
    reservation: str = ""
    wanted: NodeName | None = None
    runs: int = 0
    signals: int = 0
    hit: list[tuple[datetime, NodeName, int]] = field(default_factory=list)

    @property
    def running(self) -> bool:
        return self.state == "RUNNING"


class Slurmctld:
    """A controller. `alive`: whether a node's slurmd runs and can be reached."""

    def __init__(
        self,
        nodes: Sequence[NodeName],
        now: Callable[[], datetime],
        alive: Callable[[NodeName], bool],
        booted: Callable[[NodeName], str],
    ) -> None:
        self.now, self._alive, self._booted = now, alive, booted
        self.nodes = {n: Node(n, registered=now(), booted=now()) for n in nodes}
        self._boots = {n: booted(n) for n in nodes}
        self.jobs: dict[JobId, Job] = {}
        self.epilog_s, self.test_s = EPILOG_S, 20.0
        self.ghosts = False
        """Slurm 25.11: a --no-kill job that lost its batch host stays RUNNING."""
        self.away = False
        self.crashed = ""
        self._ids = 0
        self.reserved: dict[str, tuple[NodeName, ...]] = {}
        self.maintenance: dict[str, SlurmReservation] = {}

    def submit(
        self,
        size: int,
        runtime_s: float,
        *,
        requeue: bool = True,
        comment: str = "",
        exclude: tuple[NodeName, ...] = (),
        no_kill: bool = False,
        least: int = 0,
        per_node: int = 0,
        name: str = "",
        wanted: NodeName | None = None,
    ) -> JobId:
        """A user submits a job; with `wanted`, hpctl its test of that node, in its reservation."""
        self._ids += 1
        job = Job(self._ids, self.now(), size, runtime_s, requeue, comment, no_kill)
        job.excluded, job.least, job.per_node = exclude, least, per_node
        job.tasks = (least or size) * (per_node or 1)
        job.name, job.wanted, job.reservation = name, wanted, name if wanted else ""
        self.jobs[job.id] = job
        self.tick()
        return job.id

    def fail_job(self, job: Job, state: str = "FAILED", exit_code: str = "1:0") -> None:
        """A job ends by itself."""
        if job.running:
            job.exit_code = exit_code if state == "FAILED" else "0:0"
            self._end(job, state)

    def cancel(self, job: Job) -> None:
        """A user cancels a job."""
        if job.state in ("RUNNING", "PENDING"):
            self._end(job, "CANCELLED")

    def release(self, job: Job) -> None:
        """A user releases a held job."""
        job.held = False

    def operator(
        self, node: NodeName, *, drain: str = "", fail: str = "", resume: bool = False
    ) -> None:
        """Somebody uses scontrol."""
        mine = self.nodes[node]
        if drain or fail:
            mine.close(drain or fail, self.now(), fail=bool(fail))
        if resume:
            self.resume(mine)

    def tick(self) -> None:
        """Do what is due."""
        now = self.now()
        for node in self.nodes.values():
            self._ping(node, now)
        for job in list(self.jobs.values()):
            self._go_on(job, now)
        self.schedule(now)

    def _ping(self, node: Node, now: datetime) -> None:
        if not self._alive(node.name):
            node.responding = False
            node.silent_since = node.silent_since or now
            if not node.down and now - node.silent_since >= timedelta(seconds=SLURMD_TIMEOUT_S):
                node.reason = f"{node.reason} : Not responding" if node.reason else "Not responding"
                self.set_down(node)
            return
        boot = self._booted(node.name)
        registered = node.registered
        due = registered is None or now - registered >= timedelta(seconds=REGISTER_S)
        if boot != self._boots[node.name]:
            self._lose_processes(node)
            self._boots[node.name], node.booted, due = boot, now, True
        if due or not node.responding:
            node.registered = now
            if node.down:
                node.down = False
                if not (node.drained or node.failed):
                    node.reason = ""
        node.responding, node.silent_since = True, None

    def _lose_processes(self, node: Node) -> None:
        """A node that registers after a reboot has none of the steps that slurmctld expects."""
        for job in self.jobs.values():
            if job.running and node.name in job.nodes:
                self._kill(job, node)

    def _go_on(self, job: Job, now: datetime) -> None:
        if job.completing_since is not None:
            done = now - job.completing_since >= timedelta(seconds=self.epilog_s)
            if done and all(self._cleaned(n) for n in job.nodes):
                self._completed(job, now)
        if job.running and job.start is not None:
            frozen = any(not self._alive(n) for n in job.nodes)
            if not frozen and now - job.start >= timedelta(seconds=job.runtime_s):
                self._end(job, "COMPLETED")

    def _cleaned(self, node: NodeName) -> bool:
        return self.nodes[node].down or self._alive(node)

    def completing_on(self, job: Job) -> tuple[NodeName, ...]:
        """The nodes that keep a job COMPLETING: those on which its Epilog has not ended."""
        if job.completing_since is None:
            return ()
        if self.now() - job.completing_since < timedelta(seconds=self.epilog_s):
            return tuple(job.nodes)
        return tuple(name for name in job.nodes if not self._cleaned(name))

    def _completed(self, job: Job, now: datetime) -> None:
        job.completing_since = None
        if job.state == "PENDING":
            job.nodes, job.submit, job.batch_host = (), now, None
            if job.begin is None or job.begin <= now:
                job.begin = now + timedelta(seconds=BEGIN_DELAY_S)

    def schedule(self, now: datetime) -> None:
        busy = {
            n
            for j in self.jobs.values()
            if j.running or j.completing_since is not None
            for n in j.nodes
        }
        for job in self.jobs.values():
            if job.state != "PENDING" or job.completing_since is not None:
                continue
            if job.held:
                job.reason = "JobHeldUser"
                continue
            if job.begin is not None and job.begin > now:
                job.reason = "BeginTime"
                continue
            free = [n for n in self.nodes if n not in busy and self._open(n, job)]
            # --ntasks-per-node makes tasks of nodes at the first start: no fewer will do then.
            least = max(job.least or job.size, math.ceil(job.tasks / (job.per_node or job.tasks)))
            if len(free) < least:
                job.reason = "Resources"
                continue
            self._start(job, tuple(free[: job.size]), now)
            busy.update(job.nodes)

    def _open(self, name: NodeName, job: Job) -> bool:
        node = self.nodes[name]
        held = any(name in names for r, names in self.reserved.items() if r != job.reservation)
        outside = job.reservation and name not in self.reserved.get(job.reservation, ())
        held = held or bool(outside) or (job.wanted or name) != name
        shut = node.down or node.drained or node.failed or name in job.excluded or held
        return not shut and node.responding

    def _start(self, job: Job, nodes: tuple[NodeName, ...], now: datetime) -> None:
        if job.revoked and self._refuse(nodes, *job.revoked):
            job.state, job.nodes, job.start, job.end = "FAILED", nodes, now, now
            return
        if job.running or job.completing_since is not None:
            self.crashed = f"job {job.id} runs twice at once"
        job.state, job.nodes, job.start, job.end, job.reason = "RUNNING", nodes, now, None, ""
        job.batch_host, job.last_size = nodes[0], len(nodes)
        job.tasks = len(nodes) * job.per_node or job.tasks
        job.runs += 1

    def _refuse(
        self, nodes: tuple[NodeName, ...], ended: datetime, on: tuple[NodeName, ...]
    ) -> bool:
        """Whether a slurmd has revoked the credential: it counts whole seconds."""
        return int(self.now().timestamp()) <= int(ended.timestamp()) and bool({*nodes} & {*on})

    def _end(self, job: Job, state: str) -> None:
        now = self.now()
        if job.running:
            job.completing_since, job.revoked = now, (now, job.nodes)
        job.state, job.end = state, now

    def _excise(self, job: Job, node: Node) -> None:
        """Take a node away from a --no-kill job, which runs on; without its batch host it fails,
        or before that was fixed in 25.11 it does not even notice."""
        job.nodes = tuple(n for n in job.nodes if n != node.name)
        if job.batch_host == node.name and not self.ghosts:
            job.exit_code, job.reason = "0:9", "JobLaunchFailure"
            self._end(job, "FAILED")

    def _kill(self, job: Job, node: Node) -> None:
        now = self.now()
        if job.no_kill and len(job.nodes) > 1:
            self._excise(job, node)
            return
        job.hit.append((now, node.name, job.restarts))
        if job.requeue:
            self._back_to_queue(job, now)
        else:
            self._end(job, "NODE_FAIL")

    def _back_to_queue(self, job: Job, now: datetime) -> None:
        if job.running:
            job.revoked = (now, job.nodes)
        job.completing_since = now
        job.state, job.restarts = "PENDING", job.restarts + 1
        job.end, job.reason, job.begin = None, "BeginTime", None

    def set_down(self, node: Node) -> None:
        node.down = True
        for job in self.jobs.values():
            if job.running and node.name in job.nodes:
                self._kill(job, node)

    def resume(self, node: Node) -> None:
        node.drained = node.failed = node.down = False
        node.reason = ""

    def requeue_unchecked(self, job: Job) -> None:
        """What slurmctld does when a requeue reaches it, whoever sent it."""
        if job.completing_since is not None:
            self.crashed = f"job {job.id} was requeued while COMPLETING"
            return
        ended = not job.running
        now = self.now()
        self._back_to_queue(job, now)
        if ended:
            self._completed(job, now)

    def kept(self, job: Job, now: datetime) -> bool:
        """Whether slurmctld still has it: ended jobs go after MinJobAge."""
        old = job.end is not None and now - job.end > timedelta(seconds=MIN_JOB_AGE_S)
        return not old or job.completing_since is not None

    def node(self, node: Node) -> SlurmNode:
        flags = {"DRAIN"} if node.drained else {"FAIL"} if node.failed else set()
        if not node.responding:
            flags.add("NOT_RESPONDING")
        here = [j for j in self.jobs.values() if node.name in j.nodes]
        if any(j.completing_since is not None for j in here):
            flags.add("COMPLETING")
        state = "ALLOCATED" if any(j.running for j in here) else "IDLE"
        return SlurmNode(
            node.name, "DOWN" if node.down else state, frozenset(flags), node.reason,
            partitions=("all",), boot_time=node.booted, reason_at=node.reason_at,
            last_busy=max((j.end for j in here if j.end is not None), default=node.registered),
        )  # fmt: skip

    def known(self, job: JobId) -> Job | None:
        mine = self.jobs.get(job)
        return mine if mine is not None and self.kept(mine, self.now()) else None


def shown(job: Job, completing_on: tuple[NodeName, ...] = ()) -> SlurmJob:
    return SlurmJob(
        id=job.id, state=job.state, submit=job.submit, restarts=job.restarts,
        flags=frozenset({"COMPLETING"}) if job.completing_since is not None else frozenset(),
        name=job.name or f"job{job.id}", user="hpctl" if job.reservation else "ada",
        partition="all", nodes=job.nodes, excluded=job.excluded, batch_host=job.batch_host,
        exit_code=job.exit_code, uid=UID, requeue=job.requeue, reason=job.reason, start=job.start,
        end=job.end, eligible=job.begin or job.submit, comment=job.comment,
        admin_comment=job.admin_comment, completing_on=completing_on,
        wants=(job.least or job.size) if job.state == "PENDING" else 0,
    )  # fmt: skip
