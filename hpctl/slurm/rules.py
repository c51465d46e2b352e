"""What may be sent about a job or a node, decided from a fresh look at it. Pure, for every adapter.

Of nodes: each rule answers an Outcome without sending anything, or None: send it. Of jobs that are
to come back, all is in one place.

The sequence is: the job has ended or its node is DOWN; wait until COMPLETING has cleared;
requeue (or find it requeued already); then one update that excludes nodes and sets
StartTime=now. Why in this order (facts read in slurmctld's sources and seen live):

- A requeue of a COMPLETING job crashes slurmctld 23.02 to 26.05.3 when one of its nodes goes
  DOWN meanwhile (fixed in 26.05.4), and corrupts node counters elsewhere. Never sent.
- A requeued job waits `cred_expire` or `requeue_delay`, 121 s by default, set when COMPLETING
  clears: StartTime=now sent before that is undone by it, so it is refused as transient.
- A slurmd refuses a credential made in the second in which it ended the job's last run, or
  before it (`ctime <= revoked`, whole seconds of slurmctld's clock): slurmctld then kills the
  restarted job for good, FAILED with "Job credential revoked". The 121 s are there for that.
  The core waits for the next second, but not where all slurmds are of 25.11 or later: there each
  run has a SLUID, and what was revoked is remembered by it (slurmd/cred_context.c).
  StartTime=now+1 goes out at once. From 23.11 on slurmctld schedules as each second begins, and
  that pass starts the job. Before, no pass comes with that second: the order is sent
  again as it begins.
- An ExcNodeList update replaces the user's own list and fails as a whole on one unknown name.
  A list that leaves the job too few nodes gives it Reason BadConstraints and priority 0, which
  StartTime=now and a release leave as they are; the next change of the list takes both back (seen
  on 22.05.8).
- A job whose launch failed, mostly in a Prolog, is held with a description of slurmctld's own
  (`launch failed requeued held`): it needs a release. An operator's hold leaves that description
  and makes the Reason JobHeldAdmin, which JSON alone shows; such a job is left held.
- With `--requeue=expedite` (25.11+, enable_expedited_requeue) the job has no delay, and may be
  held when no Epilog failed: it then needs a release as well.
- A heterogeneous job is requeued as a whole, by its leader's id and no other ("Job not
  heterogeneous job leader"); a node that is set DOWN under one component requeues all. Each
  component has its own ExcNodeList and begin time: an update of the leader's id (`12`)
  sets those of all, `12+1` those of one. Only slurmctld's backfill pass starts such a job, up to
  bf_interval (30 s) after it may begin (seen on 22.05.8; the same code in 25.11).
- Where a component of it has ended before the others, a node that is set DOWN requeues only those
  that run, also where it is a node that the ended component gave back. The rest never starts
  alone: a requeue of the leader brings back the ended component, and answers that the others are
  pending (seen on 22.05.8).
"""

import math
from collections.abc import Collection, Iterable

from msgspec import Struct
from msgspec.structs import replace

from hpctl.faults.hma_marks import MARKS, find_hma_reason_mark, is_hma_mark_fulfilled
from hpctl.faults.slurm_reasons import find_slurm_reason_fault_row, is_node_drained_by_slurm
from hpctl.slurm.records import SlurmJobRecord
from hpctl.vocabulary.exclusion_mark import format_exclusion_comment
from hpctl.vocabulary.identity import JobAttempt, NodeName, RecoveryId
from hpctl.vocabulary.outcome import HELD, Outcome
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import ENDED, REQUEUED_AND_HELD, SPECIAL_EXIT, SlurmJob, SlurmNode

COMPLETING = Outcome.rejected(
    "completing", "the job is COMPLETING: wait until its nodes are cleaned up", transient=True
)
NO_SUCH_JOB = Outcome.rejected("no_such_job", "slurmctld does not know this job id (any longer)")
ARRAY = Outcome.rejected("array_whole", "this id stands for several tasks of a job array")
COMPONENT = Outcome.rejected("het_component", "this id is one component of a heterogeneous job")


class JobStartUpdate(Struct, frozen=True):
    """One update: set the list of excluded nodes (None: leave it), and start now. `mark` is the
    AdminComment that is set with the list (None: leave it)."""

    command_id: str
    exclude: tuple[NodeName, ...] | None
    mark: str | None = None


class JobStartPlan(Struct, frozen=True):
    """Send these updates: one for a job, and one for each component of a heterogeneous job whose
    components exclude different nodes.

    `release` asks for a release of `command_id` after them, for an expedited job that Slurm holds
    and for one whose launch failed. `tasks` is the NumTasks to set, None to leave it. `requeue`
    asks for a requeue of `command_id` before them, which brings back components that have ended.
    """

    command_id: str
    updates: tuple[JobStartUpdate, ...]
    release: bool = False
    tasks: int | None = None
    requeue: bool = False


def plan_job_requeue(record: SlurmJobRecord | None, attempt: JobAttempt) -> str | Outcome:
    """Return the job's name for a requeue of this attempt, or what to answer without sending it."""
    if record is None:
        return NO_SUCH_JOB
    job = record.job
    other = reject_mismatched_job_attempt(record, attempt)
    if other is not None:
        return other
    if job.completing:
        return COMPLETING
    if job.state == "PENDING":
        return Outcome.accepted("it is pending already")
    if job.restarts != attempt.restarts:
        return _make_mismatched_attempt_rejection(f"restart {job.restarts} runs already")
    several = _reject_ambiguous_job_id(record)
    if several is not None:
        return several
    if not job.batch:
        return Outcome.rejected("not_batch", "salloc and srun jobs cannot be requeued")
    if not job.requeue:
        return Outcome.rejected("no_requeue", "the job was submitted with --no-requeue")
    return record.command_id


def classify_requeue_answer(sent: Outcome) -> Outcome:
    """Slurmctld's answer as an Outcome: a job that is pending by then is what we asked for."""
    if sent.code == "ESLURM_JOB_PENDING":
        return Outcome.accepted("it is pending already")
    if sent.code == "ESLURM_INVALID_JOB_ID":
        return NO_SUCH_JOB
    if sent.code == "ESLURM_BATCH_ONLY":
        return replace(sent, code="not_batch")
    if sent.code == "ESLURM_DISABLED":
        return replace(sent, code="no_requeue")
    return sent


def plan_job_start(
    record: SlurmJobRecord | None,
    exclude: Iterable[NodeName],
    known: Collection[NodeName],
    forgive: Collection[NodeName] = (),
    *,
    elastic: bool = False,
) -> JobStartPlan | Outcome:
    """Return what to send so that a requeued job starts at once and elsewhere.

    `known` are the node names that slurmctld has, of those in question. `forgive` are nodes
    that have healed: they leave the list where hpctl excluded them.
    """
    if record is None:
        return NO_SUCH_JOB
    job = record.job
    if job.completing:
        return COMPLETING
    several = _reject_ambiguous_job_id(record)
    if several is not None:
        return several
    if job.state != "PENDING":
        return Outcome.rejected("not_pending", f"the job is {job.state}")
    by_slurm = job.reason in ("JobHeldUser", REQUEUED_AND_HELD)
    release = has_expedited_requeue(record) and "REQUEUE_HOLD" in job.flags and by_slurm
    release = release or job.has_launch_failed
    if is_job_held(record) and not release:
        return Outcome.rejected(HELD, f"the job is held ({job.reason}): release it first")
    components = record.components or (job,)
    command_id, tasks = record.command_id, _find_minimum_num_tasks(record) if elastic else None
    updates = [
        _plan_job_component_start(each, tuple(exclude), known, forgive) for each in components
    ]
    if len({(update.exclude, update.mark) for update in updates}) == 1:
        updates = [replace(updates[0], command_id=command_id)]
    ended = any(each.state in ENDED for each in record.components)
    return JobStartPlan(command_id, tuple(updates), release, tasks, requeue=ended)


def _plan_job_component_start(
    job: SlurmJob,
    exclude: Collection[NodeName],
    known: Collection[NodeName],
    forgive: Collection[NodeName],
) -> JobStartUpdate:
    """Return the update of a job or component; its list is None where it excludes these already."""
    ours = job.nodes_excluded_by_hpctl
    kept = [name for name in job.excluded if name not in ours or name not in forgive]
    names = tuple(sorted({name for name in (*kept, *exclude) if name in known}))
    if set(names) == set(job.excluded):
        return JobStartUpdate(job.shown, None)
    marked = [name for name in names if name in ours or name not in job.excluded]
    return JobStartUpdate(job.shown, names, format_exclusion_comment(job.admin_comment, marked))


def classify_job_start_answer(
    sent: Outcome, record: SlurmJobRecord | None, known: Collection[NodeName]
) -> Outcome:
    """Slurmctld's refusal of a start with its cause where a node that the job excludes is gone.

    slurmctld 23.02.3 and later then refuses every change of the job, also one of that list.
    """
    if sent.code != "ESLURM_INVALID_NODE_NAME" or record is None:
        return sent
    gone = sorted({name for name in record.job.excluded if name not in known})
    if not gone:
        return sent
    names = ",".join(gone)
    why = f"its ExcNodeList names {names}, which Slurm no longer has, and slurmctld refuses every "
    why += "change of such a job: it starts when its begin time has come"
    return replace(sent, detail=why)


class NodeExclusionLift(Struct, frozen=True):
    """One update that leaves a job or component this list of excluded nodes. `mark`: the
    AdminComment that is set with it (None: leave it)."""

    command_id: str
    exclude: tuple[NodeName, ...]
    mark: str | None


def plan_node_exclusion_lifts(
    record: SlurmJobRecord | None, nodes: Collection[NodeName], known: Collection[NodeName]
) -> tuple[NodeExclusionLift, ...] | Outcome:
    """Return what to send so that a pending job may be given these nodes again, where hpctl
    excluded them. `known`: the nodes that slurmctld has; it refuses a list that names another."""
    if record is None:
        return NO_SUCH_JOB
    job = record.job
    several = _reject_ambiguous_job_id(record)
    if several is not None:
        return several
    if job.state != "PENDING":
        return Outcome.rejected("not_pending", f"the job is {job.state}")
    if job.completing:
        return COMPLETING
    components = record.components or (job,)
    lifts = [
        _plan_job_exclusion_lift(each, nodes, known)
        for each in components
        if each.state not in ENDED
    ]
    updates = tuple(update for update in lifts if update is not None)
    return updates or Outcome.accepted("it excludes none of them by hpctl's order")


def _plan_job_exclusion_lift(
    job: SlurmJob, nodes: Collection[NodeName], known: Collection[NodeName]
) -> NodeExclusionLift | None:
    ours = job.nodes_excluded_by_hpctl
    if not set(ours).intersection(nodes):
        return None
    kept = [name for name in ours if name not in nodes and name in known]
    theirs = [name for name in job.excluded if name not in ours and name in known]
    exclude = [*theirs, *kept]
    return NodeExclusionLift(
        job.shown, tuple(sorted(exclude)), format_exclusion_comment(job.admin_comment, kept)
    )


def _find_minimum_num_tasks(record: SlurmJobRecord) -> int | None:
    """Return the NumTasks that lets a job have as few nodes as it once asked for; None to leave it.

    Seen on 22.05.8: `-N 2-3` alone keeps its range over requeues, whatever NumNodes shows. With
    --ntasks-per-node the first start sets NumTasks to nodes x tasks, and from then on fewer nodes
    will not do; NumNodes=2-3 is taken and changes nothing, NumTasks for the least nodes does.
    """
    size = record.size
    inflated = size.tasks == size.nodes * size.tasks_per_node > 0
    return size.least * size.tasks_per_node if inflated and 0 < size.least < size.nodes else None


def format_start_time_argument(after_s: float) -> str:
    """Return the `StartTime=` of a job that may start at once, or in so many seconds, rounded
    up."""
    wait = math.ceil(after_s)
    return f"StartTime=now+{wait}" if wait > 0 else "StartTime=now"


def find_job_hold_outcome_without_sending(record: SlurmJobRecord | None) -> Outcome | None:
    """Return why a job cannot be held, None where it can."""
    if record is None:
        return NO_SUCH_JOB
    several = _reject_ambiguous_job_id(record)
    if several is not None:
        return several
    if record.job.state != "PENDING":
        return Outcome.rejected("not_pending", f"the job is {record.job.state}")
    return None


def find_job_cancel_outcome_without_sending(
    record: SlurmJobRecord | None, attempt: JobAttempt
) -> Outcome | None:
    """Return why an attempt, or the next one in the queue, is not cancelled; None where it is."""
    if record is None:
        return NO_SUCH_JOB
    job = record.job
    if job.state in ENDED and not job.completing and job.restarts - attempt.restarts in (0, 1):
        return Outcome.accepted(f"it has ended as {job.state}")
    other = reject_mismatched_job_attempt(record, attempt)
    if other is not None:
        return other
    several = _reject_ambiguous_job_id(record)
    if several is not None:
        return several
    if job.completing:
        return COMPLETING
    if job.restarts - attempt.restarts > (job.state == "PENDING"):
        return _make_mismatched_attempt_rejection(f"restart {job.restarts} is the job's latest")
    return None


def find_job_comment_outcome_without_sending(
    record: SlurmJobRecord | None, attempt: JobAttempt
) -> Outcome | None:
    """Return why nothing is written into the Comment of a job, None where it is."""
    if record is None:
        return NO_SUCH_JOB
    job = record.job
    if job.submit < attempt.submit or job.restarts < attempt.restarts:
        return _make_mismatched_attempt_rejection(
            f"it was submitted at {job.submit:%Y-%m-%dT%H:%M:%S}Z"
        )
    return _reject_ambiguous_job_id(record)


def find_job_signal_outcome_without_sending(
    record: SlurmJobRecord | None, attempt: JobAttempt
) -> Outcome | None:
    """Return why an attempt cannot be signalled, None where it can."""
    if record is None:
        return NO_SUCH_JOB
    other = reject_mismatched_job_attempt(record, attempt)
    if other is not None:
        return other
    if record.job.restarts != attempt.restarts:
        return _make_mismatched_attempt_rejection(
            f"restart {record.job.restarts} is the job's latest"
        )
    if not record.job.running or record.job.completing or record.is_multi_task_array:
        return Outcome.rejected("not_running", f"the job is {record.job.state}")
    return None


def reject_mismatched_job_attempt(record: SlurmJobRecord, attempt: JobAttempt) -> Outcome | None:
    """Rejected where the id belongs to another submission, or to an attempt before this one.

    A requeue resets the submit time and counts a restart, so a later attempt of the same
    submission differs in both, and an equal restart count must have an equal submit time.
    """
    job = record.job
    if job.restarts < attempt.restarts:
        return _make_mismatched_attempt_rejection(f"its restart count is {job.restarts}")
    same = job.restarts == attempt.restarts
    if job.submit != attempt.submit if same else job.submit < attempt.submit:
        return _make_mismatched_attempt_rejection(
            f"it was submitted at {job.submit:%Y-%m-%dT%H:%M:%S}Z"
        )
    if not same and job.state in ENDED:
        return _make_mismatched_attempt_rejection(f"restart {job.restarts} has run and ended")
    return None


def format_job_comment_argument(own: str, why: str) -> str:
    """Return the `Comment=` of a held job: why, after what the user had written there.

    What an earlier hold wrote makes room for it.
    """
    line = " ".join(why.split())
    own = own.partition(" | hpctl: ")[0]
    return f"Comment={own} | {line}" if own and line not in own else f"Comment={own or line}"


def _reject_ambiguous_job_id(record: SlurmJobRecord) -> Outcome | None:
    """Rejected where the id stands for more than one job, or for less than one."""
    if record.job.het_job and not record.job.components:
        return COMPONENT
    return ARRAY if record.is_multi_task_array else None


def has_expedited_requeue(record: SlurmJobRecord) -> bool:
    """Submitted with --requeue=expedite, on a controller that has it."""
    return any(flag.startswith("EXPEDIT") for flag in record.job.flags)


def is_job_held(record: SlurmJobRecord) -> bool:
    """Held by its user, an operator or Slurm itself: StartTime would not start it."""
    job = record.job
    return bool(job.flags & {"REQUEUE_HOLD", SPECIAL_EXIT}) or job.reason.startswith("JobHeld")


def _make_mismatched_attempt_rejection(why: str) -> Outcome:
    return Outcome.rejected("other_attempt", f"the job id is another attempt's by now: {why}")


NO_SUCH_NODE = Outcome.rejected("no_such_node", "slurmctld has no node of this name")


def find_drain_outcome_without_sending(node: SlurmNode | None, reason: str) -> Outcome | None:
    """Check a drain: a node that another closed (DRAIN, FAIL, or DOWN by hand) is left to them.

    HyperPod's health agent and slurmctld are not others: a node that either closed is taken over,
    and one whose Reason slurmctld has removed (see `restore_drain_reason` in nodes/actors.py):
    scontrol demands a Reason of a person. DRAIN clears a FAIL.
    """
    if node is None:
        return NO_SUCH_NODE
    bad = _reject_invalid_node_reason(reason)
    if bad is not None:
        return bad
    owner = parse_recovery_id_from_reason(node.reason)
    removed = node.drained and not node.reason
    is_unowned = find_hma_reason_mark(node) or is_node_drained_by_slurm(node) or removed
    if owner is None and (node.closed or is_node_downed_by_admin(node)) and not is_unowned:
        return Outcome.rejected("foreign_drain", f"{node.name} is closed: {node.reason}")
    if node.drained and owner is not None and owner == parse_recovery_id_from_reason(reason):
        return Outcome.accepted("it is drained already")
    return None


def find_unmarked_drain_outcome_without_sending(
    node: SlurmNode | None, reason: str
) -> Outcome | None:
    """Return as `drain`, for where HyperPod acts on its marks: a marked node is closed, and stays
    so."""
    if node is not None and find_hma_reason_mark(node):
        text = f"{node.name} is {_describe_node_state(node)}: HyperPod acts on that"
        return Outcome.rejected("marked", text, transient=True)
    return find_drain_outcome_without_sending(node, reason)


def find_down_outcome_without_sending(node: SlurmNode | None, reason: str) -> Outcome | None:
    """Only a node that is DRAIN with the same recovery's Reason, or that bears this very mark.

    DOWN leaves FAIL as it is.
    """
    if node is None:
        return NO_SUCH_NODE
    if reason in MARKS:
        ours = node.closed and find_hma_reason_mark(node) == reason
    elif (bad := _reject_invalid_node_reason(reason)) is not None:
        return bad
    else:
        ours = node.drained and parse_recovery_id_from_reason(
            node.reason
        ) == parse_recovery_id_from_reason(reason)
    if not ours:
        return Outcome.rejected("not_ours", f"{node.name} is {_describe_node_state(node)}")
    return Outcome.accepted("it is down already") if node.down else None


def find_owned_resume_outcome_without_sending(
    node: SlurmNode | None, recovery: str
) -> Outcome | None:
    """Only with that recovery's Reason, or a mark that is spent, and a slurmd that answers."""
    if node is None:
        return NO_SUCH_NODE
    done = bool(find_hma_reason_mark(node)) and is_hma_mark_fulfilled(node)
    if not (done or node.in_service) and parse_recovery_id_from_reason(node.reason) != RecoveryId(
        recovery
    ):
        return Outcome.rejected("not_ours", f"{node.name} is {_describe_node_state(node)}")
    return find_resume_outcome_without_sending(node)


def find_resume_outcome_without_sending(node: SlurmNode) -> Outcome | None:
    """RESUME makes a DOWN node IDLE, whether its slurmd is there or not."""
    if node.in_service:
        return Outcome.accepted("it is in service already")
    if not node.responding:
        text = f"the slurmd of {node.name} does not answer: RESUME would offer it to jobs"
        return Outcome.rejected("not_responding", text, transient=True)
    return None


def is_node_downed_by_admin(node: SlurmNode) -> bool:
    """DOWN for a reason that is not slurmctld's own."""
    return node.down and bool(node.reason) and find_slurm_reason_fault_row(node) is None


def _reject_invalid_node_reason(reason: str) -> Outcome | None:
    """Only Reasons that mark a node as ours, on one line."""
    if parse_recovery_id_from_reason(reason) is None or not reason.isprintable():
        return Outcome.rejected("bad_reason", f"not a Reason of ours: {reason!r}")
    return None


def _describe_node_state(node: SlurmNode) -> str:
    return "+".join([node.state, *sorted(node.flags)]) + (
        f" ({node.reason})" if node.reason else ""
    )
