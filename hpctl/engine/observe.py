"""Building the View: each part carries when it was read, and an old part is never dressed up.

Slurm is read on the loop's thread: each cycle while anything happens, and at rest as
`reading_pace` says. Every step rests on what was read for it. The
cloud is read on a separate thread, because its answer may take seconds and a drain must not
wait for it. Which run policy each registered job has is found here, too: the cluster's, its
partition's, its own; the later wins.
"""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Set
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.absent_jobs import add_jobs_to_view, find_jobs_missing_from_view
from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.completing import find_stuck_completing_jobs
from hpctl.engine.instance_resolver import NEVER as LONG_AGO
from hpctl.engine.journal.state import EngineState
from hpctl.engine.kill_switch import read_kill_switch_reason
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.maintenance import ReservationReader, find_maintenance_reservations
from hpctl.engine.maintenance_times import find_nodes_of_due_maintenance_windows
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.node_history import has_node_unexpectedly_left_drain
from hpctl.engine.preemption_watch import PreemptionOrderCache
from hpctl.engine.reading_pace import (
    DISTRUST_S,
    SILENCE,
    SlurmReadingAge,
    find_nodes_with_service_changes,
    is_slurm_reading_due,
    should_wake_loop_for_log_event,
)
from hpctl.engine.requeue_exit import RequeueExitCodeCache
from hpctl.engine.test_reservation import find_leftover_test_reservation
from hpctl.engine.view import PlanningView, SlurmReadScope
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import FaultRules
from hpctl.faults.health import drop_findings_dismissed_by_operator
from hpctl.faults.hma_marks import preserve_fulfilled_hma_marks
from hpctl.faults.reachability import Signs, add_unreachable_node_findings
from hpctl.toolkit.errors import ReadInterrupted, ServiceUnavailable
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition
from hpctl.vocabulary.change import is_maintenance_window
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.controller_news import SlurmctldLogEvent
from hpctl.vocabulary.hang import JobHang, StalledJobRun
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.isolation import ItemProcessingFailure, process_items_capturing_failures
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.node_recovery import IN_TEST, NodeRecoveryPhase
from hpctl.vocabulary.pause import find_active_cluster_pause
from hpctl.vocabulary.policy import JobHangPolicy
from hpctl.vocabulary.ports import Clock, Scheduler
from hpctl.vocabulary.slurm_facts import (
    ENDED,
    SchedulerView,
    SlurmJob,
    SlurmNode,
    map_reserved_nodes,
)

log = logging.getLogger("hpctl.daemon")

_JUST_AFTER = timedelta(milliseconds=1)


WHOLE_CHEAP_S = 0.1
"""A reading of the whole of Slurm that takes no longer is taken each time."""


WHOLE_EVERY_S = 5.0
"""How long parts of Slurm are read before the whole is read again: a restart is over by then."""


WHOLE_AGE_S = 30.0
"""No part is read beside a whole that is older: the rest of the cluster has changed since. A
reading of the whole that an event interrupts is put off by WHOLE_EVERY_S, once.
"""


PART_NODES = 200
"""Most nodes in one part; more cost what the whole costs."""


GAP = timedelta(seconds=60)
"""Shorter spells in which Slurm does not answer, or hpctl is stopped, put no deadline off."""


class JobHangSource(Protocol):
    """Which running jobs stand still, from what the agents count of their processes."""

    flaws: tuple[ItemProcessingFailure, ...]

    @property
    def last_worked(self) -> Mapping[JobId, datetime]:
        """Return when each job was last seen at work."""

    @property
    def still(self) -> Mapping[JobId, StalledJobRun]:
        """Return the jobs of which nothing works, as of the last look."""

    def look(
        self, slurm: SchedulerView, now: datetime, policy: JobHangPolicy, state: EngineState
    ) -> Mapping[JobId, JobHang]:
        """Return the jobs that hang."""


class NullJobHangSource:
    """Finds no job that hangs: for a daemon that watches none."""

    flaws: tuple[ItemProcessingFailure, ...] = ()
    last_worked: Mapping[JobId, datetime] = {}
    still: Mapping[JobId, StalledJobRun] = {}

    def look(
        self, slurm: SchedulerView, now: datetime, policy: JobHangPolicy, state: EngineState
    ) -> Mapping[JobId, JobHang]:
        """Return nothing."""
        return {}


class NodeAddressStore(Protocol):
    """Keeps the address that Slurm has for each node."""

    def set_node_addresses(self, addresses: Mapping[NodeName, str]) -> None:
        """Take the addresses of all nodes: the same object until one changes."""


class ControllerLogSource(Protocol):
    """slurmctld's log."""

    @property
    def is_following(self) -> bool:
        """Return whether the log reports each change of a node."""

    def open(self) -> str:
        """Follow it from here on. Return why that cannot be; empty where it can."""

    def read(self) -> SlurmctldLogEvent:
        """Return the most urgent news since the last time."""


class ObserverSources(Struct, frozen=True):
    """Where facts come from."""

    scheduler: Scheduler
    cloud: CloudPoller
    health: NodeHealthStore
    log: ControllerLogSource | None = None
    """None: Slurm is read at each cycle."""
    hangs: JobHangSource = NullJobHangSource()


OPEN_EVERY_S = 600.0
"""How often slurmctld is asked for its log where that cannot be followed, in seconds."""


LEAVES_S = 600.0
"""How often the topology is read, in seconds."""


class ClusterObserver:
    """All the reading of one cycle."""

    def __init__(
        self,
        sources: ObserverSources,
        live: LiveConfig,
        clock: Clock,
        *,
        addresses: NodeAddressStore | None = None,
        whole_cheap_s: float = WHOLE_CHEAP_S,
    ) -> None:
        """`addresses` receives the nodes' addresses as soon as Slurm was read."""
        self._whole_cheap_s = whole_cheap_s
        self._scheduler = sources.scheduler
        self._cloud = sources.cloud
        self._health = sources.health
        self.hangs = sources.hangs
        self._live = live
        self._clock = clock
        self._address_book = addresses
        self._slurm = SchedulerView(as_of=LONG_AGO)
        self._provider = sources.cloud.view
        self._reservations = ReservationReader(sources.scheduler)
        self._reserved: Mapping[str, tuple[NodeName, ...]] = {}
        self._leaves: Mapping[NodeName, str] = {}
        self._leaves_at = -math.inf
        self._preemption = PreemptionOrderCache(sources.scheduler, clock)
        self._requeue_exit = RequeueExitCodeCache(sources.scheduler, clock)
        self._requeue_codes: frozenset[int] = frozenset()
        self._placed = False
        self.slurm_trouble = ""
        self._log = sources.log
        self._news = SlurmctldLogEvent.NONE
        self._read_at = self._trusted_from = self._open_from = -math.inf
        self._log_trouble: str | None = None
        """Why the log is not followed; None until slurmctld was asked for it."""
        self._able_since = LONG_AGO
        self._looked = LONG_AGO
        self._whole_due = -math.inf
        self._reads_parts = False
        self._whole_cost = math.inf
        self._signs: Signs = {}
        self._absent: Mapping[NodeName, datetime] = {}
        self._hindered: datetime | None = LONG_AGO

    @property
    def slurm(self) -> SchedulerView:
        """Return what Slurm reported last, with its time. Any thread."""
        return self._slurm

    @property
    def provider(self) -> CloudProviderView:
        """Return what the cloud reported last, its instances joined to Slurm's nodes. Any
        thread."""
        return self._provider

    @property
    def trouble(self) -> str:
        """Return what could not be read, for `hpctl status`."""
        return "; ".join(t for t in (self.slurm_trouble, self.cloud_trouble) if t)

    @property
    def cloud_trouble(self) -> str:
        """Return why the newest reading of the cloud failed; empty where it did not."""
        return self._cloud.trouble

    def get_latest_slurm_view(self) -> SchedulerView:
        """Return what Slurm reported last. Any thread. Raises Unavailable until Slurm was read
        once."""
        if self._slurm.as_of == LONG_AGO:
            raise ServiceUnavailable(
                "hpctl's daemon has just started and has no answer of Slurm yet",
                "run the command again in a moment; if this lasts, check `scontrol ping`",
            )
        return self._slurm

    def addresses(self) -> Mapping[NodeName, str]:
        """Return the address that Slurm has for each node; the same object until one changes. Any
        thread.

        Raises Unavailable until Slurm was read once.
        """
        self.get_latest_slurm_view()
        return self._cloud.resolver.addresses

    def look(
        self, state: EngineState, rules: FaultRules, acts: bool = True, *, quiet: bool = False
    ) -> PlanningView:
        """Return the world now. Where Slurm cannot be read, the old view with its old time. `acts`:
        the mode lets hpctl act on what is seen. `quiet`: no event asks for it, and nothing that is
        decided on it is carried out."""
        health = self._health.snapshot()
        self._read_controller_log()
        since = self._make_slurm_reading_age(state, health, rules)
        rests = quiet and not is_slurm_reading_due(since, self._live.config.loop)
        if rests:
            self._mark_slurm_view_current()
        else:
            if quiet and since.followed and not since.busy:
                self._whole_due = -math.inf
            health = self._refresh_slurm_view(state, health)
            if not self.slurm_trouble and (quiet or self._log_trouble is None):
                self._open_controller_log()
        reading = SlurmReadScope.PART if self._reads_parts else SlurmReadScope.WHOLE
        for node in state.returned.keys() & health.keys():
            health[node] = drop_findings_dismissed_by_operator(health[node], state.returned[node])
        now, stopped = self._clock.now(), self.find_kill_switch_reason()
        self._provider, joined = self._cloud.resolver.join(self._cloud.view, self._slurm)
        if self._address_book is not None and not self.slurm_trouble:
            self._address_book.set_node_addresses(self._cloud.resolver.addresses)
        if not timedelta() <= now - self._looked <= GAP:
            self._signs = {}  # no cycle ran for a while, so that it lasted is unknown
        self._looked = now
        health, self._signs = add_unreachable_node_findings(
            health, self._slurm, joined.instances, rules, now, self._signs
        )
        assessments, of_health = self._assess_nodes(health, rules, now)
        self._read_reservations(state, assessments)
        hindered = not acts or bool(
            self.slurm_trouble or stopped or find_active_cluster_pause(state.pauses, now)
        )
        ruled, of_runs = self._live.run_policies.of(self._slurm)
        return PlanningView(
            scheduler=self._slurm,
            provider=self._provider,
            health=health,
            assessments=assessments,
            silent_at=find_next_agent_silence(health, rules, now),
            state=state,
            instances=joined.instances,
            unjoined=joined.unjoined,
            current=not self.slurm_trouble,
            reading=SlurmReadScope.NONE if rests else reading,
            stopped=stopped,
            able_since=self._find_operational_start_time(hindered, now),
            ruled=ruled,
            reservations=self._reserved,
            absent=self._track_missing_recovery_nodes(state, now),
            maintenance=find_maintenance_reservations(
                self._slurm, self._live.policy.node.maintenance_lead_s, now
            ),
            begun=find_maintenance_reservations(self._slurm, 0.0, now),
            placed=self._placed,
            preemption=self._preemption.look(self._list_registered_jobs(ruled)),
            requeue_codes=self._requeue_codes,
            leaves=self._leaves,
            hangs=self.hangs.look(self._slurm, now, self._live.config.hangs, state),
            worked=self.hangs.last_worked,
            still=self.hangs.still,
            flaws={flaw.target: flaw for flaw in (*of_health, *of_runs, *self._flaws())},
        )

    def _refresh_slurm_view(
        self, state: EngineState, health: dict[NodeName, NodeHealth]
    ) -> dict[NodeName, NodeHealth]:
        """Read Slurm; return the health of the nodes by then."""
        news, self._news = self._news, SlurmctldLogEvent.NONE
        self._read_at = self._clock.monotonic()
        self._placed = False
        try:
            seen, health = self._read_slurm_and_node_health(state, health)
            absent = find_jobs_missing_from_view(seen, self._slurm, state)
            if absent:
                found = add_jobs_to_view(seen, self._scheduler.find_jobs(absent).values())
                seen = carry_over_last_job_runs(self._slurm, found)
            if any(
                has_node_unexpectedly_left_drain(state.nodes[i], seen.nodes.get(n))
                for n, i in state.open_nodes.items()
            ):
                seen = replace(seen, booted=self._scheduler.read_slurmctld_boot_time())
            before, self._slurm = self._slurm, preserve_fulfilled_hma_marks(self._slurm, seen)
            self._read_reservations_and_topology(state)
            self._requeue_codes = self._requeue_exit.look(seen.jobs.values())
            self.slurm_trouble = ""
        except ServiceUnavailable as error:
            self.slurm_trouble = str(error)
            return health
        self._read_controller_log()
        if self._reads_parts:
            self._news = max(self._news, news)
        elif max(self._news, news) < SlurmctldLogEvent.NODE and find_nodes_with_service_changes(
            before, seen
        ):
            self._trusted_from = self._clock.monotonic() + DISTRUST_S
        return health

    def _list_registered_jobs(self, ruled: Iterable[JobId]) -> Iterable[SlurmJob]:
        return (self._slurm.jobs[job] for job in ruled if job in self._slurm.jobs)

    def _read_controller_log(self) -> None:
        if self._log is not None:
            self._news = max(self._news, self._log.read())

    def _make_slurm_reading_age(
        self, state: EngineState, health: Mapping[NodeName, NodeHealth], rules: FaultRules
    ) -> SlurmReadingAge:
        now_s = self._clock.monotonic()
        treated = state.open_nodes or state.open_jobs or state.is_cluster_resizing
        unsettled = treated or self.slurm_trouble or self._reads_parts
        return SlurmReadingAge(
            age_s=now_s - self._read_at,
            busy=bool(unsettled) or self._has_newly_silent_agent(health, rules.silent_after),
            followed=self._can_follow_controller_log(now_s),
            news=self._news,
            sizes_capacity=self._live.config.sizes_capacity,
        )

    def _can_follow_controller_log(self, now_s: float) -> bool:
        return self._log is not None and self._log.is_following and now_s >= self._trusted_from

    def _has_newly_silent_agent(
        self, health: Mapping[NodeName, NodeHealth], silent_after: timedelta
    ) -> bool:
        """Return whether an agent became silent lately on a node that slurmctld still believes
        in."""
        now = self._clock.now()
        silent = (n for n, h in health.items() if silent_after < now - h.last_heard <= SILENCE)
        nodes = (self._slurm.nodes.get(name) for name in silent)
        awaited = (node for node in nodes if node is not None and not node.is_powered_down)
        return any(node.responding and not node.down for node in awaited)

    def _mark_slurm_view_current(self) -> None:
        """Note that what was read still holds: the part that is read next may join it."""
        self._slurm = replace(self._slurm, confirmed=self._clock.now())
        self._whole_due = self._clock.monotonic() + WHOLE_AGE_S

    def _open_controller_log(self) -> None:
        """Follow slurmctld's log where it is not: Slurm is read once more, for what was written
        between the last reading and now."""
        now_s = self._clock.monotonic()
        if self._log is None or self._log.is_following or now_s < self._open_from:
            return
        self._requeue_exit.forget()
        trouble = self._log.open()
        if trouble:
            self._open_from = now_s + OPEN_EVERY_S
        else:
            self._news = SlurmctldLogEvent.NODE
        if trouble != (self._log_trouble or ""):
            log.info("slurmctld's log followed=%s %s", not trouble, trouble)
        self._log_trouble = trouble

    def has_urgent_controller_log_event(self) -> bool:
        """Return whether slurmctld's log asks for a reading now. For the loop's thread."""
        if self._log is None or self.slurm_trouble:
            return False
        self._read_controller_log()
        age_s = self._clock.monotonic() - self._read_at
        since = SlurmReadingAge(age_s, busy=False, followed=True, news=self._news)
        return should_wake_loop_for_log_event(since)

    def _flaws(self) -> tuple[ItemProcessingFailure, ...]:
        return (*self._slurm.flaws, *self._provider.flaws, *self.hangs.flaws)

    def _read_reservations_and_topology(self, state: EngineState) -> None:
        """The reservations, and the topology, which changes with slurmctld's configuration, where
        capacity is managed or a node is tested, and where what was reserved before the
        configuration changed has to be released. Raises Unavailable."""
        phases = {state.nodes[rid].phase for rid in state.open_nodes.values()}
        back = NodeRecoveryPhase.VERIFYING in phases and any(
            map(find_leftover_test_reservation, state.nodes.values())
        )
        capacity = self._live.config.sizes_capacity
        resized = any(not is_maintenance_window(change) for change in state.changes.values())
        if not (capacity or resized or back or phases & {*IN_TEST}):
            return
        self._reserved = map_reserved_nodes(self._reservations.read())
        if time.monotonic() - self._leaves_at > LEAVES_S:
            self._leaves, self._leaves_at = self._scheduler.leaves(), time.monotonic()
        self._placed = True

    def _read_reservations(
        self, state: EngineState, assessments: Mapping[NodeName, NodeAssessment]
    ) -> None:
        """The reservations, where a node is faulty, lost or treated, keeps a job COMPLETING, or is
        held by one."""
        if self.slurm_trouble:
            return
        ill = (NodeCondition.FAULTY, NodeCondition.UNKNOWN)
        concerned = {name for name, judged in assessments.items() if judged.condition in ill}
        concerned -= {node.name for node in self._slurm.nodes.values() if node.is_powered_down}
        deadline_s = self._live.policy.job.completing_deadline_s
        for job in find_stuck_completing_jobs(
            self._slurm.jobs.values(), deadline_s, self._clock.now()
        ):
            concerned.update(job.completing_nodes)
        try:
            concerned |= find_nodes_of_due_maintenance_windows(
                state, self._live.policy, self._clock.now()
            )
            self._slurm = self._reservations.attach(
                self._slurm, concerned | {*state.open_nodes}, watched=bool(state.windows)
            )
        except ServiceUnavailable as error:
            self.slurm_trouble = str(error)

    def _read_slurm_and_node_health(
        self, state: EngineState, health: dict[NodeName, NodeHealth]
    ) -> tuple[SchedulerView, dict[NodeName, NodeHealth]]:
        """Slurm, and the health of the nodes: after a reading of the whole what it is by then, for
        that takes half a second where there are 10,000 nodes."""
        try:
            seen = self._read_full_or_partial_slurm_view(state, health)
        except ReadInterrupted:
            health = self._health.snapshot()
            self._reads_parts, self._whole_due = True, self._clock.monotonic() + WHOLE_EVERY_S
            seen = self._read_full_or_partial_slurm_view(state, health)
        return seen, health if self._reads_parts else self._health.snapshot()

    def _read_full_or_partial_slurm_view(
        self, state: EngineState, health: Mapping[NodeName, NodeHealth]
    ) -> SchedulerView:
        """Return the whole, or all jobs and the nodes that something is to be done about.

        A part leaves the time of the whole as it is: what it does not hold is that old. Where
        nodes are kept or added for jobs, each node matters and the whole is read.
        """
        began = self._clock.monotonic()
        nodes = list_nodes_with_recoveries_or_findings(state, health, self._slurm)
        capacity = self._live.config.sizes_capacity or state.is_cluster_resizing
        if self._can_read_node_subset(began, nodes) and not capacity:
            part = self._scheduler.part(nodes, self._pick_nodes_not_booting(state, nodes))
            seen = dict(self._slurm.nodes)
            for name in nodes:
                seen.pop(name, None)
            if not _has_job_on_down_node(part.jobs.values(), seen):
                flaws = {f.target: f for f in self._slurm.flaws if f.target not in nodes}
                flaws |= {f.target: f for f in part.flaws}
                seen.update(part.nodes)
                now = replace(
                    self._slurm,
                    nodes=seen,
                    jobs=part.jobs,
                    flaws=tuple(flaws.values()),
                    booted=None,
                )
                return carry_over_last_job_runs(self._slurm, now)
        view = carry_over_last_job_runs(self._slurm, self._scheduler.view())
        now_s = self._clock.monotonic()
        self._whole_due, self._reads_parts = now_s + WHOLE_AGE_S, False
        self._whole_cost = now_s - began
        return view

    def _pick_nodes_not_booting(
        self, state: EngineState, nodes: Set[NodeName]
    ) -> Mapping[NodeName, SlurmNode]:
        """Return those that no recovery waits for to boot: of them only the state is read again."""
        remedied = {
            node
            for node, rid in state.open_nodes.items()
            if state.nodes[rid].phase not in (NodeRecoveryPhase.OPEN, NodeRecoveryPhase.CORDONED)
        }
        return {n: self._slurm.nodes[n] for n in nodes - remedied if n in self._slurm.nodes}

    def _can_read_node_subset(self, now: float, nodes: Set[NodeName]) -> bool:
        if self.slurm_trouble or not 0 < len(nodes) <= PART_NODES:
            return False
        if not self._reads_parts:
            self._reads_parts = True
            self._whole_due = min(self._whole_due, now + WHOLE_EVERY_S)
        return self._whole_cost > self._whole_cheap_s and now <= self._whole_due

    def _track_missing_recovery_nodes(
        self, state: EngineState, now: datetime
    ) -> Mapping[NodeName, datetime]:
        """Since when each node that is treated is missing in Slurm, as far as that was read."""
        if not self.slurm_trouble:
            missing = state.open_nodes.keys() - self._slurm.nodes.keys()
            self._absent = {name: self._absent.get(name, now) for name in missing}
        return self._absent

    def _find_operational_start_time(self, hindered: bool, now: datetime) -> datetime:
        """Since when nothing keeps hpctl from looking and acting; a start is the end of a gap."""
        if hindered:
            self._hindered = self._hindered or now
            return now
        if self._hindered is not None and now - self._hindered > GAP:
            self._able_since = now
        self._hindered = None
        return self._able_since

    def find_kill_switch_reason(self) -> str:
        """Return why nothing may be done at all, where the kill switch says so. Any thread."""
        return read_kill_switch_reason(self._live.config.kill_switch)

    def _assess_nodes(
        self, health: dict[NodeName, NodeHealth], rules: FaultRules, now: datetime
    ) -> tuple[dict[NodeName, NodeAssessment], list[ItemProcessingFailure]]:
        """Return the assessments of all nodes that are not plainly healthy."""
        worth = [
            (node, known)
            for node, known in health.items()
            if known.findings or now - known.last_heard > rules.silent_after
        ]
        found, flaws = process_items_capturing_failures(
            "assess",
            worth,
            itemgetter(0),
            lambda item: (item[0], assess_health(item[1], rules, now)),
        )
        return {
            node: assessment
            for node, assessment in found
            if assessment.condition is not NodeCondition.HEALTHY or assessment.findings
        }, flaws


def list_nodes_with_recoveries_or_findings(
    state: EngineState, health: Mapping[NodeName, NodeHealth], slurm: SchedulerView
) -> set[NodeName]:
    """Return the nodes that a recovery is about, or that an agent tells of, or whose jobs are
    moved."""
    nodes = {*state.open_nodes, *(name for name, known in health.items() if known.findings)}
    for rid in state.open_jobs.values():
        rec = state.jobs[rid]
        job = slurm.jobs.get(rec.attempt.job)
        nodes |= {*rec.bad_nodes, *rec.exclude, *(job.nodes if job else ())}
    return nodes


def _has_job_on_down_node(jobs: Iterable[SlurmJob], older: Mapping[NodeName, SlurmNode]) -> bool:
    """Return whether a job runs on a node that was DOWN when it was read, before the jobs were: it
    has come back since, or was lost since without a recovery."""
    down = {name for name, node in older.items() if node.state == "DOWN"}
    return bool(down) and any(
        job.running and (job.batch_host in down or not down.isdisjoint(job.nodes)) for job in jobs
    )


def find_next_agent_silence(
    health: Mapping[NodeName, NodeHealth], rules: FaultRules, now: datetime
) -> datetime | None:
    """Return when the first of the nodes that are heard now has been silent for too long."""
    heard = (h.last_heard for h in health.values() if now - h.last_heard <= rules.silent_after)
    oldest = min(heard, default=None)
    return None if oldest is None else oldest + rules.silent_after + _JUST_AFTER


def carry_over_last_job_runs(before: SchedulerView, after: SchedulerView) -> SchedulerView:
    """Keep what Slurm forgets of the last runs of jobs."""
    return carry_over_job_requeue_orders(before, carry_over_last_job_nodes(before, after))


def carry_over_job_requeue_orders(before: SchedulerView, after: SchedulerView) -> SchedulerView:
    """Keep which jobs wait for another run because of a requeue after they had ended.

    Nothing in Slurm tells it: one whose node was lost after it had ended is not requeued because of
    that node. Lost with a restart of the daemon, as the nodes of the last run are.
    """
    carried: dict[JobId, SlurmJob] = {}
    for job in after.jobs.values():
        old = before.jobs.get(job.id)
        if old is None or job.state != "PENDING" or not job.restarts:
            continue
        # While a job completes, Slurm itself may be about to requeue it.
        had_ended = old.state in ENDED and not old.completing
        if had_ended or (old.ordered and old.restarts == job.restarts):
            carried[job.id] = replace(job, ordered=True)
    return replace(after, jobs={**after.jobs, **carried}) if carried else after


def carry_over_last_job_nodes(before: SchedulerView, after: SchedulerView) -> SchedulerView:
    """Keep the nodes and the start of a job's last run, which Slurm forgets: all nodes when it
    requeues the job, those that have finished (or died) one by one while it is completing.

    Without it, which job Slurm itself took off a node that went down is unknown. Lost with
    a restart of the daemon, when such a job merely waits out Slurm's own delay.
    """
    carried: dict[JobId, SlurmJob] = {}
    for job in after.jobs.values():
        requeued = not job.nodes and job.state == "PENDING" and job.restarts > 0
        if not requeued and not job.completing:
            continue
        old = before.jobs.get(job.id)
        if old is not None and len(old.nodes) > len(job.nodes):
            started = old.ran_from or old.start if requeued else None
            preempted = job.preempted or old.preempted
            carried[job.id] = replace(job, nodes=old.nodes, ran_from=started, preempted=preempted)
    return replace(after, jobs={**after.jobs, **carried}) if carried else after
