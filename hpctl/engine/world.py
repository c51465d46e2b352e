"""Read everything that a read command shows, once. What cannot be read is None, with why."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.engine.gates import Candidate
from hpctl.engine.journal.events import Event
from hpctl.engine.journal.state import Corrupt, State, replay
from hpctl.engine.view import View
from hpctl.toolkit.errors import JournalCorrupt, Unavailable
from hpctl.vocabulary import assessment, cloud_facts, identity, model, slurm_facts
from hpctl.vocabulary.instance_join import Joined
from hpctl.vocabulary.node_recovery import NodePhase, NodeRecovery
from hpctl.vocabulary.policy import Policy

if TYPE_CHECKING:
    from hpctl.engine.config import Config
    from hpctl.engine.journal.reader import JournalReader
    from hpctl.engine.journal.rows import DaemonInfo, StandbyInfo
    from hpctl.faults.catalogue import Rules


T = TypeVar("T")
LOOK_S = 0.2
_watched: dict[tuple[int, int, datetime], float] = {}
"""Since when this process has seen an old row of the lease unchanged, by the monotonic clock."""


class World(Struct, frozen=True):
    """All that is known at `now`. `slurm` and `cloud` are None where they cannot be read.

    `stopped` says that the kill-switch file is there.
    """

    now: datetime
    policy: Policy
    state: State
    cluster: str = ""
    stopped: str = ""
    health: Mapping[identity.NodeName, model.Health] = field(default_factory=dict)
    assessments: Mapping[identity.NodeName, assessment.Assessment] = field(default_factory=dict)
    daemon: DaemonInfo | None = None
    slurm: slurm_facts.SchedulerView | None = None
    slurm_error: str = ""
    cloud: cloud_facts.ProviderView | None = None
    cloud_error: str = ""
    joined: Joined = field(default_factory=Joined)
    """Which of the cloud's instances stands for which node."""
    untreated: tuple[Candidate, ...] = ()
    """Nodes that the facts call faulty and that no recovery treats: what the daemon decides on."""
    standbys: tuple[StandbyInfo, ...] = ()
    shared: bool = False
    """Whether several heads may use this journal."""

    @property
    def daemon_alive(self) -> bool:
        """Whether a daemon holds the lease: it renews it every cycle."""
        return self.daemon is not None and self.now <= self.daemon.until

    def view(self) -> View:
        """What the daemon would plan on; without the cloud's word, its gates pass."""
        return View(
            scheduler=self.slurm or slurm_facts.SchedulerView(self.now),
            provider=self.cloud or cloud_facts.ProviderView(self.now),
            health=self.health,
            assessments=self.assessments,
            state=self.state,
            instances=self.joined.instances,
            unjoined=self.joined.unjoined,
            current=self.slurm is not None,
            stopped=self.stopped,
        )


class Followed:
    """Memory of a journal that is read again and again, each time from where the last time ended.

    With `since` without the job recoveries that ended, and what supervisors reported, before it;
    with `past` together with what was retired.
    """

    def __init__(self, since: datetime | None, *, past: bool = False) -> None:
        self.state = State()
        self._since, self._past = since, past
        self._seq = 0

    def news(self, store: JournalReader) -> Iterator[tuple[int, Event]]:
        """What is new, each event with its number and once it is part of `state`. Raises
        Unavailable, JournalCorrupt."""
        with _consistent():
            for seq, event in store.numbered(self._seq, past=self._past, since=self._since):
                self.state.fold(event)
                self._seq = seq
                yield seq, event
        self._since, self._past = None, False


def gather(
    config: Config, at: datetime, *, slurm: bool = False, cloud: bool = False,
    past: bool = False, journal: Followed | None = None,
) -> World:  # fmt: skip
    """Read the store, and live where asked: Slurm and the cloud, side by side. With `past` what
    was retired too, which takes seconds where there are years of it. With `journal` only what is
    new to it.

    Raises what opening the store raises: without the journal there is nothing to show. An
    unreadable Slurm or cloud is part of the answer.
    """
    from hpctl.engine.adapters import make_provider, make_scheduler, open_reader

    journal = journal or Followed(None, past=past)
    with ThreadPoolExecutor(2) as pool:
        nodes = pool.submit(attempt, slurm, lambda: make_scheduler(config).view())
        instances = pool.submit(attempt, cloud, lambda: make_provider(config).view())
        with closing(open_reader(config)) as store:
            deque(journal.news(store), maxlen=0)
            world = stored(config, store, journal.state, at)
        return judged(world, config, nodes.result(), instances.result())


def stored(config: Config, store: JournalReader, state: State, at: datetime) -> World:
    """What the store tells beside the journal. Raises Unavailable, JournalCorrupt."""
    shared = config.database_url is not None
    return World(
        now=at,
        policy=config.policy(),
        state=state,
        cluster=config.cluster.name,
        stopped=f"the kill switch {config.kill_switch} is there" * config.kill_switch.exists(),
        health=store.health(),
        daemon=leader(store, at, wait=shared),
        standbys=tuple(store.standbys()),
        shared=shared,
    )


def judged(
    world: World,
    config: Config,
    slurm: tuple[slurm_facts.SchedulerView | None, str],
    cloud: tuple[cloud_facts.ProviderView | None, str],
) -> World:
    """The same with what Slurm and the cloud say, or why they do not, and with assessments."""
    from hpctl.engine.adapters import make_rules
    from hpctl.engine.plan import node_candidates
    from hpctl.faults.reachability import with_marks_and_reach

    (slurm_view, slurm_error), (cloud_view, cloud_error) = slurm, cloud
    at, state, joined = world.now, world.state, Joined()
    if cloud_view is not None:
        cloud_view, joined = _joined(cloud_view, slurm_view)
    rules = _patient(make_rules(config), config)
    health = _present(state, world.health, slurm_view, joined, at - rules.silent_after)
    health, _ = with_marks_and_reach(health, slurm_view, joined.instances, rules, at)
    world = replace(
        world,
        health=health,
        assessments=_assessed(health, state, rules, at),
        slurm=slurm_view,
        slurm_error=slurm_error,
        cloud=cloud_view,
        cloud_error=cloud_error,
        joined=joined,
    )
    found = node_candidates(world.view(), rules, at)[0] if slurm_view else ()
    return replace(world, untreated=tuple(found))


def _assessed(
    health: Mapping[identity.NodeName, model.Health], state: State, rules: Rules, at: datetime
) -> dict[identity.NodeName, assessment.Assessment]:
    from hpctl.faults.assess import assess
    from hpctl.faults.health import standing

    return {
        node: assess(standing(h, state.returned.get(node)), rules, at) for node, h in health.items()
    }


def leader(store: JournalReader, at: datetime, *, wait: bool) -> DaemonInfo | None:
    """The lease's row. With `wait`, one that looks old is watched for as long as the lease lasts,
    once: another host's clock may be late, and a leader that lives renews it."""
    info = store.daemon()
    if info is None or not wait or at <= info.until:
        return info
    mark, begun = (info.epoch, info.beat, info.heartbeat), time.monotonic()
    if mark not in _watched:
        _watched.clear()
    until = _watched.setdefault(mark, begun) + info.lease_s
    while time.monotonic() < until:
        time.sleep(LOOK_S)
        fresh = store.daemon()
        if fresh is not None and (fresh.epoch, fresh.beat) != (info.epoch, info.beat):
            return replace(fresh, until=at + timedelta(seconds=fresh.lease_s))
    return info


def _patient(rules: Rules, config: Config) -> Rules:
    """The daemon stores plain heartbeats only now and then; silence is what lasts longer."""
    lag = timedelta(seconds=2 * config.upkeep_s)
    return replace(rules, silent_after=rules.silent_after + lag)


def with_cloud(world: World, config: Config) -> World:
    """The same with the cloud's word, which an earlier look showed to be worth a call."""
    from hpctl.engine.adapters import make_provider

    view, error = attempt(True, lambda: make_provider(config).view())
    if view is None:
        return replace(world, cloud=None, cloud_error=error, joined=Joined())
    view, joined = _joined(view, world.slurm)
    return replace(world, cloud=view, cloud_error=error, joined=joined)


def _joined(
    cloud: cloud_facts.ProviderView, slurm: slurm_facts.SchedulerView | None
) -> tuple[cloud_facts.ProviderView, Joined]:
    from hpctl.engine.instance_resolver import joined_now

    return joined_now(cloud, slurm)


def _present(
    state: State,
    health: Mapping[identity.NodeName, model.Health],
    slurm: slurm_facts.SchedulerView | None,
    joined: Joined,
    recent: datetime,
) -> Mapping[identity.NodeName, model.Health]:
    """The health of the nodes without those that slurmctld does not know, nor the cloud where it
    was asked, that nothing is done to and that were not heard lately.

    Such a node was removed, by a scale-down for example: its agent is missed by nobody.
    """
    if slurm is None:
        return health
    there = {*slurm.nodes, *joined.instances, *state.open_nodes}
    return {n: h for n, h in health.items() if n in there or h.last_heard >= recent}


def fold(events: Iterable[Event]) -> State:
    """Memory from a journal. Raises JournalCorrupt, which says what to do about it."""
    with _consistent():
        return replay(events)


@contextmanager
def _consistent() -> Iterator[None]:
    try:
        yield
    except Corrupt as error:
        raise JournalCorrupt(
            f"the journal is inconsistent: {error}",
            "keep a copy for the maintainers and restore the newest good one",
        ) from error


def attempt(wanted: bool, ask: Callable[[], T]) -> tuple[T | None, str]:
    """What Slurm or the cloud answers; None, with why, where it was not asked or cannot answer."""
    if not wanted:
        return None, "not asked"
    try:
        return ask(), ""
    except Unavailable as error:
        return None, f"{error} {error.hint}".strip()


def known_nodes(w: World) -> list[identity.NodeName]:
    """Every node that anybody has a word for, in order."""
    from hpctl.engine.instance_resolver import natural

    names = set(w.health) | {r.node for r in w.state.nodes.values()}
    if w.slurm is not None:
        names = set(w.slurm.nodes) | set(w.health)
    return sorted(names, key=natural)


_AWAITED = (NodePhase.VACATED, NodePhase.REMEDYING, NodePhase.REJOINING)


def waits_for_cloud(w: World) -> bool:
    """Whether some open recovery waits for the cloud, so that its word is worth a call."""
    return any(w.state.nodes[i].phase in _AWAITED for i in w.state.open_nodes.values())


def cloud_says(w: World, rec: NodeRecovery) -> str:
    """One sentence, with the fix, where the cloud was asked and has something to say; else ""."""
    instance = _instance(w, rec) if rec.phase in _AWAITED else None
    if instance is None or not instance.message:
        return ""
    status = f"the cloud says {instance.status} of {instance.id}: {instance.message}"
    if instance.status is not cloud_facts.InstanceStatus.FAILURE:
        return status
    from hpctl.sagemaker.failure_causes import understand

    trouble = understand(instance.message)
    return f"{status} This means: {trouble.meaning}. Fix: {trouble.fix}"


def _instance(w: World, rec: NodeRecovery) -> cloud_facts.Instance | None:
    """The instance that stands for the node, or for its place in the group."""
    if w.cloud is None:
        return None
    mine = [
        i for i in w.cloud.instances.values() if i.logical_id and i.logical_id == rec.logical_id
    ]
    return w.joined.instances.get(rec.node) or (mine[0] if mine else None)
