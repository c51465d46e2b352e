"""Whether a group of instances grows or shrinks. Pure: demand, groups and history in, one answer
for each group out.

Up: jobs have waited long enough for nodes that neither are idle nor on their way. Down: nodes
have been idle long enough and no job waits for such. A change under way, the cooldown, the
group's bounds and the day's budget turn either into a Hold, which says which of them it was.

How many nodes jobs need that may share them is counted by first fit, in the order of their age.
Slurm places jobs by its own rules (topology, sockets, weights); this only counts. A job takes a
node whole where nothing is known of either.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.demand import NOTHING_KNOWN, JobResourceRequest, Tres
from hpctl.vocabulary.identity import InstanceId, JobId, NodeName, RecoveryId
from hpctl.vocabulary.policy import AutoscalePolicy, InstanceGroupSizeLimits

_Counts = tuple[int, ...]
_MEMORY, _GRES = 1, 2
"""CPUs and memory precede it, of which zero means that Slurm does not count them."""


class _NodeFreeResources(Struct):
    has: _Counts
    rest: _Counts
    free: bool = True

    def takes(self, need: _Counts | None) -> bool:
        if need is None or not any(self.has):
            return self.free
        return all(
            # More memory than there is means all of it: what a job gets that asks for none.
            (min(n, h) if i < _GRES else n) <= r
            for i, (n, h, r) in enumerate(zip(need, self.has, self.rest, strict=True))
        )

    def take(self, need: _Counts | None) -> None:
        self.free = False
        kept = need if need is not None and any(self.has) else self.rest
        self.rest = tuple(max(r - n, 0) for r, n in zip(self.rest, kept, strict=True))


class ScalingNodePool:
    """Free nodes of a group, and as many more like `like` as are asked for."""

    def __init__(self, like: Tres, free: Sequence[Tres]) -> None:
        """`like`: what a new node will have."""
        gres = chain.from_iterable(node.gres for node in (like, *free))
        self._names = tuple(sorted({name for name, _ in gres}))
        self._like = self._convert_tres_to_counts(like)
        self._nodes = [
            _NodeFreeResources(has, has) for has in map(self._convert_tres_to_counts, free)
        ]
        self._from: dict[_Counts | None, int] = {}

    @property
    def busy_count(self) -> int:
        """Return how many nodes have a job by now."""
        return sum(not node.free for node in self._nodes)

    def fits(self, job: JobResourceRequest) -> bool:
        """Return whether nodes like these could serve it at all, were there enough of them."""
        if not any(self._like):
            return True
        here = dict(zip(self._names, self._like[_GRES:], strict=True))
        lacks = any(count and not here.get(name) for name, count in job.total.gres)
        too_much = any(count > here.get(name, 0) for name, count in job.each.gres)
        return not (lacks or too_much or 0 < self._like[0] < job.each.cpus)

    def place(self, job: JobResourceRequest, most: int, size: int | None) -> int | None:
        """Give it nodes; how many new ones that takes. None, and nothing done, for over `most`.

        A job that needs more nodes than the group's `size`, whatever ends, has it made large
        enough, at least; not where that is None.
        """
        count, need = self._compute_job_share_per_node(job)
        found = self._find_nodes_with_free_resources(count, need)
        short = count - len(found)
        if size is not None and short > most and count > size:
            short = count - size
        if short > most:
            return None
        new = [_NodeFreeResources(self._like, self._like) for _ in range(short)]
        self._nodes += new
        for node in (*found, *new):
            node.take(need)
        return short

    def _convert_tres_to_counts(self, tres: Tres) -> _Counts:
        gres = dict(tres.gres)
        return (tres.cpus, tres.memory, *(gres.get(name, 0) for name in self._names))

    def _compute_job_share_per_node(self, job: JobResourceRequest) -> tuple[int, _Counts | None]:
        """Return on how many nodes it will be, and what it takes of each; None: all of it."""
        each, total = (
            self._convert_tres_to_counts(job.each),
            self._convert_tres_to_counts(job.total),
        )
        parts = (
            -(-t // h)
            for i, (t, h) in enumerate(zip(total, self._like, strict=True))
            # Memory is asked for by node or CPU, never together: it makes no job larger.
            if h > 0 and i != _MEMORY
        )
        count = max(job.nodes, 1, *parts)
        if job.whole or not any((*each, *total)):
            return count, None
        return count, tuple(max(e, -(-t // count)) for e, t in zip(each, total, strict=True))

    def _find_nodes_with_free_resources(
        self, count: int, need: _Counts | None
    ) -> list[_NodeFreeResources]:
        """Return up to `count` nodes with room. Nodes only fill up: what had none needs no other
        look."""
        found: list[_NodeFreeResources] = []
        at = first = self._from.get(need, 0)
        while at < len(self._nodes) and len(found) < count:
            if self._nodes[at].takes(need):
                found.append(self._nodes[at])
            elif not found:
                first = at + 1
            at += 1
        self._from[need] = first
        return found


DAY = timedelta(days=1)


class JobWaitingForNodes(Struct, frozen=True):
    """A job that waits for nodes and for nothing else.

    `nodes`: how many it needs at least, all its array's tasks together, each for itself. `asks`:
    what else Slurm reports of it; None: nothing. `grows`: more nodes would start it. Until Slurm
    reports why it waits, nothing is ordered for it, nor removed from it.
    """

    job: JobId
    partitions: tuple[str, ...]
    nodes: int
    since: datetime
    asks: JobResourceRequest | None = None
    grows: bool = True

    @property
    def demand(self) -> JobResourceRequest:
        """Return what has to be found for it."""
        return self.asks or JobResourceRequest(nodes=self.nodes, whole=True)


class IdleNode(Struct, frozen=True):
    """A node that a job could have now: healthy and no spare. `since`: None if unknown."""

    node: NodeName
    instance: InstanceId
    since: datetime | None
    has: Tres = NOTHING_KNOWN


class AutoscaledInstanceGroup(Struct, frozen=True):
    """An instance group as the provider and Slurm have it now.

    `target` is the size last requested from the provider, `alive` how many instances run,
    `arriving` how many of the target are not in Slurm yet. `blocked` says why nothing may be
    ordered. It grows for jobs of its `partitions`; nothing leaves while a job waits in any of those
    its nodes are in. `like` is what one of its nodes has; `features` are theirs, None if unknown.
    `late`: what was added last did not come in time, and is not there yet.
    """

    name: str
    partitions: tuple[str, ...]
    target: int
    alive: int
    arriving: int = 0
    idle: tuple[IdleNode, ...] = ()
    spares: int = 0
    blocked: str = ""
    nodes_in: tuple[str, ...] = ()
    like: Tres = NOTHING_KNOWN
    features: frozenset[str] | None = None
    late: bool = False


class ScalingDirection(StrEnum):
    """Which way a group changed."""

    UP = "up"
    DOWN = "down"


class PastScalingChange(Struct, frozen=True):
    """A change of a group that was decided before. `ended` None: it is under way.

    `count`: how many instances it brought or took, 0 where the service refused it. `failed`: it
    did not come to what was wanted.
    """

    id: RecoveryId
    group: str
    direction: ScalingDirection
    count: int
    at: datetime
    ended: datetime | None = None
    failed: bool = False


class ScalingInput(Struct, frozen=True):
    """All that `decide_group_autoscaling` looks at. `stopped`: why nothing at all may be done."""

    groups: Mapping[str, AutoscaledInstanceGroup]
    waiting: Sequence[JobWaitingForNodes] = ()
    history: Sequence[PastScalingChange] = ()
    stopped: str = ""


class ScaleUp(Struct, frozen=True):
    """Add `count` instances to a group; it has `size` then."""

    group: str
    count: int
    size: int
    why: str
    jobs: tuple[JobId, ...] = ()


class ScaleDown(Struct, frozen=True):
    """Take these idle nodes out of a group."""

    group: str
    nodes: tuple[IdleNode, ...]
    why: str


class ScalingHoldDecision(Struct, frozen=True):
    """Nothing is done about a group: `rule` says by which check, `why` in words."""

    group: str
    rule: str
    why: str


Decision = ScaleUp | ScaleDown | ScalingHoldDecision


class _RemainingDemandAndBudget(Struct):
    """What is left for the groups that come next: jobs that nothing there serves, and budget."""

    every: Sequence[JobWaitingForNodes]
    jobs: list[JobWaitingForNodes]
    adds: int
    hours: float | None
    pools: dict[str, ScalingNodePool] = field(default_factory=dict)
    seated: dict[str, list[JobWaitingForNodes]] = field(default_factory=dict)
    """The jobs that what is idle or arriving in a group serves."""


def decide_group_autoscaling(
    view: ScalingInput, policy: AutoscalePolicy, now: datetime
) -> tuple[Decision, ...]:
    """Return one answer for each group of the policy, in its order."""
    if not policy.enabled:
        return tuple(
            ScalingHoldDecision(name, "off", "autoscale.enabled is false") for name in policy.groups
        )
    if view.stopped:
        return tuple(ScalingHoldDecision(name, "stopped", view.stopped) for name in policy.groups)
    jobs = sorted(view.waiting, key=lambda w: (w.since, w.job))
    ripe = [
        w for w in jobs if w.grows and now >= add_seconds_within_bounds(w.since, policy.up_after_s)
    ]
    left = _RemainingDemandAndBudget(
        jobs, ripe, *compute_remaining_scaling_budget(view.history, policy, now, view.groups)
    )
    known = [view.groups[name] for name in policy.groups if name in view.groups]
    # In any group: no nodes are ordered for a job that finds its nodes in another group.
    for group in known:
        coming = 0 if group.late else group.arriving
        pool = ScalingNodePool(group.like, [i.has for i in group.idle] + [group.like] * coming)
        left.pools[group.name] = pool
        left.seated[group.name] = _place_jobs(group, left, 0, None)[0]
    answers: list[Decision] = []
    for name in policy.groups:
        if name in view.groups:
            answers.append(
                _decide_group_scaling(view.groups[name], view.history, left, policy, now)
            )
        else:
            answers.append(ScalingHoldDecision(name, "unknown", f"the cluster has no group {name}"))
    return tuple(answers)


def _decide_group_scaling(
    group: AutoscaledInstanceGroup,
    history: Sequence[PastScalingChange],
    left: _RemainingDemandAndBudget,
    policy: AutoscalePolicy,
    now: datetime,
) -> Decision:
    limits = policy.groups[group.name]
    mine = [p for p in history if p.group == group.name]
    wanted = [w for w in left.every if set(w.partitions) & set(group.partitions)]
    before = left.jobs
    answer: Decision = _decide_scale_up(group, limits, left, policy)
    if isinstance(answer, ScalingHoldDecision) and not wanted:
        answer = _decide_scale_down(group, limits, policy, now)
        others = [w for w in left.every if set(w.partitions) & set(group.nodes_in)]
        if isinstance(answer, ScaleDown) and others:
            answer = ScalingHoldDecision(
                group.name, "wanted", f"{_format_waiting_jobs(others)} where its idle nodes are"
            )
    elif isinstance(answer, ScalingHoldDecision) and now < add_seconds_within_bounds(
        oldest := wanted[0].since, policy.up_after_s
    ):
        answer = ScalingHoldDecision(
            group.name,
            "young",
            f"{_format_waiting_jobs(wanted)} since {oldest:%H:%M:%S}:"
            f" not for {policy.up_after_s:g} s yet",
        )
    if isinstance(answer, ScalingHoldDecision):
        return answer
    held = _make_scaling_in_progress_hold(group, mine) or _make_scaling_cooldown_hold(
        group, answer, mine, policy, now
    )
    if held is None and isinstance(answer, ScaleUp):
        left.adds -= answer.count
        left.hours = None if left.hours is None else left.hours - answer.count
    if held is not None and held.rule in ("blocked", "cooldown"):
        left.jobs = before  # not served here for now: by the next group, perhaps
    return held or answer


def _decide_scale_up(
    group: AutoscaledInstanceGroup,
    limits: InstanceGroupSizeLimits,
    left: _RemainingDemandAndBudget,
    policy: AutoscalePolicy,
) -> ScaleUp | ScalingHoldDecision:
    """Return the instances for the jobs that this group can serve; those are removed from the
    list."""
    ripe = [w for w in left.jobs if set(w.partitions) & set(group.partitions)]
    size, pool = max(group.target, group.alive), left.pools[group.name]
    room, bound = _compute_group_growth_limit(size, limits, left) if not group.late else (0, "late")
    served, missing = _place_jobs(group, left, room, size)
    if missing:
        count = min(missing, policy.step)
        waiting = _format_waiting_jobs(
            sorted({*left.seated[group.name], *served}, key=lambda w: (w.since, w.job))
        )
        why = f"{waiting} for {pool.busy_count} node(s), {missing} too few"
        return ScaleUp(group.name, count, size + count, why, tuple(w.job for w in served))
    here = left.seated[group.name]
    if here:
        return ScalingHoldDecision(
            group.name,
            "enough",
            f"{_format_waiting_jobs(here)}: what is idle or arriving serves it",
        )
    if not ripe:
        return ScalingHoldDecision(
            group.name, "no_demand", "no job waits for more nodes of this group"
        )
    fit = [job for job in ripe if _can_group_serve_job(group, job.demand, pool)]
    if not fit:
        return ScalingHoldDecision(
            group.name,
            "no_fit",
            f"{_format_waiting_jobs(ripe)} for what this group's nodes are not",
        )
    if group.late:
        why = f"{group.target - group.alive} instance(s) that were ordered long ago are not there"
        return ScalingHoldDecision(group.name, "late", f"{why}; hpctl orders no further instances")
    first = fit[0]
    return ScalingHoldDecision(
        group.name, bound, f"job {first.job} needs {first.nodes} node(s), room for {room} ({bound})"
    )


def _place_jobs(
    group: AutoscaledInstanceGroup, left: _RemainingDemandAndBudget, room: int, size: int | None
) -> tuple[list[JobWaitingForNodes], int]:
    """Return the jobs that find nodes in the group's pool, and how many new nodes that takes.

    An array's tasks are jobs of their own: those that find none are left for the next group.
    """
    pool, served, stay, missing = left.pools[group.name], [], [], 0
    partitions = set(group.partitions)
    for job in left.jobs:
        tasks = 0
        if not partitions.isdisjoint(job.partitions) and _can_group_serve_job(
            group, job.demand, pool
        ):
            tasks, new = _place_array_tasks(job.demand, pool, room - missing, size)
            missing += new
        if tasks:
            served.append(job)
        if tasks < job.demand.tasks:
            stay.append(_remove_array_tasks(job, tasks) if tasks else job)
    left.jobs = stay
    return served, missing


def _place_array_tasks(
    job: JobResourceRequest, pool: ScalingNodePool, room: int, size: int | None
) -> tuple[int, int]:
    """Return how many tasks of a job find nodes, and how many new nodes that takes."""
    new = 0
    for done in range(job.tasks):
        short = pool.place(job, room - new, size)
        if short is None:
            return done, new
        new += short
    return job.tasks, new


def _remove_array_tasks(job: JobWaitingForNodes, tasks: int) -> JobWaitingForNodes:
    """Return the tasks of an array that are left."""
    rest = replace(job.demand, tasks=job.demand.tasks - tasks)
    return replace(job, nodes=rest.nodes * rest.tasks, asks=rest)


def _can_group_serve_job(
    group: AutoscaledInstanceGroup, job: JobResourceRequest, pool: ScalingNodePool
) -> bool:
    """Return whether another node of the group could be what a job waits for."""
    if job.named or not pool.fits(job):
        return False
    if not job.features or group.features is None:
        return True  # unknown for an empty group
    if re.fullmatch(r"[\w.:-]+(&[\w.:-]+)*", job.features) is None:
        return True  # an expression with more to it
    return group.features.issuperset(job.features.split("&"))


def _compute_group_growth_limit(
    size: int, limits: InstanceGroupSizeLimits, left: _RemainingDemandAndBudget
) -> tuple[int, str]:
    """Return how many instances may be added at most, and what bounds it."""
    room, bound = limits.max_count - size, "max_count"
    if left.adds < room:
        room, bound = left.adds, "adds_per_day"
    # What is added is paid for an hour at least: it boots, serves, and idles before it goes.
    if left.hours is not None and int(left.hours) < room:
        room, bound = int(left.hours), "hours_per_day"
    return max(room, 0), bound


def _decide_scale_down(
    group: AutoscaledInstanceGroup,
    limits: InstanceGroupSizeLimits,
    policy: AutoscalePolicy,
    now: datetime,
) -> ScaleDown | ScalingHoldDecision:
    old = [
        i
        for i in group.idle
        if i.since is not None and now >= add_seconds_within_bounds(i.since, policy.down_after_s)
    ]
    if not old:
        count = len(group.idle)
        return ScalingHoldDecision(
            group.name, "in_use", f"none of {count} idle node(s) for {policy.down_after_s:g} s"
        )
    spare_room = min(group.target, group.alive) - limits.min_count
    if spare_room <= 0:
        return ScalingHoldDecision(
            group.name, "min_count", f"{len(old)} idle, but min_count {limits.min_count}"
        )
    old.sort(key=lambda i: (i.since or now, i.node))
    nodes = tuple(old[: min(spare_room, policy.step)])
    return ScaleDown(group.name, nodes, f"idle for over {policy.down_after_s:g} s, no job waits")


def _make_scaling_in_progress_hold(
    group: AutoscaledInstanceGroup, mine: Sequence[PastScalingChange]
) -> ScalingHoldDecision | None:
    if group.blocked:
        return ScalingHoldDecision(group.name, "blocked", group.blocked)
    busy = [p for p in mine if p.ended is None]
    if busy:
        return ScalingHoldDecision(
            group.name, "under_way", f"{busy[0].id} ({busy[0].direction}) is under way"
        )
    return None


def _make_scaling_cooldown_hold(
    group: AutoscaledInstanceGroup,
    answer: ScaleUp | ScaleDown,
    mine: Sequence[PastScalingChange],
    policy: AutoscalePolicy,
    now: datetime,
) -> ScalingHoldDecision | None:
    """Hold a group that would reverse at once, or repeat at once what was refused."""
    same = ScalingDirection.UP if isinstance(answer, ScaleUp) else ScalingDirection.DOWN
    for past in mine:
        if past.ended is None or now >= add_seconds_within_bounds(past.ended, policy.cooldown_s):
            continue
        # What came to nothing has turned nothing round.
        if past.failed if past.direction is same else past.count:
            until = add_seconds_within_bounds(past.ended, policy.cooldown_s)
            ended = "failed" if past.failed else "ended"
            return ScalingHoldDecision(
                group.name,
                "cooldown",
                f"{past.direction} {ended} at {past.ended:%H:%M:%S}; not before {until:%H:%M:%S}",
            )
    return None


def compute_remaining_scaling_budget(
    history: Sequence[PastScalingChange],
    policy: AutoscalePolicy,
    now: datetime,
    groups: Mapping[str, AutoscaledInstanceGroup],
) -> tuple[int, float | None]:
    """Return the instances and instance-hours that may still be added within these 24 hours.

    Removals end the hours of the oldest additions first. An addition counts for at most the
    instances that its group has now: what another user removed, or what never came, costs nothing.
    """
    added = [p for p in history if p.direction is ScalingDirection.UP]
    adds = sum(p.count for p in added if p.at > now - DAY)
    if policy.hours_per_day is None:
        return policy.adds_per_day - adds, None
    begun: dict[str, list[datetime]] = {}
    hours = 0.0
    for past in sorted(history, key=lambda p: p.at):
        living = begun.setdefault(past.group, [])
        if past.direction is ScalingDirection.UP:
            living += [past.at] * past.count
        elif past.ended is not None:
            for _ in range(min(past.count, len(living))):
                hours += _count_hours_in_last_day(living.pop(0), past.ended, now)
    for name, living in begun.items():
        there = max(groups[name].target, groups[name].alive) if name in groups else len(living)
        hours += sum(
            _count_hours_in_last_day(at, now, now) for at in living[max(0, len(living) - there) :]
        )
    return policy.adds_per_day - adds, policy.hours_per_day - hours


def _count_hours_in_last_day(begun: datetime, ended: datetime, now: datetime) -> float:
    """Return the part of a stretch that lies within the last 24 hours."""
    return max(0.0, (ended - max(begun, now - DAY)) / timedelta(hours=1))


def _format_waiting_jobs(jobs: Sequence[JobWaitingForNodes]) -> str:
    named = ", ".join(str(w.job) for w in jobs[:3])
    more = f" and {len(jobs) - 3} more" if len(jobs) > 3 else ""
    return f"job {named}{more} waits" if len(jobs) == 1 else f"jobs {named}{more} wait"
