"""Check `host.readonly`: local file systems that the kernel took out of service after an error."""

from collections.abc import Iterable

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
    make_fail_observation,
    make_warn_observation,
)
from hpctl.detection.checks.host_filesystems_reading import (
    LOCAL,
    MountInfoEntry,
    read_mountinfo_entries,
    select_mounts_by_file_system_type,
)
from hpctl.detection.probe import PendingProbe, ProbeResult, ProbeRunner

# Local file systems that the kernel took out of service after an error.
#
# Three signs, because each kernel shows another: `ro` among the file system's own options (not the
# mount's: a service's read-only view of a healthy disk is not a fault), `emergency_ro` and
# `shutdown` of newer ext4, and an I/O error of the mount point itself, which is all that XFS shows.
# One byte is also written where the agent may write, in a child, because a disk can refuse that
# while all signs look healthy.

STATE = "/var/lib/hpctl/agent"
"""The agent's own folder: there it may write, and no other user can place a link."""


WRITTEN = ".write-probe"


STAT = ("stat", "--format=%n", "--")


WRITE = ("dd", "if=/dev/zero", "bs=1", "count=1", "conv=fsync", "status=none")


DEADLINE_S = 10.0


WAIT_S = 0.25


MOST = 32


_SYSTEM = ("/", "/var", "/usr", "/tmp", "/home", "/opt")  # noqa: S108 - mount points


_TAKEN_OUT = frozenset({"emergency_ro", "shutdown"})


_READ_ONLY = "Read-only file system"


_ERROR = "Input/output error"


class DiskWriteState(Struct, frozen=True):
    """A local file system: `wanted` is whether it should be writable, `sign` the evidence against
    it."""

    point: str
    kind: str
    wanted: bool
    sign: str = ""


class ReadonlyMountSample(Struct, frozen=True):
    """All local file systems, what the write ended with ("" is well) and how long it has taken."""

    disks: tuple[DiskWriteState, ...]
    write_error: str = ""
    write_point: str = ""
    write_s: float = 0.0


PROBES = ProbeRunner(DEADLINE_S)


def probe_local_mount_writability(machine: CheckedMachine) -> ReadonlyMountSample:
    """Read the mounts, ask them, write one byte. Raises DeviceAbsentError without a local file
    system."""
    found = read_mountinfo_entries(machine)
    local = select_mounts_by_file_system_type(found, LOCAL, MOST)
    if not local:
        raise DeviceAbsentError("no local file system is mounted")
    state = machine.path(STATE)
    questions = {"stat": (*STAT, *(str(machine.path(mount.point)) for mount in local))}
    if state.is_dir():
        questions["write"] = (*WRITE, f"of={state / WRITTEN}")
    try:
        answers = PROBES.ask(questions, PROBES.wait_s(WAIT_S))
    except DeviceAbsentError as error:
        raise CheckResultUnknownError(str(error)) from error
    written = answers.get("write")
    holder = _find_agent_state_folder_mount(found)
    return ReadonlyMountSample(
        classify_disk_write_states(machine, local, answers["stat"]),
        # A view that is read-only only for this service is no evidence about the disk.
        "" if "ro" in holder.options else _find_write_probe_error(written),
        holder.point,
        written.age_s if isinstance(written, PendingProbe) else 0.0,
    )


def classify_disk_write_states(
    machine: CheckedMachine, local: Iterable[MountInfoEntry], answer: ProbeResult | PendingProbe
) -> tuple[DiskWriteState, ...]:
    """Return each file system with the sign that it is out of service, if there is one."""
    declared = _read_fstab_mount_options(machine)
    errors = answer.err.splitlines() if isinstance(answer, ProbeResult) else []
    found = []
    for mount in local:
        options = declared.get(mount.point)
        wanted = mount.point in _SYSTEM if options is None else "ro" not in options
        quoted = f"'{machine.path(mount.point)}'"
        broken = any(quoted in line and line.endswith(_ERROR) for line in errors)
        taken_out = sorted(_TAKEN_OUT & mount.super_options)
        sign = _ERROR if broken else "".join(taken_out[:1])
        if not sign and wanted and "ro" in mount.super_options:
            sign = "ro"
        found.append(DiskWriteState(mount.point, mount.kind, wanted, sign))
    return tuple(found)


def _find_agent_state_folder_mount(found: Iterable[MountInfoEntry]) -> MountInfoEntry:
    """Return the mount that the agent's folder is on."""
    above = [m for m in found if m.point == STATE or STATE.startswith(m.point.rstrip("/") + "/")]
    if not above:
        raise CheckResultUnknownError("no mount holds the agent's folder")
    return max(reversed(above), key=lambda mount: len(mount.point))


def _find_write_probe_error(answer: ProbeResult | PendingProbe | None) -> str:
    if not isinstance(answer, ProbeResult) or not answer.exit_code:
        return ""
    return next((word for word in (_READ_ONLY, _ERROR) if word in answer.err), "")


def _read_fstab_mount_options(machine: CheckedMachine) -> dict[str, frozenset[str]]:
    try:
        lines = machine.text("/etc/fstab").splitlines()
    except (DeviceAbsentError, CheckResultUnknownError):
        return {}
    rows = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return {row[1]: frozenset(row[3].split(",")) for row in rows if len(row) >= 4}


def judge_readonly_mounts(
    seen: ReadonlyMountSample, before: ReadonlyMountSample | None, limits: Limits
) -> Judged:
    """Return `readonly` for what the kernel took out of service, `write-hangs` for a slow write."""
    signs = {disk.point: f"{disk.kind}: {disk.sign}" for disk in seen.disks if disk.sign}
    if seen.write_error:
        signs.setdefault(seen.write_point, f"writing one byte: {seen.write_error}")
    for point, sign in signs.items():
        yield make_fail_observation("readonly", point, sign)
    if seen.write_s >= limits["write_s"]:
        detail = f"one byte has not been written for {seen.write_s:.0f} s"
        yield make_warn_observation("write-hangs", seen.write_point, detail)
