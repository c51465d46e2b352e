"""Network file systems that hang or fail: Lustre (FSx), NFS (EFS) and the like.

Each is asked for its figures (`stat -f`) at one look and for its root (`stat`) at the next: a
client may answer either from memory while a server is away. Healthy ones answer within
milliseconds, in the same look; one that does not is left to its child, and the next look sees
for how long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from hpctl.agent.check import CannotTell, Limits, Machine, NotHere, Observation
from hpctl.agent.mounts import NETWORK, Mount, mounts, one_each
from hpctl.agent.probe import Answer, Probes, Waiting
from hpctl.core.model import Verdict

STATFS = ("stat", "--file-system", "--format=%T", "--")
STAT = ("stat", "--format=%i", "--")
DEADLINE_S = 10.0
WAIT_S = 0.25
MOST = 32
"""File systems that are asked, at most."""

# What stat(1) says of a file system whose server has gone or has thrown this client out; a
# root that may not be looked at (root squash) or that was just unmounted is no fault.
BROKEN = (
    "Stale file handle",
    "Input/output error",
    "Transport endpoint is not connected",
    "Cannot send after transport endpoint shutdown",
    "Remote I/O error",
    "Connection timed out",
    "No such device",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One file system: for how long it has been silent (0 when it answered), or its error."""

    point: str
    kind: str
    silent_s: float = 0.0
    error: str = ""


_probes = Probes(DEADLINE_S)
_turns = cycle((STATFS, STAT))


def gather(machine: Machine) -> tuple[Asked, ...]:
    """Ask each network file system, in children. Raises NotHere where none is mounted."""
    chosen = {mount.point: mount for mount in one_each(mounts(machine), NETWORK, MOST)}
    _probes.forget(frozenset(chosen))
    if not chosen:
        raise NotHere("no network file system is mounted")
    return ask(machine, chosen, next(_turns), _probes)


def ask(
    machine: Machine, chosen: Mapping[str, Mount], words: Sequence[str], probes: Probes
) -> tuple[Asked, ...]:
    """Put one question to all of them. Those that still owe an answer get no new one."""
    questions = {point: (*words, str(machine.path(point))) for point in chosen}
    try:
        said = probes.ask(questions, probes.wait_s(WAIT_S))
    except NotHere as error:
        raise CannotTell(str(error)) from error
    return tuple(_asked(mount, said[point]) for point, mount in chosen.items())


def _asked(mount: Mount, said: Answer | Waiting) -> Asked:
    if isinstance(said, Waiting):
        return Asked(mount.point, mount.kind, silent_s=said.age_s)
    return Asked(mount.point, mount.kind, error=_error(said))


def _error(said: Answer) -> str:
    return next((word for word in BROKEN if said.exit_code and word in said.err), "")


def judge(
    seen: tuple[Asked, ...], before: tuple[Asked, ...] | None, limits: Limits
) -> Iterable[Observation]:
    """`hangs` for silence of `silent_s` and longer, `error` for a server that is gone."""
    for asked in seen:
        if asked.error:
            yield Observation("error", asked.point, Verdict.FAIL, f"{asked.kind}: {asked.error}")
        elif asked.silent_s >= limits["silent_s"]:
            yield Observation(
                "hangs",
                asked.point,
                Verdict.FAIL,
                f"{asked.kind}: no answer to stat for {asked.silent_s:.0f} s",
            )
