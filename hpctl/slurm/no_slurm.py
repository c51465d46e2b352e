"""Slurm where none is reachable; the base of what orders nodes and no jobs."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.identity import JobAttempt, JobId, NodeName, RecoveryId
from hpctl.vocabulary.node_test import NodeTestJobSpec
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.preemption_order import PreemptionOrder
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode, SlurmReservation

REFUSED = Outcome.rejected("no_slurm", "Slurm is not reachable from here")
UNREAD = "Slurm is not reachable from here"


class UnavailableSlurmScheduler:
    """`hpctl.vocabulary.ports.Scheduler` that reads nothing and refuses every order."""

    def view(self) -> SchedulerView:
        """Raise Unavailable."""
        raise ServiceUnavailable(UNREAD)

    def part(
        self, nodes: Collection[NodeName], known: Mapping[NodeName, SlurmNode]
    ) -> SchedulerView:
        """Raise Unavailable."""
        raise ServiceUnavailable(UNREAD)

    def find_jobs(self, ids: Collection[JobId]) -> Mapping[JobId, SlurmJob]:
        """Raise Unavailable."""
        raise ServiceUnavailable(UNREAD)

    def read_slurmctld_boot_time(self) -> datetime | None:
        """Return None: the boot time is not known."""
        return None

    def drain(
        self, nodes: Mapping[NodeName, str], *, spare_marks: bool = False
    ) -> Mapping[NodeName, Outcome]:
        """Refuse for each node."""
        return dict.fromkeys(nodes, REFUSED)

    def down(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """Refuse for each node."""
        return dict.fromkeys(nodes, REFUSED)

    def resume_nodes(self, nodes: Mapping[NodeName, RecoveryId]) -> Mapping[NodeName, Outcome]:
        """Refuse for each node."""
        return dict.fromkeys(nodes, REFUSED)

    def signal(self, attempt: JobAttempt, signal: str) -> Outcome:
        """Refuse."""
        return REFUSED

    def requeue(self, attempt: JobAttempt) -> Outcome:
        """Refuse."""
        return REFUSED

    def start_pending_job(
        self,
        job: JobId,
        exclude: Sequence[NodeName],
        forgive: Sequence[NodeName] = (),
        after_s: float = 0.0,
        elastic: bool = False,
    ) -> Outcome:
        """Refuse."""
        return REFUSED

    def hold(self, job: JobId, why: str) -> Outcome:
        """Refuse."""
        return REFUSED

    def lift(self, job: JobId, nodes: Collection[NodeName]) -> Outcome:
        """Refuse."""
        return REFUSED

    def cancel_attempt(self, attempt: JobAttempt, why: str) -> Outcome:
        """Refuse."""
        return REFUSED

    def note(self, attempt: JobAttempt, why: str) -> Outcome:
        """Refuse."""
        return REFUSED

    def find_job_canceler(self, job: SlurmJob) -> str:
        """Return that nothing tells it."""
        return ""

    def requeue_exit_codes(self) -> frozenset[int]:
        """Return that no exit code is one."""
        return frozenset()

    def preemption_order(self) -> PreemptionOrder:
        """Return that nothing preempts."""
        return PreemptionOrder()

    def reservations(self) -> Mapping[str, SlurmReservation]:
        """Return no reservations."""
        return {}

    def leaves(self) -> Mapping[NodeName, str]:
        """Return no topology."""
        return {}

    def reserve(self, name: str, nodes: Sequence[NodeName], *, own: bool = False) -> Outcome:
        """Refuse."""
        return REFUSED

    def maintain(
        self, name: str, nodes: Sequence[NodeName], start: datetime, end: datetime
    ) -> Outcome:
        """Refuse."""
        return REFUSED

    def test(self, test: NodeTestJobSpec) -> Outcome:
        """Refuse."""
        return REFUSED

    def cancel_node_test(self, name: str) -> Outcome:
        """Refuse."""
        return REFUSED
