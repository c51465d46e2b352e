"""Check `host.mounts`: network file systems that hang, or whose server has disappeared."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
    make_fail_observation,
)
from hpctl.detection.checks.host_filesystems_reading import (
    NETWORK,
    MountInfoEntry,
    read_mountinfo_entries,
    select_mounts_by_file_system_type,
)
from hpctl.detection.checks.host_readonly import DEADLINE_S, MOST, WAIT_S
from hpctl.detection.probe import PendingProbe, ProbeResult, ProbeRunner

# Network file systems that hang or fail: Lustre (FSx), NFS (EFS) and the like.
#
# Each is asked for its figures (`stat -f`) in one run and for its root (`stat`) in the next: a
# client may answer either from memory while a server is away. Healthy ones answer within
# milliseconds, in the same run; one that does not is left to its child, and the next run measures
# for how long.

STATFS = ("stat", "--file-system", "--format=%T", "--")


STAT_ROOT = ("stat", "--format=%i", "--")


# What stat(1) prints for a file system whose server has disappeared or has evicted this client; a
# root that may not be read (root squash) or that was just unmounted is not a fault.
BROKEN = (
    "Stale file handle",
    "Input/output error",
    "Transport endpoint is not connected",
    "Cannot send after transport endpoint shutdown",
    "Remote I/O error",
    "Connection timed out",
    "No such device",
)


class MountProbeResult(Struct, frozen=True):
    """One file system: how long it has been silent (0 when it answered), or its error."""

    point: str
    kind: str
    silent_s: float = 0.0
    error: str = ""


PROBES = ProbeRunner(DEADLINE_S)


TURNS = cycle((STATFS, STAT_ROOT))


def probe_network_mounts(machine: CheckedMachine) -> tuple[MountProbeResult, ...]:
    """Ask each network file system, in children. Raises DeviceAbsentError where none is mounted."""
    chosen = {
        mount.point: mount
        for mount in select_mounts_by_file_system_type(
            read_mountinfo_entries(machine), NETWORK, MOST
        )
    }
    PROBES.forget(frozenset(chosen))
    if not chosen:
        raise DeviceAbsentError("no network file system is mounted")
    return probe_mounts_with_command(machine, chosen, next(TURNS), PROBES)


def probe_mounts_with_command(
    machine: CheckedMachine,
    chosen: Mapping[str, MountInfoEntry],
    command: Sequence[str],
    probes: ProbeRunner,
) -> tuple[MountProbeResult, ...]:
    """Ask all of them the same question. Those that have not answered yet get no new one."""
    questions = {point: (*command, str(machine.path(point))) for point in chosen}
    try:
        answers = probes.ask(questions, probes.wait_s(WAIT_S))
    except DeviceAbsentError as error:
        raise CheckResultUnknownError(str(error)) from error
    return tuple(_make_mount_probe_result(mount, answers[point]) for point, mount in chosen.items())


def _make_mount_probe_result(
    mount: MountInfoEntry, answer: ProbeResult | PendingProbe
) -> MountProbeResult:
    if isinstance(answer, PendingProbe):
        return MountProbeResult(mount.point, mount.kind, silent_s=answer.age_s)
    return MountProbeResult(mount.point, mount.kind, error=_find_mount_probe_error(answer))


def _find_mount_probe_error(answer: ProbeResult) -> str:
    return next((word for word in BROKEN if answer.exit_code and word in answer.err), "")


def judge_network_mounts(
    seen: tuple[MountProbeResult, ...], before: tuple[MountProbeResult, ...] | None, limits: Limits
) -> Judged:
    """Return `hangs` for silence of `silent_s` and longer, `error` for a server that has
    disappeared."""
    for asked in seen:
        if asked.error:
            yield make_fail_observation("error", asked.point, f"{asked.kind}: {asked.error}")
        elif asked.silent_s >= limits["silent_s"]:
            yield make_fail_observation(
                "hangs", asked.point, f"{asked.kind}: no answer to stat for {asked.silent_s:.0f} s"
            )
