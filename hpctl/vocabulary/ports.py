"""The doors to the world, in domain terms. Their docstrings promise failure behaviour.

Reads raise `ServiceUnavailable` when they cannot answer (adapters retry them first, bounded and
jittered); nothing else. Mutations are tried once, never raise for an expected failure, and
answer an `Outcome` for every target they were given; repeating is the core's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hpctl.vocabulary.cloud_facts import CloudProviderView
    from hpctl.vocabulary.evidence import EvidenceCollectionOrder
    from hpctl.vocabulary.identity import InstanceId, JobAttempt, JobId, NodeName, RecoveryId
    from hpctl.vocabulary.node_test import NodeTestJobSpec
    from hpctl.vocabulary.outcome import Outcome
    from hpctl.vocabulary.preemption_order import PreemptionOrder
    from hpctl.vocabulary.reset_order import GpuResetOrder
    from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode, SlurmReservation


class Scheduler(Protocol):
    """Slurm, as the daemon uses it."""

    def view(self) -> SchedulerView:
        """Return all nodes and jobs. Raises Unavailable.

        Raises Interrupted where an event of the daemon's arrives while many nodes are read; never
        the first time, and never twice in a row.
        """

    def part(
        self, nodes: Collection[NodeName], known: Mapping[NodeName, SlurmNode]
    ) -> SchedulerView:
        """Return all jobs, and these nodes at least: what `view` says, for less. Raises
        Unavailable.

        A node that slurmctld does not know is absent. Of those in `known` only state, flags and
        Reason need be read again.
        """

    def find_jobs(self, ids: Collection[JobId]) -> Mapping[JobId, SlurmJob]:
        """Return those of these jobs that slurmctld knows, one entry each. Raises Unavailable.

        `view` may list the waiting tasks of an array as one job, a task that was requeued among
        them: its own id is not there then.
        """

    def read_slurmctld_boot_time(self) -> datetime | None:
        """Return when slurmctld started, to the second below; None where that is not known.

        A slurmctld that was killed has forgotten the orders of the seconds before. Raises
        Unavailable.
        """

    def drain(
        self, nodes: Mapping[NodeName, str], *, spare_marks: bool = False
    ) -> Mapping[NodeName, Outcome]:
        """DRAIN each node with its Reason. Convergent.

        Looks at each node first: one that is drained with a Reason which is not hpctl's is
        Rejected("foreign_drain") and not touched. One that slurmctld itself drained, or that
        HyperPod's health agent marked, is taken over: its Reason becomes ours, and its FAIL is
        cleared. With `spare_marks` a marked one is Rejected("marked", transient) and left alone,
        and each node is looked at directly before its own update.
        """

    def down(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """Set DOWN each node that is already DRAIN with exactly our recovery's Reason.

        Or that is closed with HyperPod's mark, where the Reason is that mark: both stay.
        slurmctld kills or requeues its jobs at once. A node that is not so drained is
        Rejected("not_ours").
        """

    def resume_nodes(self, nodes: Mapping[NodeName, RecoveryId]) -> Mapping[NodeName, Outcome]:
        """RESUME each node whose Reason still names that recovery; else Rejected("not_ours").

        Or one that has booted since HyperPod's health agent marked it. A node that already is
        back in service (no DRAIN, no FAIL, no DOWN) is Accepted.
        """

    def signal(self, attempt: JobAttempt, signal: str) -> Outcome:
        """Send a signal (`USR1`) to batch script and steps of a running job. Not convergent."""

    def requeue(self, attempt: JobAttempt) -> Outcome:
        """Put an ended or running batch job back in the queue.

        Rejected("completing", transient) while COMPLETING, whatever the release: on most it
        crashes slurmctld. A job that is already pending again is Accepted. A job id that
        belongs to another submission by now is Rejected("other_attempt").
        """

    def start_pending_job(
        self,
        job: JobId,
        exclude: Sequence[NodeName],
        forgive: Sequence[NodeName] = (),
        after_s: float = 0.0,
        elastic: bool = False,
    ) -> Outcome:
        """Clear the begin delay of a pending job; ExcNodeList = its own - `forgive` + `exclude`.

        One update, which also marks in the AdminComment what hpctl added (`exclusion_mark`). Of
        `forgive` only marked nodes leave the list: a user's own exclusion stays.
        With `after_s` the job starts so many seconds from now, rounded up, and not before; nothing
        holds it meanwhile, so it does so even if no request follows. An `elastic` job,
        submitted with a range of nodes, gets its whole range again: Slurm has fixed it to the size
        of its last run where it has --ntasks-per-node.
        Names that slurmctld does not know are left out. Rejected("completing", transient) while
        the job is COMPLETING, when the delay would come back; Rejected("not_pending") for a job
        that runs or has ended. Not to be sent in the clock's second in which the last run was
        ended: a node of that run kills a job that comes back so soon.
        """

    def lift(self, job: JobId, nodes: Collection[NodeName]) -> Outcome:
        """Take those of these nodes out of a pending job's ExcNodeList that hpctl wrote there.

        Nothing else of the job changes; slurmctld also takes back the priority 0 and the Reason
        BadConstraints that the list has caused. Accepted where the list has none of them.
        """

    def hold(self, job: JobId, why: str) -> Outcome:
        """User-hold a pending job and write `why` where its owner reads it (Comment)."""

    def cancel_attempt(self, attempt: JobAttempt, why: str) -> Outcome:
        """Cancel this attempt of a job, or the next one while it waits in the queue; `why` goes
        into its Comment.

        Accepted for a job that has ended already. Rejected("other_attempt") where the next attempt
        runs, or the job id is another submission's by now.
        """

    def note(self, attempt: JobAttempt, why: str) -> Outcome:
        """Write `why` into the Comment of a job, whichever of its attempts it is at by now.

        The registration and the owner's own text stay; what an earlier note or hold wrote makes
        room. Rejected("other_attempt") where the job id is another submission's by now.
        """

    def preemption_order(self) -> PreemptionOrder:
        """Return which jobs Slurm lets preempt which others. Raises Unavailable."""

    def find_job_canceler(self, job: SlurmJob) -> str:
        """Return the account that canceled a job's last run; "" where nothing tells it."""

    def requeue_exit_codes(self) -> frozenset[int]:
        """Return the exit codes after which Slurm itself requeues a batch job. Raises
        Unavailable."""

    def reservations(self) -> Mapping[str, SlurmReservation]:
        """Return all reservations, those to come included, by name. Raises Unavailable."""

    def leaves(self) -> Mapping[NodeName, str]:
        """Return the leaf switch or block of each node, empty where Slurm knows no topology. Raises
        Unavailable."""

    def reserve(self, name: str, nodes: Sequence[NodeName], *, own: bool = False) -> Outcome:
        """Have a reservation hold exactly these nodes, for no user's jobs. Convergent.

        With `own` it is for those of the daemon's own user.

        It is made where there is none, and deleted for no nodes. Jobs that run go on. A node
        that has one, or another reservation, makes it Rejected, transient, whole. So does a job
        of a reservation that is to be deleted.
        """

    def maintain(
        self, name: str, nodes: Sequence[NodeName], start: datetime, end: datetime
    ) -> Outcome:
        """Reserve nodes with the flags MAINT and IGNORE_JOBS, for root alone. Convergent: a
        reservation of that name is left as it is. `reserve` for no nodes deletes it."""

    def test(self, test: NodeTestJobSpec) -> Outcome:
        """Run a command as a batch job alone on a node. Convergent.

        The job is the daemon's own user's. Where that user has a job of this name already, or had
        one until MinJobAge, it is the answer: Accepted, with the job's id as `detail`.
        """

    def cancel_node_test(self, name: str) -> Outcome:
        """Cancel the jobs of this name of the daemon's own user. Convergent."""


class CloudProvider(Protocol):
    """The cloud that owns the instances."""

    @property
    def calls(self) -> Mapping[tuple[str, str], int]:
        """Return how often each operation of its API was called, by result (`ok`, `throttled`,
        `error`). Any thread."""

    def view(self) -> CloudProviderView:
        """Cluster and instances. Raises Unavailable."""

    def reboot(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Reboot by instance id, never by name. Not idempotent: the core looks before repeating."""

    def replace(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Replace by instance id. Once accepted the id is gone: a repeat cannot hit the new one."""

    def add(self, group: str, count: int, size: int, token: str) -> Outcome:
        """`count` instances more for a group, which has `size` then. Accepted: some or all of them.

        With the same token within 8 hours it is one order, however often it is sent.
        """

    def remove(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Delete by instance id; the group shrinks by as many. Rejected("NodeIdNotFound"): gone."""


class NodeAgents(Protocol):
    """The agents on the nodes, as far as orders reach them."""

    def reset(self, orders: Sequence[GpuResetOrder]) -> Mapping[NodeName, Outcome]:
        """Have GPUs reset. Accepted: offered to the agent, which takes it once or never; what
        came of it is a finding. Rejected("unavailable", transient): not offered to an agent."""

    def request_evidence(
        self, orders: Sequence[EvidenceCollectionOrder]
    ) -> Mapping[NodeName, Outcome]:
        """Have nodes keep what they show. Outcomes as of `reset`."""


class AwsServiceClient(Protocol):
    """One AWS service in its own terms: `operation` and `request` as boto3's client takes them.

    For `hpctl cluster` and its siblings, which an operator runs; the daemon's orders to HyperPod
    go through Provider.
    """

    def read(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """Return the answer to a call that changes nothing: `read("describe_cluster",
        ClusterName=...)`.

        Retried, bounded and jittered. Raises ResourceNotFound, Refused, Unavailable.
        """

    def pages(self, operation: str, key: str, **request: Any) -> Iterator[Any]:
        """Return every entry of `key` in every page of a list. Raises as `read` does."""

    def order(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """Return the answer to a call that changes something.

        Sent again only where it certainly was not taken (throttled, no connection). Raises
        Absent, Refused, OrderOutcomeUnknown.
        """


class AwsClientFactory(Protocol):
    """An account in a region, with a user's credentials."""

    @property
    def region(self) -> str:
        """Return its name. Raises HpctlError where nothing names one."""

    def service(self, name: str) -> AwsServiceClient:
        """Return a service by boto3's name. Raises HpctlError where no client can be made."""


class Clock(Protocol):
    """Time, so that tests own it."""

    def now(self) -> datetime:
        """Return the wall clock, aware, UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
