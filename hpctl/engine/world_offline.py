"""Compute the world without a daemon, from the journal, Slurm and the cloud.

This is the way where no daemon answers, for what is past, and for orders that destroy, which must
show what runs now. It decides nothing that a daemon has decided: assessments and candidates are
what a daemon would make of the same facts, with more patience for silence, because the journal
stores only now and then when a node was heard.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from hpctl.engine.journal.events import Event
from hpctl.engine.journal.state import EngineState, InconsistentEventError, replay_events
from hpctl.engine.kill_switch import read_kill_switch_reason
from hpctl.engine.maintenance import is_node_in_maintenance
from hpctl.engine.world import World, exclude_removed_nodes_from_health
from hpctl.toolkit.errors import CorruptJournalError, ServiceUnavailable
from hpctl.vocabulary import cloud_facts, slurm_facts
from hpctl.vocabulary.instance_join import InstanceNodeMapping

if TYPE_CHECKING:
    from hpctl.engine.config import Config
    from hpctl.engine.journal.reader import JournalReader
    from hpctl.engine.journal.rows import DaemonLeaseInfo
    from hpctl.faults.catalogue import FaultRules
    from hpctl.vocabulary.ports import Scheduler

T = TypeVar("T")
LOOK_S = 0.2
_watched: dict[tuple[int, int, datetime], float] = {}
"""Since when this process has seen an old row of the lease unchanged, by the monotonic clock."""


class JournalReplayer:
    """Memory of a journal that is read again and again, each time from where the last time ended.

    With `since` without the job recoveries that ended, and what supervisors reported, before it;
    with `past` together with what was retired.
    """

    def __init__(self, since: datetime | None, *, past: bool = False) -> None:
        self.state = EngineState()
        self._since, self._past = since, past
        self._seq = 0

    def news(self, store: JournalReader) -> Iterator[tuple[int, Event]]:
        """Yield what is new, each event with its number and once it is part of `state`. Raises
        Unavailable, CorruptJournalError."""
        with _convert_inconsistent_event_errors():
            for seq, event in store.list_numbered_events(
                self._seq, past=self._past, since=self._since
            ):
                self.state.fold(event)
                self._seq = seq
                yield seq, event
        self._since, self._past = None, False


def read_world_offline(
    config: Config,
    at: datetime,
    journal: JournalReplayer,
    *,
    slurm: bool = False,
    cloud: bool = False,
) -> World:
    """Read the store, and live where asked: Slurm and the cloud, side by side. Of the journal only
    what is new to `journal` is read.

    Raises what opening the store raises: without the journal there is nothing to show. An
    unreadable Slurm or cloud is part of the answer.
    """
    from hpctl.engine.adapters import (
        make_cloud_provider,
        make_slurm_command_client,
        open_journal_reader,
    )

    with ThreadPoolExecutor(2) as pool:
        nodes = pool.submit(
            read_source_if_requested,
            slurm,
            lambda: _read_slurm_with_reservations(make_slurm_command_client(config)),
        )
        instances = pool.submit(
            read_source_if_requested, cloud, lambda: make_cloud_provider(config).view()
        )
        with closing(open_journal_reader(config)) as store:
            deque(journal.news(store), maxlen=0)
            world = read_stored_world(config, store, journal.state, at)
        return add_cluster_assessments(world, config, nodes.result(), instances.result())


def _read_slurm_with_reservations(scheduler: Scheduler) -> slurm_facts.SchedulerView:
    """Slurm now, with its reservations where a node bears their flag. Raises Unavailable."""
    view = scheduler.view()
    if not any(map(is_node_in_maintenance, view.nodes.values())):
        return view
    return replace(view, reservations=scheduler.reservations())


def read_stored_world(
    config: Config, store: JournalReader, state: EngineState, at: datetime
) -> World:
    """Return what the store tells beside the journal. Raises Unavailable, CorruptJournalError."""
    shared = config.database_url is not None
    return World(
        now=at,
        policy=config.policy(),
        state=state,
        cluster=config.cluster.name,
        stopped=read_kill_switch_reason(config.kill_switch),
        health=store.health(),
        daemon=read_leader_lease(store, at, wait=shared),
        standbys=tuple(store.standbys()),
        shared=shared,
    )


def add_cluster_assessments(
    world: World,
    config: Config,
    slurm: tuple[slurm_facts.SchedulerView | None, str],
    cloud: tuple[cloud_facts.CloudProviderView | None, str],
) -> World:
    """Return the same with what Slurm and the cloud say, or why they do not, and with
    assessments."""
    from hpctl.engine.adapters import build_fault_rules_with_overrides
    from hpctl.engine.instance_resolver import match_instances_to_nodes_once
    from hpctl.engine.plan import find_node_recovery_candidates
    from hpctl.faults.assess import assess_health
    from hpctl.faults.health import drop_findings_dismissed_by_operator
    from hpctl.faults.reachability import add_unreachable_node_findings

    (slurm_view, slurm_error), (cloud_view, cloud_error) = slurm, cloud
    at, state, joined = world.now, world.state, InstanceNodeMapping()
    if cloud_view is not None:
        cloud_view, joined = match_instances_to_nodes_once(cloud_view, slurm_view)
    rules = _extend_node_silence_limit(build_fault_rules_with_overrides(config), config)
    health = exclude_removed_nodes_from_health(
        state, world.health, slurm_view, joined, at - rules.silent_after
    )
    health = {
        node: drop_findings_dismissed_by_operator(known, state.returned.get(node))
        for node, known in health.items()
    }
    health, _ = add_unreachable_node_findings(health, slurm_view, joined.instances, rules, at)
    world = replace(
        world,
        health=health,
        assessments={node: assess_health(known, rules, at) for node, known in health.items()},
        slurm=slurm_view,
        slurm_error=slurm_error,
        cloud=cloud_view,
        cloud_error=cloud_error,
        joined=joined,
    )
    found = find_node_recovery_candidates(world.view(), rules, at)[0] if slurm_view else ()
    return replace(world, candidates=tuple(found))


def read_leader_lease(store: JournalReader, at: datetime, *, wait: bool) -> DaemonLeaseInfo | None:
    """Return the lease's row. With `wait`, one that looks old is watched for as long as the lease
    lasts, once: another host's clock may be late, and a leader that lives renews it."""
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


def _extend_node_silence_limit(rules: FaultRules, config: Config) -> FaultRules:
    """Return the daemon stores plain heartbeats only now and then; silence is what lasts longer."""
    lag = timedelta(seconds=2 * config.flush_interval_s)
    return replace(rules, silent_after=rules.silent_after + lag)


def replay_journal_events(events: Iterable[Event]) -> EngineState:
    """Memory from a journal. Raises CorruptJournalError, which says what to do about it."""
    with _convert_inconsistent_event_errors():
        return replay_events(events)


@contextmanager
def _convert_inconsistent_event_errors() -> Iterator[None]:
    try:
        yield
    except InconsistentEventError as error:
        raise CorruptJournalError(
            f"the journal's events contradict each other: {error}",
            "stop the daemon, keep a copy of the journal for a bug report, and restore the newest "
            "good backup (docs/operations.md)",
        ) from error


def read_source_if_requested(wanted: bool, ask: Callable[[], T]) -> tuple[T | None, str]:
    """Return what Slurm or the cloud answers; None, with why, where it was not asked or cannot
    answer."""
    if not wanted:
        return None, "not asked"
    try:
        return ask(), ""
    except ServiceUnavailable as error:
        return None, f"{error} {error.hint}".strip()
