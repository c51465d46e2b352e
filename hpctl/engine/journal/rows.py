"""Rows of the journal's tables to and from values.

SQLite keeps any type in any column, so a number in a row may be a text that a user wrote: what
cannot be read is corruption.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from hpctl.engine.journal.events import EVENT_TYPES, Event, JobReported, format_event_kind
from hpctl.engine.view import Request
from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import CorruptJournalError, ServiceUnavailable
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName
from hpctl.vocabulary.job_recovery import ENDS, TRANSITIONS
from hpctl.vocabulary.model import Finding, NodeHealth

_encoder = msgspec.json.Encoder()


@cache
def _get_event_decoder(kind: str) -> msgspec.json.Decoder[Event] | None:
    """Return the decoder of a kind of record; made when it is needed, for a reader may need
    none."""
    return msgspec.json.Decoder(EVENT_TYPES[kind]) if kind in EVENT_TYPES else None


def encode_event(event: Event) -> tuple[str, str]:
    """Return the record's kind and its JSON."""
    return format_event_kind(type(event)), _encoder.encode(event).decode()


def decode_event(seq: int, kind: str, payload: str) -> Event:
    """Read record number `seq` back. Raises CorruptJournalError with its place and the hint."""
    try:
        decoder = _get_event_decoder(kind)
        if decoder is None:
            raise ValueError(f"unknown kind {kind!r}")
        return decoder.decode(payload)
    except (TypeError, ValueError, msgspec.DecodeError) as error:
        raise CorruptJournalError(
            f"journal event {seq} cannot be read: {error}",
            "stop the daemon, keep a copy of the journal, and restore the newest good backup"
            " (docs/operations.md, 'A corrupt journal'); it is never read as empty",
        ) from error


_HEAD = re.compile(r'\{"at":"([^"]{19})[^"]*","recovery":"(j-[^"]*)"(?:,"signal":"([a-z_]+)")?')
"""How a record of a job's recovery begins."""
_ENDING = {signal for (_, signal), phase in TRANSITIONS.items() if phase in ENDS}
_ENDING -= {signal for (_, signal), phase in TRANSITIONS.items() if phase not in ENDS}

Row = tuple[int, str, str]
"""A record's number, kind and JSON."""


def drop_old_ended_job_events(rows: Iterable[Row], since: datetime) -> Iterator[Row]:
    """Return the rows without job recoveries that ended, and reports of supervisors, before a time
    (UTC): three of four rows, which are not even decoded. What stays can be replayed."""
    before, kept = f"{since:%Y-%m-%dT%H:%M:%S}", []
    ended = set()
    for row in rows:
        payload = str(row[2])  # Any type, see above: what is none of ours is found by `decode`.
        if row[1] == format_event_kind(JobReported) and payload[7:26] < before:
            continue
        head = _HEAD.match(payload)
        kept.append((row, head and head[2]))
        if head and head[3] in _ENDING and head[1] < before:
            ended.add(head[2])
    return (row for row, recovery in kept if recovery not in ended)


SCHEMA_VERSION = 2
"""engine.STEPS leads here from every released one."""

_findings = msgspec.json.Decoder(tuple[Finding, ...])
_times = msgspec.json.Decoder(dict[str, float])


class DaemonIdentity(Struct, frozen=True):
    """A daemon as the lease and the table of standbys name it. `address`: its intake, as agents
    reach it."""

    host: str
    pid: int
    version: str
    mode: str
    address: str


class DaemonLeaseInfo(Struct, frozen=True):
    """The lease row: who runs, since when, and how its last cycle went.

    `beat` counts renewals. `lease_s`: for how long each lasts; 0 once the leader has let go, for
    the daemon at the address `successor` first where it names one.
    """

    host: str
    pid: int
    version: str
    mode: str
    started: datetime
    heartbeat: datetime
    until: datetime
    last_cycle_s: float
    trouble: str = ""
    epoch: int = 0
    beat: int = 0
    lease_s: float = 0.0
    address: str = ""
    successor: str = ""


class StandbyInfo(Struct, frozen=True):
    """A daemon that is ready to take over. `behind`: how many events it has not replayed yet."""

    host: str
    address: str
    pid: int
    version: str
    beat: int
    heartbeat: datetime
    behind: int


def check_schema(schema: str | None, name: str) -> None:
    """Refuse a database without a journal, or with another version's. Raises Unavailable,
    CorruptJournalError."""
    if schema is None:
        raise ServiceUnavailable(
            f"hpctl has no journal yet: there is none at {name}",
            "start the daemon (systemctl start hpctl-daemon): it creates the journal",
        )
    if schema == str(SCHEMA_VERSION):
        return
    what = (
        f"the journal has schema version {schema}, but this release of hpctl reads version "
        f"{SCHEMA_VERSION}"
    )
    if 0 < parse_count(schema) < SCHEMA_VERSION:
        raise ServiceUnavailable(
            what,
            "restart the daemon, which migrates the journal to this release: systemctl restart "
            "hpctl-daemon",
        )
    raise CorruptJournalError(
        what, "install the hpctl release that wrote the journal, or a later one"
    )


def convert_timestamp(stamp: float) -> datetime:
    """Return seconds since the epoch, as every table keeps time, as an aware datetime."""
    return datetime.fromtimestamp(stamp, UTC)


_UNREADABLE = (msgspec.DecodeError, TypeError, ValueError, OverflowError, OSError)


@contextmanager
def _convert_row_decode_errors(place: str, hint: str) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        raise CorruptJournalError(f"{place} cannot be read: {error}", hint) from error


def encode_node_health_row(health: NodeHealth) -> dict[str, object]:
    """Return what an agent said last, as a row."""
    return {
        "node": health.generation.node,
        "instance": health.generation.instance,
        "boot": health.generation.boot,
        "last_heard": health.last_heard.timestamp(),
        "findings": msgspec.json.encode(health.findings).decode(),
    }


def _decode_node_health_row(row: Any, heard: float) -> NodeHealth:
    """Return what an agent said last; `heard` is when the node was last heard, if that was
    later."""
    try:  # A context manager for each of ten thousand rows would take as long as the rest.
        return NodeHealth(
            NodeGeneration(NodeName(row.node), InstanceId(row.instance), BootId(row.boot)),
            convert_timestamp(max(row.last_heard, heard)),
            _findings.decode(row.findings),
        )
    except _UNREADABLE as error:
        fix = "delete that row of hpctl_agents: the agent sends its findings again"
        what = f"the stored findings of node {row.node}"
        raise CorruptJournalError(f"{what} cannot be read: {error}", fix) from error


def encode_last_heard_row(heard: Mapping[NodeName, datetime]) -> dict[str, object]:
    """Return when each node was last heard, as the one row that it is."""
    times = {node: at.timestamp() for node, at in heard.items()}
    return {"id": 1, "times": msgspec.json.encode(times).decode()}


def decode_node_health_rows(agents: Iterable[Any], times: Any) -> dict[NodeName, NodeHealth]:
    """Return what the agents said last, by node: its findings were stored when they were new, and
    it may have been heard since. Raises CorruptJournalError."""
    heard: Mapping[str, float] = {}
    if times is not None:
        fix = "delete the row of hpctl_heard: agents speak again"
        with _convert_row_decode_errors("when nodes were last heard", fix):
            heard = _times.decode(times.times)
    found = (_decode_node_health_row(row, heard.get(row.node, 0.0)) for row in agents)
    return {h.generation.node: h for h in found}


def decode_operator_request(row: Any, proof: str) -> Request:
    """Return what an operator asked for. Raises CorruptJournalError."""
    with _convert_row_decode_errors(
        f"request {row.id}", "delete that row of hpctl_requests, and ask again"
    ):
        return Request(row.id, convert_timestamp(row.at), row.verb, row.target, row.asked_by, proof)


def decode_lease_row(row: Any) -> DaemonLeaseInfo:
    """Return who holds the lease. Raises CorruptJournalError."""
    values = {name: getattr(row, name) for name in DaemonLeaseInfo.__struct_fields__}
    with _convert_row_decode_errors(
        "the lease", "with every daemon stopped, delete the row of hpctl_lease"
    ):
        values |= {
            name: convert_timestamp(values[name]) for name in ("started", "heartbeat", "until")
        }
        return DaemonLeaseInfo(**values)


def decode_standby_row(row: Any) -> StandbyInfo:
    """Return who stands by. Raises CorruptJournalError."""
    with _convert_row_decode_errors(
        "a standby", "delete the rows of hpctl_standbys: the standbys write them again"
    ):
        values = {n: getattr(row, n) for n in ("host", "address", "pid", "version", "beat")}
        behind = max(0, (row.newest or 0) - row.seq)
        return StandbyInfo(**values, heartbeat=convert_timestamp(row.heartbeat), behind=behind)
