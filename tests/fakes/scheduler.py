"""The Scheduler over a Slurm in memory, which the same contract suite proves.

What an adapter decides before it sends anything is the real code (`hpctl.slurm.rules`,
`hpctl.slurm.rules`); what slurmctld then does is `tests.fakes.slurmctld`.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType

from msgspec.structs import replace

from hpctl.slurm import rules
from hpctl.slurm.records import PendingJobSize, SlurmJobRecord
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.identity import JobAttempt, JobId, NodeName, RecoveryId
from hpctl.vocabulary.node_test import NodeTestJobSpec
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.preemption_order import PreemptionOrder
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode, SlurmReservation
from tests.fakes.slurmctld import Job, Node, Slurmctld, shown

UNAVAILABLE = Outcome.rejected("unavailable", "slurmctld does not answer", transient=True)


class SimSlurm(Slurmctld):
    """A Scheduler. Its world (`submit`, `fail_job`, `operator`, `tick`, ...) is Slurmctld's."""

    topology: Mapping[NodeName, str] = MappingProxyType({})
    """The leaf of each node."""

    def view(self) -> SchedulerView:
        """Everything; ended jobs for MinJobAge."""
        if self.away or self.crashed:
            raise ServiceUnavailable("slurmctld does not answer", "wait")
        now = self.now()
        kept = [job for job in self.jobs.values() if self.kept(job, now)]
        jobs = {job.id: shown(job, self.completing_on(job)) for job in kept}
        return SchedulerView(now, {n: self.node(v) for n, v in self.nodes.items()}, jobs)

    def part(
        self, nodes: Collection[NodeName], known: Mapping[NodeName, SlurmNode]
    ) -> SchedulerView:
        """All jobs, and no other nodes than these."""
        whole = self.view()
        return replace(whole, nodes={n: node for n, node in whole.nodes.items() if n in nodes})

    def find_jobs(self, ids: Collection[JobId]) -> Mapping[JobId, SlurmJob]:
        """Promised in ports.Scheduler; this one joins nothing."""
        return {job: known for job, known in self.view().jobs.items() if job in ids}

    def read_slurmctld_boot_time(self) -> datetime | None:
        """Promised in ports.Scheduler; this one forgets nothing."""
        return None

    def drain(
        self, nodes: Mapping[NodeName, str], *, spare_marks: bool = False
    ) -> Mapping[NodeName, Outcome]:
        """Promised in ports.Scheduler."""

        def do(node: Node, reason: str) -> None:
            node.close(reason, self.now())

        return self._update(
            nodes,
            rules.find_unmarked_drain_outcome_without_sending
            if spare_marks
            else rules.find_drain_outcome_without_sending,
            do,
        )

    def down(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """Promised in ports.Scheduler."""

        def do(node: Node, reason: str) -> None:
            node.reason, node.reason_at = reason, self.now()
            self.set_down(node)

        return self._update(nodes, rules.find_down_outcome_without_sending, do)

    def resume_nodes(self, nodes: Mapping[NodeName, RecoveryId]) -> Mapping[NodeName, Outcome]:
        """Promised in ports.Scheduler."""
        return self._update(
            nodes,
            rules.find_owned_resume_outcome_without_sending,
            lambda node, _: self.resume(node),
        )

    def _update(
        self,
        wanted: Mapping[NodeName, str],
        rule: Callable[[SlurmNode | None, str], Outcome | None],
        do: Callable[[Node, str], None],
    ) -> dict[NodeName, Outcome]:
        if self.away or self.crashed:
            return dict.fromkeys(wanted, UNAVAILABLE)
        answers = {}
        for name, text in wanted.items():
            node = self.nodes.get(name)
            answer = rule(self.node(node) if node else None, text)
            if answer is None and node is not None:
                do(node, text)
            answers[name] = answer or Outcome.accepted()
        return answers

    def signal(self, attempt: JobAttempt, signal: str) -> Outcome:
        """Promised in ports.Scheduler."""
        job = self.known(attempt.job)
        if self.away or self.crashed:
            return UNAVAILABLE
        refusal = rules.find_job_signal_outcome_without_sending(_record(job), attempt)
        if refusal is not None or job is None:
            return refusal or rules.NO_SUCH_JOB
        job.signals += 1
        return Outcome.accepted()

    def requeue(self, attempt: JobAttempt) -> Outcome:
        """Promised in ports.Scheduler."""
        if self.away or self.crashed:
            return UNAVAILABLE
        job = self.known(attempt.job)
        send = rules.plan_job_requeue(_record(job), attempt)
        if isinstance(send, Outcome) or job is None:
            return send if isinstance(send, Outcome) else rules.NO_SUCH_JOB
        self.requeue_unchecked(job)
        return Outcome.accepted()

    def start_pending_job(
        self,
        job: JobId,
        exclude: Sequence[NodeName],
        forgive: Sequence[NodeName] = (),
        after_s: float = 0.0,
        elastic: bool = False,
    ) -> Outcome:
        """Promised in ports.Scheduler."""
        if self.away or self.crashed:
            return UNAVAILABLE
        mine = self.known(job)
        send = rules.plan_job_start(_record(mine), exclude, self.nodes, forgive, elastic=elastic)
        if isinstance(send, Outcome) or mine is None:
            return send if isinstance(send, Outcome) else rules.NO_SUCH_JOB
        (update,) = send.updates
        if update.exclude is not None:
            mine.excluded = update.exclude
        if update.mark is not None:
            mine.admin_comment = update.mark
        if send.tasks is not None:
            mine.tasks = send.tasks
        mine.begin = None
        if after_s > 0:
            mine.begin = self.now() + timedelta(seconds=math.ceil(after_s))
        return Outcome.accepted()

    def lift(self, job: JobId, nodes: Collection[NodeName]) -> Outcome:
        """Promised in ports.Scheduler."""
        if self.away or self.crashed:
            return UNAVAILABLE
        mine = self.known(job)
        send = rules.plan_node_exclusion_lifts(_record(mine), nodes, self.nodes)
        if isinstance(send, Outcome) or mine is None:
            return send if isinstance(send, Outcome) else rules.NO_SUCH_JOB
        (update,) = send
        mine.excluded, mine.admin_comment = update.exclude, update.mark or ""
        return Outcome.accepted()

    def hold(self, job: JobId, why: str) -> Outcome:
        """Promised in ports.Scheduler."""
        if self.away or self.crashed:
            return UNAVAILABLE
        mine = self.known(job)
        refusal = rules.find_job_hold_outcome_without_sending(_record(mine))
        if refusal is not None or mine is None:
            return refusal or rules.NO_SUCH_JOB
        mine.held, mine.reason = True, "JobHeldUser"
        mine.comment = rules.format_job_comment_argument(mine.comment, why).partition("=")[2]
        return Outcome.accepted()

    def cancel_attempt(self, attempt: JobAttempt, why: str) -> Outcome:
        """Promised in ports.Scheduler."""
        if self.away or self.crashed:
            return UNAVAILABLE
        mine = self.known(attempt.job)
        refusal = rules.find_job_cancel_outcome_without_sending(_record(mine), attempt)
        if refusal is not None or mine is None:
            return refusal or rules.NO_SUCH_JOB
        mine.comment = rules.format_job_comment_argument(mine.comment, why).partition("=")[2]
        self.cancel(mine)
        return Outcome.accepted()

    def note(self, attempt: JobAttempt, why: str) -> Outcome:
        """Promised in ports.Scheduler."""
        if self.away or self.crashed:
            return UNAVAILABLE
        mine = self.known(attempt.job)
        refusal = rules.find_job_comment_outcome_without_sending(_record(mine), attempt)
        if refusal is not None or mine is None:
            return refusal or rules.NO_SUCH_JOB
        mine.comment = rules.format_job_comment_argument(mine.comment, why).partition("=")[2]
        return Outcome.accepted()

    def find_job_canceler(self, job: SlurmJob) -> str:
        """Promised in ports.Scheduler."""
        return ""

    def requeue_exit_codes(self) -> frozenset[int]:
        """Promised in ports.Scheduler."""
        return frozenset()

    def preemption_order(self) -> PreemptionOrder:
        """Promised in ports.Scheduler."""
        return PreemptionOrder()

    def reservations(self) -> Mapping[str, SlurmReservation]:
        """Promised in ports.Scheduler."""
        if self.away or self.crashed:
            raise ServiceUnavailable("slurmctld does not answer", "wait")
        mine = {name: SlurmReservation(name, nodes) for name, nodes in self.reserved.items()}
        return mine | dict(self.maintenance)

    def leaves(self) -> Mapping[NodeName, str]:
        """Promised in ports.Scheduler."""
        if self.away or self.crashed:
            raise ServiceUnavailable("slurmctld does not answer", "wait")
        return self.topology

    def maintain(
        self, name: str, nodes: Sequence[NodeName], start: datetime, end: datetime
    ) -> Outcome:
        """Promised in ports.Scheduler."""
        if self.away or self.crashed:
            return UNAVAILABLE
        if not set(nodes) <= set(self.nodes):
            return Outcome.rejected("ESLURM_INVALID_NODE_NAME")
        if name not in self.maintenance:
            self.maintenance[name] = SlurmReservation(name, tuple(nodes), start, end, True)
        return Outcome.accepted()

    def reserve(self, name: str, nodes: Sequence[NodeName], *, own: bool = False) -> Outcome:
        """Promised in ports.Scheduler."""
        if self.away or self.crashed:
            return UNAVAILABLE
        held = self.reserved.get(name, ())
        busy = {n for job in self.jobs.values() if job.running for n in job.nodes}
        others = {n for other, names in self.reserved.items() if other != name for n in names}
        fresh = set(nodes) - set(held)
        if not set(nodes) <= set(self.nodes):
            return Outcome.rejected("ESLURM_INVALID_NODE_NAME")
        if fresh & busy:
            return Outcome.rejected("ESLURM_NODES_BUSY", transient=True)
        if fresh & others:
            return Outcome.rejected("ESLURM_RESERVATION_OVERLAP", transient=True)
        if not nodes and name not in self.reserved:
            return Outcome.accepted()
        if not nodes and any(j.reservation == name and not j.end for j in self.jobs.values()):
            return Outcome.rejected("ESLURM_RESERVATION_BUSY", transient=True)
        self.reserved[name] = tuple(nodes)
        if not nodes:
            del self.reserved[name]
        self.schedule(self.now())
        return Outcome.accepted()

    def test(self, test: NodeTestJobSpec) -> Outcome:
        """Promised in ports.Scheduler; what the command does is the test's business."""
        name = test.name
        if self.away or self.crashed:
            return UNAVAILABLE
        mine = [j for j in self.jobs.values() if j.name == name and j.wanted]
        if mine and self.kept(mine[-1], self.now()):
            return Outcome.accepted(str(mine[-1].id))
        if not test.idle and name not in self.reserved:
            return Outcome.rejected("ESLURM_RESERVATION_INVALID")
        limit_s = min(test.limit_s, self.test_s)
        number = self.submit(1, limit_s, requeue=False, name=name, wanted=test.node)
        if test.idle:
            self.jobs[number].reservation = ""
        return Outcome.accepted(str(number))

    def cancel_node_test(self, name: str) -> Outcome:
        """Promised in ports.Scheduler."""
        if self.away or self.crashed:
            return UNAVAILABLE
        for job in self.jobs.values():
            if job.name == name and job.wanted:
                self.cancel(job)
        return Outcome.accepted()


def _record(job: Job | None) -> SlurmJobRecord | None:
    if job is None:
        return None
    size = PendingJobSize(job.last_size, job.least or job.size, job.tasks, job.per_node)
    return SlurmJobRecord(shown(job), size=size)
