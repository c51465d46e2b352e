"""What of the journal is past: ended so long ago that no decision looks back on it. Pure.

The past is kept apart, where `hpctl explain` finds it and where no replay reads it: so a daemon
of years starts, cycles and takes memory as one of three months. What belongs together leaves
together: a node recovery with the jobs that it moved, an instance with its addition and removal.
What has not ended stays, and so does the last that was done to each node.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain

from msgspec import Struct

from hpctl.engine.journal.events import (
    LIFTS_PAUSE,
    PAUSE_ENDED,
    ClockSet,
    ConfigurationTaken,
    DaemonStarted,
    Event,
    GateBlocked,
    HoldLifted,
    JobReported,
    RequestTaken,
)
from hpctl.engine.journal.state import RECENT_S, EngineState
from hpctl.engine.kinds import RecoveryKind
from hpctl.faults.catalogue import FaultRules
from hpctl.vocabulary.change import ClusterChange, is_maintenance_window
from hpctl.vocabulary.identity import JobId, NodeName, RecoveryId
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.policy import RecoveryPolicy


def compute_journal_lookback_s(policy: RecoveryPolicy, rules: FaultRules) -> float:
    """Return how many seconds decisions look back: longer than RECENT_S where the configuration
    says."""
    budgets = policy.budgets
    return max(
        RECENT_S,
        budgets.offender_window_s,
        budgets.launch_window_s,
        budgets.correlated_window_s,
        budgets.approval_s,
        policy.job.restart_window_s,
        policy.autoscale.cooldown_s,
        *(row.escalate_window_s for row in rules.classes.values()),
    )


InstancePair = tuple[RecoveryId, RecoveryId | None]
"""What added an instance, and what removed it; None while it lives."""


class RetirableJournalRecords(Struct, frozen=True):
    """What is past at one time. `ended`: the recoveries and changes, and when the last of those did
    that belong together.

    `jobs`: those of which every word stays.
    """

    state: EngineState
    before: datetime
    ended: Mapping[RecoveryId, datetime]
    jobs: frozenset[JobId]

    def over(self, event: Event) -> datetime | None:
        """Return when that was over which an event belongs to; None for an event that stays."""
        match event:
            case GateBlocked():
                stays = self.state.holds.get(event.target) == event
            case JobReported():
                stays = event.report.job in self.jobs
            case RequestTaken():
                stays = self._is_request_in_force(event)
            case ConfigurationTaken():
                stays = event == self.state.configuration
            case DaemonStarted() | HoldLifted() | ClockSet():
                stays = False
            case _:
                return self.ended.get(event.recovery)
        return None if stays or event.at >= self.before else event.at

    def _is_request_in_force(self, e: RequestTaken) -> bool:
        if e.verb in ("pause", PAUSE_ENDED, *LIFTS_PAUSE):
            return any(p.is_active(self.before) for p in self.state.pauses.values())
        return e.verb == "return" and self.state.returned.get(NodeName(e.target)) == e.at


def find_retirable_journal_records(
    state: EngineState, before: datetime, living: Collection[JobId], kinds: Sequence[RecoveryKind]
) -> RetirableJournalRecords:
    """Return what ended before a time and is no longer needed. `living`: the jobs that Slurm knows,
    whose every attempt counts however old it is."""
    living = {*living, *(job for job, events in state.reports.items() if events[-1].at >= before)}
    instances = list(chain.from_iterable(kind.pair_instances(state) for kind in kinds))
    links, known = _find_record_links(state, instances), dict(_list_all_records(state))
    stays = _find_linked_records(_find_records_to_keep(state, before, living, instances), links)
    ended: dict[RecoveryId, datetime] = {}
    for rid in known:
        if rid not in stays and rid not in ended:
            # One time for what belongs together: it moves, and is deleted, together.
            whole = _find_linked_records((rid,), links)
            ended |= dict.fromkeys(whole, max(known[one].since for one in whole))
    kept = {state.jobs[rid].attempt.job for rid in stays if rid in state.jobs}
    return RetirableJournalRecords(state, before, ended, frozenset(kept.union(living)))


def _find_linked_records(
    first: Iterable[RecoveryId], links: Mapping[RecoveryId, Sequence[RecoveryId]]
) -> set[RecoveryId]:
    """These, and all that is linked with them over any number of links."""
    wanted, found = deque(first), set[RecoveryId]()
    while wanted:
        rid = wanted.popleft()
        if rid not in found:
            found.add(rid)
            wanted.extend(links.get(rid, ()))
    return found


def _list_all_records(
    state: EngineState,
) -> Iterator[tuple[RecoveryId, NodeRecovery | JobRecovery | ClusterChange]]:
    yield from state.nodes.items()
    yield from state.jobs.items()
    yield from state.changes.items()


def _find_records_to_keep(
    state: EngineState,
    before: datetime,
    living: Collection[JobId],
    instances: Sequence[InstancePair],
) -> Iterator[RecoveryId]:
    """Yield what stays for its own sake."""
    for rid, rec in _list_all_records(state):
        if not rec.ended or rec.since >= before:
            yield rid
    # Old evidence opens no new recovery of it, and a person may still have to see to it.
    yield from state.last_of_node.values()
    # The name of a node may be in Slurm, drained for its removal, long after its instance.
    yield from {
        rec.node: rid for rid, rec in state.nodes.items() if rec.is_for_capacity_change
    }.values()
    yield from (rid for rid, job in state.jobs.items() if job.attempt.job in living)
    # Of each group and node: its name may be in Slurm, closed, long after its instance.
    sizes = {c.key: rid for rid, c in state.changes.items() if not is_maintenance_window(c)}
    yield from sizes.values()
    yield from (added for added, removed in instances if removed is None)


def _find_record_links(
    state: EngineState, instances: Sequence[InstancePair]
) -> dict[RecoveryId, list[RecoveryId]]:
    """Return what would be reported, or counted, wrongly without the other."""
    pairs = [(rid, job.cause) for rid, job in state.jobs.items()]
    pairs += [(rid, c.opened.cause) for rid, c in state.changes.items() if c.opened.cause]
    pairs += [(added, removed) for added, removed in instances if removed is not None]
    links: dict[RecoveryId, list[RecoveryId]] = {}
    for one, other in pairs:
        if one in state and other in state:
            links.setdefault(one, []).append(other)
            links.setdefault(other, []).append(one)
    return links
