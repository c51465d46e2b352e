"""A reader's end of the daemon's world: ask, check, put the records together."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from hpctl import __version__
from hpctl.engine import world_wire as wire
from hpctl.engine.journal.state import EngineState
from hpctl.engine.world import World, exclude_removed_nodes_from_health
from hpctl.engine.world_wire import (
    Records,
    WorldAnswerHead,
    WorldAnswerSummary,
    WorldAnswerVersion,
    WorldPart,
    WorldPartHead,
)
from hpctl.toolkit.bounds import clamp_duration
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.instance_join import InstanceNodeMapping
from hpctl.vocabulary.isolation import ItemProcessingFailure
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.slurm_facts import SchedulerView

if TYPE_CHECKING:
    from pathlib import Path

    from hpctl.engine.config import Config

READ_S = 3
"""How long an answer may take in all. A daemon that answers later is read about offline."""
CURRENT_S = 30.0
"""A world older than this, or than the lease where that is longer, is not of now: the loop hangs.
The loop's longest pause is a third of the lease."""


class WorldUnavailableError(Exception):
    """No daemon offers its world here, and why."""


class WorldClient:
    """Reads one daemon's world, again and again; a world that it has is not sent twice."""

    def __init__(self, config: Config) -> None:
        """Connect to nothing yet."""
        self._path = wire.get_world_socket_path(config.state_dir)
        self._current_s = max(CURRENT_S, config.lease_s)
        self._shared = config.database_url is not None
        self._tokens: dict[WorldPart, int] = {}
        self._found: dict[WorldPart, Records] = {}
        self._state: tuple[object, EngineState] = (None, EngineState())
        self._of: list[WorldPart] = []
        self._world: World | None = None

    def read(self, at: datetime, *, cloud: bool, history: bool, placement: bool = False) -> World:
        """Return the world of the daemon's last cycle, seen at `at`. Raises WorldUnavailableError.

        Without `history`, job recoveries that ended, and reports of supervisors, more than a day
        ago are left out. `placement`: with Slurm's reservations and topology.
        """
        wanted = {
            WorldPart.CLOUD: cloud,
            WorldPart.HISTORY: history,
            WorldPart.PLACEMENT: placement,
        }
        parts = [part for part in WorldPart if wanted.get(part, True)]
        with _convert_read_errors(self._path):
            head, about = self._fetch_world_parts(parts)
            if self._world is None or self._world.number != head.number or self._of != parts:
                self._world, self._of = self._build_world(head, parts, at), parts
        return replace(
            self._world, now=at, daemon=about.daemon, standbys=about.standbys, shared=self._shared
        )

    def read_scheduler_view(self) -> SchedulerView | None:
        """Return what the daemon read of Slurm last, and nothing else; None where it cannot read
        Slurm. Raises WorldUnavailableError."""
        with _convert_read_errors(self._path):
            _, about = self._fetch_world_parts([WorldPart.SLURM])
            if about.slurm_trouble:
                return None
            return wire.build_scheduler_view_from_records(self._found[WorldPart.SLURM])

    def read_journal_state(self, *, history: bool) -> EngineState:
        """Return what the journal amounts to, and nothing else; see `read`. Raises
        WorldUnavailableError."""
        parts = [WorldPart.STATE, *([WorldPart.HISTORY] if history else [])]
        with _convert_read_errors(self._path):
            self._fetch_world_parts(parts)
            return wire.build_engine_state_from_records(self._collect_stored_part_records(parts))

    def list_reporting_nodes(self) -> list[NodeName]:
        """Return the nodes whose agents the daemon has heard, and nothing else. Raises
        WorldUnavailableError."""
        with _convert_read_errors(self._path):
            self._fetch_world_parts([WorldPart.HEALTH])
            heard: list[NodeHealth] = self._found[WorldPart.HEALTH].get("health", [])
            return [health.generation.node for health in heard]

    def _fetch_world_parts(
        self, parts: list[WorldPart]
    ) -> tuple[WorldAnswerHead, WorldAnswerSummary]:
        """Ask for parts and keep what is new of them; what is said in any case. Raises
        WorldUnavailableError, and what `_reported` catches."""
        head, body = self._ask(parts)
        about = self._check(head)
        self._decode_new_parts(head, body)
        return head, about

    def _ask(self, parts: list[WorldPart]) -> tuple[WorldAnswerHead, memoryview]:
        until = time.monotonic() + READ_S
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            # Python's own time limit would make a connection fail where the server is busy.
            limit = struct.pack("ll", READ_S, 0)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            with wire.shorten_socket_path(self._path) as name:
                line.connect(name)
            line.sendall(wire.encode_world_request(parts, self._tokens))
            size = int.from_bytes(_receive_exact_byte_count(line, wire.HEAD_BYTES, until), "big")
            raw = _receive_exact_byte_count(line, size, until)
            said = msgspec.msgpack.decode(raw, type=WorldAnswerVersion)
            if (said.protocol, said.version) != (wire.PROTOCOL, __version__):
                raise WorldUnavailableError(
                    f"the daemon is hpctl {said.version}, this is {__version__}"
                )
            head = msgspec.msgpack.decode(raw, type=WorldAnswerHead)
            size = sum(map(_count_bytes, head.parts))
            return head, _receive_exact_byte_count(line, size, until)

    def _check(self, head: WorldAnswerHead) -> WorldAnswerSummary:
        """Return what an answer says in any case. Raises WorldUnavailableError where it has no
        world of now."""
        if head.refused or head.about is None:
            raise WorldUnavailableError(f"the daemon has no world to show: {head.refused}")
        if head.age_s > self._current_s:
            raise WorldUnavailableError(f"the daemon's last cycle ended {head.age_s:.0f} s ago")
        return head.about

    def _decode_new_parts(self, head: WorldAnswerHead, body: memoryview) -> None:
        """Decode the parts that are new. Raises msgspec.DecodeError, KeyError."""
        at = 0
        for part in head.parts:
            if part.frames is None:
                continue
            size = _count_bytes(part)
            self._found[part.part] = wire.decode_record_frames(part.frames, body[at : at + size])
            self._tokens[part.part] = part.token
            at += size

    def _collect_stored_part_records(self, parts: list[WorldPart]) -> Records:
        """Return what is kept of some parts, by kind. Raises KeyError."""
        found: dict[str, list[Any]] = {}
        for part in parts:
            found |= self._found[part]
        return found

    def _build_world(self, head: WorldAnswerHead, parts: list[WorldPart], at: datetime) -> World:
        """Return the world of what is kept. Raises KeyError, IndexError."""
        assert head.about is not None
        found = self._collect_stored_part_records(parts)
        of = [
            self._tokens.get(part) for part in (WorldPart.STATE, WorldPart.HISTORY) if part in parts
        ]
        if self._state[0] != of:
            self._state = (of, wire.build_engine_state_from_records(found))
        made = unpack_world(head.about, self._state[1], found, at)
        return replace(made, number=head.number)


@contextmanager
def _convert_read_errors(path: Path) -> Iterator[None]:
    """Raise WorldUnavailableError for whatever may go wrong between a reader and the daemon's
    socket."""
    try:
        yield
    except FileNotFoundError:
        raise WorldUnavailableError(f"{path} is not there") from None
    except ConnectionRefusedError:
        raise WorldUnavailableError(f"nothing answers at {path}") from None
    except PermissionError:
        raise WorldUnavailableError(
            "the daemon's world is for those who may read its journal"
        ) from None
    except (OSError, EOFError) as error:
        raise WorldUnavailableError(f"the daemon does not answer: {error}") from None
    except (msgspec.DecodeError, KeyError, IndexError) as error:
        raise WorldUnavailableError(f"the daemon's world cannot be read: {error}") from None


def _count_bytes(part: WorldPartHead) -> int:
    """Return the size of a part's frames; 0 where the answer has none of it."""
    return sum(length for _, length in part.frames or ())


def _receive_exact_byte_count(line: socket.socket, size: int, until: float) -> memoryview:
    """So many bytes. Raises EOFError, OSError."""
    buffer = memoryview(bytearray(size))
    have = 0
    while have < size:
        count = line.recv_into(buffer[have:])
        if not count:
            raise EOFError("it ended the connection")
        have += count
        if time.monotonic() > until:
            raise TimeoutError("it takes too long")
    return buffer


def unpack_world(
    about: WorldAnswerSummary, state: EngineState, found: Records, at: datetime
) -> World:
    """Return the world that records amount to. Raises KeyError, IndexError."""
    slurm = (
        wire.build_scheduler_view_from_records(found)
        if "slurm" in found and not about.slurm_trouble
        else None
    )
    cloud, joined = None, InstanceNodeMapping()
    if "cloud" in found and not about.cloud_trouble:
        head: wire.ProviderViewHeader = found["cloud"][0]
        instances = found.get("instance", [])
        cloud = replace(head.provider, instances={i.id: i for i in instances})
        joined = InstanceNodeMapping(
            {i.node: i for i in instances if i.node is not None}, head.unjoined
        )
    recent = at - clamp_duration(about.policy.ages.silent_s)
    heard = {health.generation.node: health for health in found.get("health", ())}
    health = exclude_removed_nodes_from_health(state, heard, slurm, joined, recent)
    flaws = tuple(found.get("flaw", ()))
    placed: list[wire.PlacementFacts] = found.get("placement", [])
    assessed = {one.generation.node: one for one in found.get("assessment", ())}
    return World(
        now=at,
        policy=about.policy,
        state=state,
        cluster=about.cluster,
        stopped=about.stopped,
        health=health,
        assessments=_restore_assessments(health, assessed, flaws),
        daemon=about.daemon,
        slurm=slurm,
        slurm_error="" if slurm else about.slurm_trouble or "not asked",
        cloud=cloud,
        cloud_error="" if cloud else about.cloud_trouble or "not asked",
        joined=joined,
        candidates=tuple(found.get("candidate", ())),
        holds=tuple(found.get("hold", ())),
        flaws=flaws,
        still={one.job: one for one in found.get("still", ())},
        reservations=placed[0].reservations if placed else None,
        leaves=placed[0].leaves if placed else None,
        standbys=about.standbys,
    )


def _restore_assessments(
    health: Mapping[NodeName, NodeHealth],
    assessed: Mapping[NodeName, NodeAssessment],
    flaws: tuple[ItemProcessingFailure, ...],
) -> dict[NodeName, NodeAssessment]:
    """Return the assessments, those of plainly healthy nodes too, which are not sent."""
    flawed = {flaw.target for flaw in flaws if flaw.where == "assess"}
    found = {}
    for node, known in health.items():
        if node in assessed:
            found[node] = assessed[node]
        elif node not in flawed:
            found[node] = NodeAssessment(known.generation, NodeCondition.HEALTHY, known.last_heard)
    return found
