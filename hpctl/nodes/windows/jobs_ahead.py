"""What becomes of the jobs on the nodes of a maintenance window. Pure."""

from collections.abc import Collection
from datetime import datetime
from itertools import chain

from msgspec import Struct

from hpctl.engine.maintenance_times import get_maintenance_window_lead_s
from hpctl.engine.view import PlanningView, group_jobs_by_node
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.toolkit.durations import format_duration
from hpctl.vocabulary.change import ChangeOpened
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.registration import JobRegistration, parse_registration_comment
from hpctl.vocabulary.slurm_facts import SlurmJob


class JobInWindow(Struct, frozen=True):
    """A job that runs on a node of a window. `moves`: it is requeued before the window begins;
    `saves`: the signal by which it is asked to save before, empty where it has none."""

    id: int
    shown: str
    user: str
    name: str
    nodes: int
    moves: bool
    saves: str
    fate: str


def find_jobs_on_window_nodes(
    window: ChangeOpened, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> tuple[JobInWindow, ...]:
    """Return the jobs that run on the nodes of a window now, and what becomes of each."""
    here = group_jobs_by_node(list(window.nodes), view.scheduler.jobs)
    found = chain.from_iterable(here.values())
    jobs = {job.id: job for job in found if job.running}
    return tuple(
        _make_job_in_window(jobs[number], window, view, policy, now) for number in sorted(jobs)
    )


def _make_job_in_window(
    job: SlurmJob, window: ChangeOpened, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> JobInWindow:
    start = window.start or now
    saves = (parse_registration_comment(job.comment) or JobRegistration()).save_signal
    ends_before = job.end is not None and job.end <= start
    in_time = now < start
    moves = job.recoverable and in_time and not ends_before
    return JobInWindow(
        id=job.id,
        shown=job.shown,
        user=job.user,
        name=job.name,
        nodes=len(job.nodes),
        moves=moves,
        saves=saves if moves else "",
        fate=_describe_window_effect_on_job(
            job, window, view, policy, now, moves=moves, saves=saves, ends=ends_before
        ),
    )


def _describe_window_effect_on_job(  # noqa: PLR0913 -- what is known of one job
    job: SlurmJob,
    window: ChangeOpened,
    view: PlanningView,
    policy: RecoveryPolicy,
    now: datetime,
    *,
    moves: bool,
    saves: str,
    ends: bool,
) -> str:
    if ends:
        return "ends at its time limit before the window begins"
    if not job.recoverable:
        why = job.unrecoverable_reason
        return f"CANNOT be requeued ({why}): it is left alone and runs on in the window"
    if not moves:
        return "runs on: the window begins now, and hpctl moves no job within it"
    before = format_duration(get_maintenance_window_lead_s(policy))
    saved = f"is asked to save ({saves}), then requeued" if saves else "is requeued, not saved"
    at = add_seconds_within_bounds(
        window.start or window.at, -get_maintenance_window_lead_s(policy)
    )
    when = f"at {at:%Y-%m-%d %H:%M:%S} UTC ({before} before)" if at > now else "at once"
    return f"{saved} {when}; {_describe_remaining_nodes(job, window.nodes, view)}"


def _describe_remaining_nodes(
    job: SlurmJob, nodes: Collection[NodeName], view: PlanningView
) -> str:
    partitions = set(job.partition.split(","))
    left = [
        node.name
        for node in view.scheduler.nodes.values()
        if partitions.intersection(node.partitions) and not node.closed and not node.down
    ]
    outside = len(set(left).difference(nodes))
    needs = len(job.nodes)
    if outside < needs:
        return f"it waits until the window ends: {outside} nodes are left, it needs {needs}"
    return f"it starts elsewhere once {needs} of {outside} nodes are free"
