"""What an operator has paused, by whom, why and until when. Pure.

A pause is of the whole cluster, of a partition or of nodes. Several may be open at once, one for
each scope. It ends at its end time without a command, or when it is lifted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from hpctl.toolkit.bounds import convert_to_utc, make_printable
from hpctl.toolkit.hostlist import HostlistError, expand_hostlist, fold_hostlist
from hpctl.vocabulary.identity import NodeName

OF_PARTITION: Final = "partition="
"""How the scope of a partition's pause begins; no hostlist begins so."""
WHY_CHARS: Final = 500


@lru_cache(maxsize=64)
def _expand_pause_scope(scope: str) -> frozenset[NodeName]:
    return frozenset(map(NodeName, expand_hostlist(scope)))


class PauseRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What `hpctl pause` and `hpctl unpause` ask for. Without nodes and partition: the cluster."""

    nodes: str = ""
    partition: str = ""
    why: str = ""
    until: datetime | None = None

    @property
    def scope(self) -> str:
        """Return the scope as the journal names it. Raises HostlistError."""
        if self.partition:
            return OF_PARTITION + self.partition
        return fold_hostlist(expand_hostlist(self.nodes))


class Pause(Struct, frozen=True):
    """One pause. `scope`: empty for the whole cluster, else nodes as a hostlist, or
    `partition=NAME`. `lifted`: when it was lifted before its end."""

    scope: str
    by: str
    at: datetime
    why: str = ""
    until: datetime | None = None
    lifted: datetime | None = None

    @property
    def whole(self) -> bool:
        """Return whether it is of the whole cluster."""
        return not self.scope

    @property
    def partition(self) -> str:
        """Return the partition that it is of; empty for a pause of nodes or of the cluster."""
        if not self.scope.startswith(OF_PARTITION):
            return ""
        return self.scope.removeprefix(OF_PARTITION)

    @property
    def nodes(self) -> frozenset[NodeName]:
        """Return the nodes that it is of; empty for a pause of a partition or of the cluster."""
        return frozenset() if self.whole or self.partition else _expand_pause_scope(self.scope)

    @property
    def ends(self) -> datetime | None:
        """Return when it ends or ended; None while only an operator ends it."""
        return self.until if self.lifted is None else self.lifted

    def is_active(self, now: datetime) -> bool:
        """Return whether it is in force. One that was lifted is not, also where the clock was set
        back."""
        return self.lifted is None and (self.until is None or now < self.until)

    @property
    def what(self) -> str:
        """Return what it is of, for people."""
        if self.whole:
            return "the cluster"
        return f"partition {self.partition}" if self.partition else self.scope

    @property
    def text(self) -> str:
        """Return who paused what, until when and why."""
        of = "" if self.whole else f"{self.what} is "
        until = f" until {self.until:%Y-%m-%d %H:%M:%S} UTC" if self.until is not None else ""
        why = f": {self.why}" if self.why else ""
        return f"{of}paused by {self.by}{until}{why}"

    @property
    def lift_command(self) -> str:
        """Return the command that lifts it."""
        if self.partition:
            return f"hpctl unpause --partition {self.partition}"
        return f"hpctl unpause {self.scope}".rstrip()


Pauses = Mapping[str, Pause]
"""The newest pause of each scope, ended ones included."""


def parse_pause_request(detail: str) -> PauseRequest:
    """Read what a request carries; nothing stands for the whole cluster.

    Raises ValueError with the reason.
    """
    if not detail:
        return PauseRequest()
    try:
        asked = msgspec.json.decode(detail, type=PauseRequest)
        asked.scope  # noqa: B018 -- raises
    except (msgspec.MsgspecError, HostlistError) as error:
        raise ValueError(f"not a pause: {error}") from error
    return PauseRequest(
        asked.nodes,
        make_printable(asked.partition)[:WHY_CHARS],
        make_printable(asked.why)[:WHY_CHARS],
        convert_to_utc(asked.until) if asked.until is not None else None,
    )


def find_active_pauses(pauses: Pauses, now: datetime) -> list[Pause]:
    """Return the pauses in force, that of the whole cluster first."""
    return [pauses[scope] for scope in sorted(pauses) if pauses[scope].is_active(now)]


def find_active_cluster_pause(pauses: Pauses, now: datetime) -> Pause | None:
    """Return the pause of the whole cluster that is in force."""
    pause = pauses.get("")
    return pause if pause is not None and pause.is_active(now) else None


def find_active_pause_covering_targets(
    pauses: Pauses,
    now: datetime,
    nodes: Collection[NodeName] = (),
    partitions: Collection[str] = (),
) -> Pause | None:
    """Return the first pause in force that covers one of these nodes or partitions."""
    for pause in find_active_pauses(pauses, now):
        if _is_target_covered_by_pause(pause, nodes, partitions):
            return pause
    return None


def find_latest_pause_end(
    pauses: Pauses,
    now: datetime,
    nodes: Collection[NodeName] = (),
    partitions: Collection[str] = (),
) -> datetime | None:
    """Return since when no pause keeps hpctl from these nodes or partitions; `now` while one does;
    None where none did."""
    found = [p for p in pauses.values() if _is_target_covered_by_pause(p, nodes, partitions)]
    if any(p.is_active(now) for p in found):
        return now
    return max((p.ends for p in found if p.ends is not None), default=None)


def _is_target_covered_by_pause(
    pause: Pause, nodes: Collection[NodeName], partitions: Collection[str]
) -> bool:
    if pause.whole:
        return True
    if pause.partition:
        return pause.partition in partitions
    return not pause.nodes.isdisjoint(nodes)


def lift_pauses_in_scope(pauses: Pauses, scope: str, at: datetime) -> dict[str, Pause]:
    """Return the pauses after some were lifted: all for the empty scope; of nodes, the named ones
    leave each pause of nodes that has them."""
    changed = dict(pauses)
    for one in pauses.values():
        if not scope or one.scope == scope:
            changed.update(end_pause_of_scope(pauses, one.scope, at))
    if not scope or scope.startswith(OF_PARTITION):
        return changed
    named = set(expand_hostlist(scope))
    for one in find_active_pauses(pauses, at):
        if named.isdisjoint(one.nodes):
            continue
        changed.update(end_pause_of_scope(pauses, one.scope, at))
        left = fold_hostlist(one.nodes - named)
        if left and not _is_pause_at_least_as_long_as(changed.get(left), one):
            changed[left] = msgspec.structs.replace(one, scope=left)
    return changed


def _is_pause_at_least_as_long_as(one: Pause | None, other: Pause) -> bool:
    """Return whether a pause is open for as long as another one at least."""
    if one is None or one.lifted is not None:
        return False
    return one.until is None or (other.until is not None and other.until <= one.until)


def end_pause_of_scope(pauses: Pauses, scope: str, at: datetime) -> dict[str, Pause]:
    """Return the pause of exactly this scope as ended, by its scope; nothing where none is open."""
    one = pauses.get(scope)
    if one is None or one.lifted is not None:
        return {}
    lifted = at if one.until is None else min(at, one.until)
    return {scope: msgspec.structs.replace(one, lifted=lifted)}


def remove_pauses_ended_before(pauses: Pauses, before: datetime) -> dict[str, Pause]:
    """Return the pauses without those that ended before a time."""
    return {
        scope: pause for scope, pause in pauses.items() if pause.ends is None or pause.ends > before
    }
