"""The daemon's world as a reader gets it: the question, the answer's head, and frames of records.

An answer is a length of four bytes, a head, and frames one after the other; the head names the
kind and the length of each. A frame is a list of at most CHUNK records of one kind, so that neither
side encodes much at a time. What a reader can derive (which recovery is open, say) is not sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import chain, islice
from pathlib import Path
from types import GenericAlias, MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.journal.events import ConfigurationTaken, GateBlocked, JobReported
from hpctl.engine.journal.rows import DaemonLeaseInfo, StandbyInfo
from hpctl.engine.journal.state import EngineState
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.assessment import NodeAssessment
from hpctl.vocabulary.change import ClusterChange
from hpctl.vocabulary.cloud_facts import CloudProviderView, Instance
from hpctl.vocabulary.hang import StalledJobRun
from hpctl.vocabulary.identity import NodeName, RuleId
from hpctl.vocabulary.isolation import ItemProcessingFailure
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.pause import Pause
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode, SlurmReservation

PROTOCOL: Final = 2
"""Raised whenever a frame or the head changes its meaning."""
REQUEST_BYTES: Final = 1024
"""The longest request."""
HEAD_BYTES: Final = 4
"""The length before a request and before a head, most significant byte first."""
CHUNK: Final = 250
"""Records in one frame at most."""
LATELY: Final = timedelta(days=1)
"""Job recoveries that ended, and reports of supervisors, before that are HISTORY: to the hour, so
that most worlds have the same."""


class WorldPart(StrEnum):
    """What a reader may ask for."""

    STATE = "state"
    """What the journal amounts to, without HISTORY."""
    HISTORY = "history"
    HEALTH = "health"
    """What the agents reported, the assessments, and what was decided."""
    SLURM = "slurm"
    CLOUD = "cloud"
    PLACEMENT = "placement"
    """Slurm's reservations and topology, where the daemon reads them."""


class WorldRequest(Struct, frozen=True):
    """A request. `parts`: what is wanted, each with the token of what the reader has, or 0."""

    protocol: int
    parts: dict[WorldPart, int] = {}


class WorldAnswerSummary(Struct, frozen=True):
    """Who answers, and what is small enough to be in every answer."""

    daemon: DaemonLeaseInfo
    policy: RecoveryPolicy
    standbys: tuple[StandbyInfo, ...] = ()
    cluster: str = ""
    stopped: str = ""
    slurm_trouble: str = ""
    cloud_trouble: str = ""


class WorldAnswerVersion(Struct, frozen=True):
    """What every version of a head begins with."""

    protocol: int
    version: str


class WorldPartHead(Struct, frozen=True):
    """One part of an answer. Its content has another token whenever it is another.

    `frames`: the kind and length of each; None where the reader has what this token stands for.
    """

    part: WorldPart
    token: int
    frames: tuple[tuple[str, int], ...] | None = None


class WorldAnswerHead(Struct, frozen=True):
    """The head of an answer. `version` is hpctl's; `number` the world's; `age_s`: how long ago the
    cycle ended. `refused` says why there is no world; empty: there is one.
    """

    protocol: int
    version: str
    number: int = 0
    age_s: float = 0.0
    refused: str = ""
    about: WorldAnswerSummary | None = None
    parts: tuple[WorldPartHead, ...] = ()


class MiscellaneousJournalState(Struct, frozen=True):
    """What of the state is neither a recovery nor a report."""

    holds: tuple[GateBlocked, ...]
    approvals: dict[str, datetime]
    returned: dict[NodeName, datetime]
    pauses: tuple[Pause, ...]
    configuration: ConfigurationTaken | None
    events: int
    began: datetime | None
    mass_events: dict[RuleId, datetime] = {}
    newest: datetime | None = None


class SchedulerViewHeader(Struct, frozen=True):
    """A view of Slurm without its nodes and jobs."""

    as_of: datetime
    flaws: tuple[ItemProcessingFailure, ...]
    booted: datetime | None
    confirmed: datetime | None = None
    reservations: tuple[SlurmReservation, ...] | None = None


class ProviderViewHeader(Struct, frozen=True):
    """A view of the cloud without its instances; `unjoined`: see
    `instance_join.InstanceNodeMapping`."""

    provider: CloudProviderView
    unjoined: Mapping[str, str]


class PlacementFacts(Struct, frozen=True):
    """Slurm's reservations and topology, as in `view.PlanningView`."""

    reservations: Mapping[str, tuple[NodeName, ...]]
    leaves: Mapping[NodeName, str]


KINDS: Final[dict[str, Any]] = {
    "node_recovery": NodeRecovery,
    "job_recovery": JobRecovery,
    "change": ClusterChange,
    "report": JobReported,
    "rest": MiscellaneousJournalState,
    "older_job_recovery": JobRecovery,
    "older_report": JobReported,
    "health": NodeHealth,
    "assessment": NodeAssessment,
    "candidate": RecoveryCandidate,
    "hold": GateBlocked,
    "flaw": ItemProcessingFailure,
    "still": StalledJobRun,
    "slurm": SchedulerViewHeader,
    "node": SlurmNode,
    "job": SlurmJob,
    "cloud": ProviderViewHeader,
    "instance": Instance,
    "placement": PlacementFacts,
}
"""The type of the records of each kind of frame."""

WorldFrame = tuple[str, bytes]
Records = Mapping[str, list[Any]]
"""The records of an answer, by kind."""


def encode_frames(
    part: WorldPart, view: PlanningView, decided: RecoveryCycleDecisions, since: datetime
) -> Iterator[WorldFrame]:
    """Encode one part, frame by frame. HISTORY is what was over before `since`."""
    for kind, records in _list_part_records(part, view, decided, since):
        rest = iter(records)
        while chunk := list(islice(rest, CHUNK)):
            yield kind, _encoder.encode(chunk)


class RecoveryCycleDecisions(Struct, frozen=True):
    """What a cycle decided."""

    candidates: tuple[RecoveryCandidate, ...] = ()
    holds: tuple[GateBlocked, ...] = ()
    flaws: tuple[ItemProcessingFailure, ...] = ()


def _list_part_records(
    part: WorldPart, view: PlanningView, decided: RecoveryCycleDecisions, since: datetime
) -> Iterator[tuple[str, Iterable[object]]]:
    state = view.state
    match part:
        case WorldPart.STATE:
            yield "node_recovery", state.nodes.values()
            yield "change", state.changes.values()
            yield (
                "job_recovery",
                (r for r in state.jobs.values() if not _is_historical_recovery(r, since)),
            )
            yield "report", (r for r in _list_job_reports(state) if r.at >= since)
            yield "rest", [_pack_miscellaneous_journal_state(state)]
        case WorldPart.HISTORY:
            yield (
                "older_job_recovery",
                (r for r in state.jobs.values() if _is_historical_recovery(r, since)),
            )
            yield "older_report", (r for r in _list_job_reports(state) if r.at < since)
        case WorldPart.HEALTH:
            yield "health", view.health.values()
            yield "assessment", view.assessments.values()
            yield "candidate", decided.candidates
            yield "hold", decided.holds
            yield "flaw", decided.flaws
            yield "still", view.still.values()
        case WorldPart.SLURM:
            slurm = view.scheduler
            known = slurm.reservations
            reservations = None if known is None else tuple(known.values())
            head = SchedulerViewHeader(
                slurm.as_of, slurm.flaws, slurm.booted, slurm.confirmed, reservations
            )
            yield "slurm", [head]
            yield "node", slurm.nodes.values()
            yield "job", slurm.jobs.values()
        case WorldPart.CLOUD:
            yield "cloud", [ProviderViewHeader(replace(view.provider, instances={}), view.unjoined)]
            yield "instance", view.provider.instances.values()
        case WorldPart.PLACEMENT:
            if view.placed:
                yield "placement", [PlacementFacts(view.reservations, view.leaves)]


def find_history_start(at: datetime) -> datetime:
    """Return the time before which what was over is HISTORY in a world of `at`."""
    return (at - LATELY).replace(minute=0, second=0, microsecond=0)


def count_history_records(state: EngineState, since: datetime) -> tuple[int, int]:
    """Return how many job recoveries and reports are HISTORY; these never change, only their
    number."""
    jobs = sum(_is_historical_recovery(rec, since) for rec in state.jobs.values())
    return jobs, sum(report.at < since for report in _list_job_reports(state))


def _is_historical_recovery(rec: JobRecovery, since: datetime) -> bool:
    return rec.ended and rec.since < since


def _list_job_reports(state: EngineState) -> Iterator[JobReported]:
    return chain.from_iterable(state.reports.values())


def _pack_miscellaneous_journal_state(state: EngineState) -> MiscellaneousJournalState:
    return MiscellaneousJournalState(
        holds=tuple(state.holds.values()),
        approvals=state.approvals,
        returned=state.returned,
        pauses=tuple(state.pauses.values()),
        configuration=state.configuration,
        events=state.events,
        began=state.began,
        newest=state.newest,
        mass_events=state.mass_events,
    )


_encoder = msgspec.msgpack.Encoder()


def encode_answer_head(head: WorldAnswerHead) -> bytes:
    """Return a head behind its length."""
    body = _encoder.encode(head)
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def encode_world_request(
    parts: Iterable[WorldPart], have: Mapping[WorldPart, int] = MappingProxyType({})
) -> bytes:
    """Return a request behind its length. `have`: the tokens of the parts that the reader has."""
    body = _encoder.encode(WorldRequest(PROTOCOL, {part: have.get(part, 0) for part in parts}))
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def decode_record_frames(
    listed: Sequence[tuple[str, int]], body: memoryview
) -> dict[str, list[Any]]:
    """Return the records by kind, in order. Raises msgspec.DecodeError; KeyError for a kind that
    this version does not know."""
    found: dict[str, list[Any]] = {}
    decoders: dict[str, Callable[[memoryview], list[Any]]] = {}
    at = 0
    for kind, length in listed:
        if kind not in decoders:
            records: Any = GenericAlias(list, KINDS[kind])
            decoders[kind] = msgspec.msgpack.Decoder(records).decode
        found.setdefault(kind, []).extend(decoders[kind](body[at : at + length]))
        at += length
    return found


def build_engine_state_from_records(found: Records) -> EngineState:
    """Return the state whose records these are; without HISTORY the part of it that is there."""
    rest: MiscellaneousJournalState = found["rest"][0]
    jobs: list[JobRecovery] = [*found.get("older_job_recovery", ()), *found.get("job_recovery", ())]
    jobs.sort(key=lambda rec: rec.opened)
    nodes: list[NodeRecovery] = found.get("node_recovery", [])
    changes: list[ClusterChange] = found.get("change", [])
    state = EngineState(
        nodes={rec.id: rec for rec in nodes},
        jobs={rec.id: rec for rec in jobs},
        open_nodes={rec.node: rec.id for rec in nodes if not rec.ended},
        open_jobs={rec.key: rec.id for rec in jobs if not rec.ended},
        attempts={rec.attempt: rec.id for rec in jobs},
        last_of_node={rec.node: rec.id for rec in nodes if not rec.is_for_capacity_change},
        holds={hold.target: hold for hold in rest.holds},
        approvals=rest.approvals,
        returned=rest.returned,
        changes={change.id: change for change in changes},
        open_changes={change.key: change.id for change in changes if not change.ended},
        pauses={pause.scope: pause for pause in rest.pauses},
        configuration=rest.configuration,
        events=rest.events,
        began=rest.began,
        newest=rest.newest,
        mass_events=rest.mass_events,
    )
    for report in [*found.get("older_report", ()), *found.get("report", ())]:
        job = report.report.job
        state.reports[job] = (*state.reports.get(job, ()), report)
    return state


def build_scheduler_view_from_records(found: Records) -> SchedulerView:
    """Return the view of Slurm whose records these are."""
    head: SchedulerViewHeader = found["slurm"][0]
    return SchedulerView(
        as_of=head.as_of,
        nodes={node.name: node for node in found.get("node", ())},
        jobs={job.id: job for job in found.get("job", ())},
        flaws=head.flaws,
        booted=head.booted,
        confirmed=head.confirmed,
        reservations=None
        if head.reservations is None
        else {one.name: one for one in head.reservations},
    )


@contextmanager
def shorten_socket_path(path: Path) -> Iterator[str]:
    """Yield a name for a socket's path that fits into its address of 108 bytes. Raises OSError."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def get_world_socket_path(state_dir: Path) -> Path:
    """Return where the daemon of a state directory offers its world."""
    return state_dir / "world.sock"
