"""The JSON answer (NCCL 2.28.7 and later) to values. Fields unknown to us are passed over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from hpctl.errors import HpctlError
from hpctl.jobs.ras.values import (
    ABORT,
    FINALIZE,
    IN_PROGRESS,
    INIT,
    REMOTE_ERROR,
    RUNNING,
    Absence,
    Communicator,
    Failure,
    Group,
    Member,
    Missing,
    Report,
)

SHOWN = 4000
_ERRORS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    REMOTE_ERROR: "remote process error",
}


class RasError(HpctlError):
    """The RAS service cannot be asked, or its answer cannot be read."""


class _Status(msgspec.Struct, frozen=True):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class _Rank(msgspec.Struct, frozen=True):
    rank: int
    host: str = ""
    pid: int = -1
    cuda_dev: int = -1
    nvml_dev: int = -1
    status: _Status = _Status()
    collective_counts: dict[str, int] = {}


class _Absent(msgspec.Struct, frozen=True):
    unresponsive: bool = True
    considered_dead: bool = False


class _MissingRank(msgspec.Struct, frozen=True):
    rank: int
    host: str = ""
    pid: int = -1
    cuda_dev: int = -1
    nvml_dev: int = -1
    status: _Absent = _Absent()


class _Communicator(msgspec.Struct, frozen=True):
    hash: str
    secondary_hash: str = ""
    size: int = 0
    ranks: list[_Rank] = []
    missing_ranks: list[_MissingRank] = []


class _Ras(msgspec.Struct, frozen=True):
    timeouts_count: int = 0


class _Document(msgspec.Struct, frozen=True):
    nccl_version: str
    communicators: list[_Communicator]
    ras: _Ras = _Ras()


def read(raw: bytes) -> Report:
    """Read a whole answer. Raises RasError where it is torn, or no such document."""
    try:
        document = msgspec.json.decode(raw, type=_Document)
    # A deeply nested answer ends the decoder's recursion.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RasError(
            f"the RAS service's JSON cannot be read: {error}",
            "was the job ending just then? ask again",
        ) from error
    return Report(
        nccl_version=document.nccl_version,
        communicators=tuple(_communicator(one) for one in document.communicators),
        timeouts=document.ras.timeouts_count,
        text=raw[:SHOWN].decode(errors="replace"),
    )


def _communicator(said: _Communicator) -> Communicator:
    return Communicator(
        name=f"{said.hash}:{said.secondary_hash}" if said.secondary_hash else said.hash,
        size=said.size,
        counts=_counts(said.ranks),
        missing=tuple(_missing(one) for one in said.missing_ranks),
        failures=tuple(failure for one in said.ranks if (failure := _failure(one))),
        status=_status(said.ranks),
        whole=True,
    )


def _counts(ranks: list[_Rank]) -> Mapping[str, tuple[Group, ...]]:
    names = dict.fromkeys(name for rank in ranks for name in rank.collective_counts)
    found = {}
    for name in names:
        by_count: dict[int, list[Member]] = defaultdict(list)
        for rank in ranks:
            by_count[rank.collective_counts.get(name, 0)].append(_member(rank))
        found[name] = tuple(
            Group(count, len(members), tuple(members))
            for count, members in sorted(by_count.items())
        )
    return found


def _missing(said: _MissingRank) -> Missing:
    absence = Absence.ELSEWHERE
    if said.status.considered_dead:
        absence = Absence.DEAD
    elif said.status.unresponsive:
        absence = Absence.UNRESPONSIVE
    return Missing(_member(said), absence)


def _failure(said: _Rank) -> Failure | None:
    for code in (said.status.async_error, said.status.init_state):
        if code not in (0, IN_PROGRESS):
            word = _ERRORS.get(code, f"error {code}")
            return Failure(_member(said), word, code == REMOTE_ERROR)
    return None


def _status(ranks: list[_Rank]) -> str:
    """The furthest that any rank is, in NCCL's own order."""
    statuses = [rank.status for rank in ranks]
    if any(status.abort_flag for status in statuses):
        return ABORT
    if any(status.finalize_called or status.destroy_flag for status in statuses):
        return FINALIZE
    if any(status.init_state == 0 for status in statuses):
        return RUNNING
    return INIT


def _member(said: _Rank | _MissingRank) -> Member:
    return Member(
        said.rank,
        "" if said.host == "unknown" else said.host,
        said.pid if said.pid >= 0 else None,
        said.cuda_dev if said.cuda_dev >= 0 else None,
        said.nvml_dev if said.nvml_dev >= 0 else None,
    )
