"""File systems: local ones that went read-only, network ones that hang or fail."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle

from msgspec import Struct

from hpctl.agent.check import CannotTell, Functions, Judged, Limits, Machine, NotHere, fail, warn
from hpctl.agent.probe import ProbeResult, Probes, Waiting

# --- what the checks below share ----------
# What is mounted, from /proc/self/mountinfo (proc_pid_mountinfo(5)), which no hang can hold up.

NETWORK = frozenset({"lustre", "nfs", "nfs4", "beegfs", "ceph", "cifs", "gpfs", "wekafs"})
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(Struct, frozen=True):
    """One mount. `options` are this mount's own, `super_options` those of the file system.

    A service that systemd gives a read-only view has `ro` in the first and not in the second; a
    file system that the kernel took out of service after an error has it in the second.
    """

    point: str
    device: str
    kind: str
    source: str
    options: frozenset[str]
    super_options: frozenset[str]


def mounts(machine: Machine) -> tuple[Mount, ...]:
    """All mounts in this process's namespace, in the kernel's order. Raises CannotTell, NotHere."""
    found = []
    for line in machine.text("/proc/self/mountinfo").splitlines():
        columns = line.split(" ")
        try:
            dash = columns.index("-", 6)
            kind, source, options = columns[dash + 1 : dash + 4]
        except ValueError:
            continue
        found.append(
            Mount(
                _plain(columns[4]),
                columns[2],
                kind,
                _plain(source),
                frozenset(columns[5].split(",")),
                frozenset(options.split(",")),
            )
        )
    return tuple(found)


def one_each(found: tuple[Mount, ...], kinds: frozenset[str], most: int) -> tuple[Mount, ...]:
    """One mount for each file system of those kinds: bind mounts and hidden ones left out."""
    on_top = {mount.point: mount for mount in found}
    chosen: dict[str, Mount] = {}
    for mount in on_top.values():
        if mount.kind in kinds:
            chosen.setdefault(mount.device, mount)
    return tuple(chosen.values())[:most]


def _plain(text: str) -> str:
    """Without the octal escapes that the kernel puts for blanks and backslashes."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


# --- host.readonly ----------
# Local file systems that the kernel took out of service after an error.
#
# Three signs, for each kernel shows another: `ro` among the file system's own options (not the
# mount's: a service's read-only view of a healthy disk is no fault), `emergency_ro` and `shutdown`
# of newer ext4, and an I/O error of the mount point itself, which is all that XFS shows. And one
# byte is written where the agent may write anyway, in a child, because a disk can refuse that
# while everything looks well.

STATE = "/var/lib/hpctl/agent"
"""The agent's own folder: there it may write, and nobody else can put a link in the way."""
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


class Disk(Struct, frozen=True):
    """A local file system: `wanted` is that it should be writable, `sign` what speaks against."""

    point: str
    kind: str
    wanted: bool
    sign: str = ""


class Sample(Struct, frozen=True):
    """All local file systems, what the write ended with ("" is well) and how long it has taken."""

    disks: tuple[Disk, ...]
    write_error: str = ""
    write_point: str = ""
    write_s: float = 0.0


_probes = Probes(DEADLINE_S)


def gather_readonly(machine: Machine) -> Sample:
    """Read the mounts, ask them, write one byte. Raises NotHere without a local file system."""
    found = mounts(machine)
    local = one_each(found, LOCAL, MOST)
    if not local:
        raise NotHere("no local file system is mounted")
    state = machine.path(STATE)
    questions = {"stat": (*STAT, *(str(machine.path(mount.point)) for mount in local))}
    if state.is_dir():
        questions["write"] = (*WRITE, f"of={state / WRITTEN}")
    try:
        answers = _probes.ask(questions, _probes.wait_s(WAIT_S))
    except NotHere as error:
        raise CannotTell(str(error)) from error
    written = answers.get("write")
    holder = _holder(found)
    return Sample(
        disks(machine, local, answers["stat"]),
        # A view of the disk that is read-only for this service alone says nothing of the disk.
        "" if "ro" in holder.options else _write_error(written),
        holder.point,
        written.age_s if isinstance(written, Waiting) else 0.0,
    )


def disks(
    machine: Machine, local: Iterable[Mount], answer: ProbeResult | Waiting
) -> tuple[Disk, ...]:
    """Each file system with the sign that it is out of service, if there is one."""
    declared = _fstab(machine)
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
        found.append(Disk(mount.point, mount.kind, wanted, sign))
    return tuple(found)


def _holder(found: Iterable[Mount]) -> Mount:
    """The mount that the agent's folder is on."""
    above = [m for m in found if m.point == STATE or STATE.startswith(m.point.rstrip("/") + "/")]
    if not above:
        raise CannotTell("no mount holds the agent's folder")
    return max(reversed(above), key=lambda mount: len(mount.point))


def _write_error(answer: ProbeResult | Waiting | None) -> str:
    if not isinstance(answer, ProbeResult) or not answer.exit_code:
        return ""
    return next((word for word in (_READ_ONLY, _ERROR) if word in answer.err), "")


def _fstab(machine: Machine) -> dict[str, frozenset[str]]:
    try:
        lines = machine.text("/etc/fstab").splitlines()
    except (NotHere, CannotTell):
        return {}
    rows = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return {row[1]: frozenset(row[3].split(",")) for row in rows if len(row) >= 4}


def judge_readonly(seen: Sample, before: Sample | None, limits: Limits) -> Judged:
    """`readonly` for what the kernel took out of service, `write-hangs` for a slow write."""
    signs = {disk.point: f"{disk.kind}: {disk.sign}" for disk in seen.disks if disk.sign}
    if seen.write_error:
        signs.setdefault(seen.write_point, f"writing one byte: {seen.write_error}")
    for point, sign in signs.items():
        yield fail("readonly", point, sign)
    if seen.write_s >= limits["write_s"]:
        detail = f"one byte has not been written for {seen.write_s:.0f} s"
        yield warn("write-hangs", seen.write_point, detail)


# --- host.mounts ----------
# Network file systems that hang or fail: Lustre (FSx), NFS (EFS) and the like.
#
# Each is asked for its figures (`stat -f`) at one look and for its root (`stat`) at the next: a
# client may answer either from memory while a server is away. Healthy ones answer within
# milliseconds, in the same look; one that does not is left to its child, and the next look sees
# for how long.

STATFS = ("stat", "--file-system", "--format=%T", "--")
STAT_ROOT = ("stat", "--format=%i", "--")

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


class Asked(Struct, frozen=True):
    """One file system: for how long it has been silent (0 when it answered), or its error."""

    point: str
    kind: str
    silent_s: float = 0.0
    error: str = ""


_mount_probes = Probes(DEADLINE_S)
_turns = cycle((STATFS, STAT_ROOT))


def gather_mounts(machine: Machine) -> tuple[Asked, ...]:
    """Ask each network file system, in children. Raises NotHere where none is mounted."""
    chosen = {mount.point: mount for mount in one_each(mounts(machine), NETWORK, MOST)}
    _mount_probes.forget(frozenset(chosen))
    if not chosen:
        raise NotHere("no network file system is mounted")
    return ask(machine, chosen, next(_turns), _mount_probes)


def ask(
    machine: Machine, chosen: Mapping[str, Mount], command: Sequence[str], probes: Probes
) -> tuple[Asked, ...]:
    """Put one question to all of them. Those that still owe an answer get no new one."""
    questions = {point: (*command, str(machine.path(point))) for point in chosen}
    try:
        answers = probes.ask(questions, probes.wait_s(WAIT_S))
    except NotHere as error:
        raise CannotTell(str(error)) from error
    return tuple(_asked(mount, answers[point]) for point, mount in chosen.items())


def _asked(mount: Mount, answer: ProbeResult | Waiting) -> Asked:
    if isinstance(answer, Waiting):
        return Asked(mount.point, mount.kind, silent_s=answer.age_s)
    return Asked(mount.point, mount.kind, error=_error(answer))


def _error(answer: ProbeResult) -> str:
    return next((word for word in BROKEN if answer.exit_code and word in answer.err), "")


def judge_mounts(
    seen: tuple[Asked, ...], before: tuple[Asked, ...] | None, limits: Limits
) -> Judged:
    """`hangs` for silence of `silent_s` and longer, `error` for a server that is gone."""
    for asked in seen:
        if asked.error:
            yield fail("error", asked.point, f"{asked.kind}: {asked.error}")
        elif asked.silent_s >= limits["silent_s"]:
            yield fail(
                "hangs", asked.point, f"{asked.kind}: no answer to stat for {asked.silent_s:.0f} s"
            )


CHECKS = {
    "host.readonly": Functions(gather_readonly, judge_readonly),
    "host.mounts": Functions(gather_mounts, judge_mounts),
}
"""What the runner calls, by the check's name."""
