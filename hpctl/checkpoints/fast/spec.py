"""The data that the helpers of one job share: their hosts, where the saves lie, and which steps are
complete.

A FastCheckpointSaveSpec describes one start. The ledger lists the files of each complete step and
who wrote them. It is kept on every node and in the shared directory, so that the loss of any one of
them does not lose it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions

META = ".hpctl-fast"
"""The directory of hpctl's own files, next to the saves on each node and in the checkpoint
directory."""
ENVIRONMENT = "HPCTL_FAST_SPEC"
"""Names the file with the job's Spec, for the preamble, `hpctl run` and the launchers."""
HELPER = "HPCTL_HELPER"
"""Set in a process of the job that belongs to hpctl and is not a rank."""


class FastCheckpointSaveSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One start of a job. Directories are absolute, without placeholders.

    `saves.dir` lies on each node's own disk or in its memory; `shared` is the checkpoint directory.
    `hosts` are the allocation's nodes in Slurm's order, `addresses` theirs, `domains` their leaf
    switches or blocks, "" where unknown. `suspects` never hold a copy. `secret` is known only to
    the job's owner. `job` is the array's with the task's number for an array's, `id` Slurm's own;
    `restarts` counts its starts before this. `steps` are kept.
    """

    job: str
    secret: str
    saves: FastCheckpointSaveOptions
    shared: str
    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    domains: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    steps: int = 2
    id: str = ""
    restarts: int = 0

    def partners(self, host: str, living: tuple[str, ...]) -> tuple[str, ...]:
        """Return which living hosts hold a copy of what this one saves, of another domain first."""
        at = self.hosts.index(host)
        ring = (*self.hosts[at + 1 :], *self.hosts[:at])
        fit = [h for h in ring if h in living and h not in self.suspects]
        mine = self.domain(host)
        fit.sort(key=lambda h: not mine or self.domain(h) == mine)
        return tuple(fit[: self.saves.replicas])

    def domain(self, host: str) -> str:
        """Return the domain that fails together with a host, "" where unknown."""
        return dict(zip(self.hosts, self.domains, strict=False)).get(host, "")

    def address(self, host: str) -> str:
        """Return the address where a host's helper listens."""
        return dict(zip(self.hosts, self.addresses, strict=False)).get(host, host)


LEFT = 1 << 30
"""Bytes of the job's memory limit that copies leave to its ranks."""


def find_file_system_type(path: Path, proc: Path = Path("/proc")) -> str:
    """Return the kind that a directory lies in, as /proc/mounts has it."""
    found, real = ("", ""), os.path.realpath(path)
    for line in (proc / "mounts").read_text(errors="replace").splitlines():
        _, where, kind, *_ = line.split(" ")
        where = where.encode().decode("unicode_escape")
        inside = real == where or real.startswith(where.rstrip("/") + "/")
        if inside and len(where) >= len(found[0]):  # of two at one place the later one counts
            found = where, kind
    return found[1]


def compute_free_memory(
    proc: Path = Path("/proc/self"), groups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the bytes that the job may still take here, less LEFT; None where no control group
    limits it."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    rooms = []
    for group in (own, *map(str, Path(own).parents)):
        place = groups / group.strip("/")
        try:
            most = (place / "memory.max").read_text().strip()
            if most != "max":
                taken = int((place / "memory.current").read_text()) - _read_reclaimable_bytes(place)
                rooms.append(int(most) - taken)
        except (OSError, ValueError):
            continue
    return max(0, min(rooms) - LEFT) if rooms else None


def _read_reclaimable_bytes(group: Path) -> int:
    """Return the bytes that the kernel reclaims before the limit is reached. Those of a tmpfs are
    not among them."""
    with suppress(OSError):
        words = (group / "memory.stat").read_text().split()
        found = dict(zip(words[::2], words[1::2], strict=False))
        return sum(parse_count(found.get(name, "")) for name in ("inactive_file", "active_file"))
    return 0


def find_spec_path(spec: FastCheckpointSaveSpec) -> Path:
    """Return the path of a job's spec, next to its shared checkpoints."""
    return Path(spec.shared) / META / f"{spec.job}.json"


def read_fast_save_spec(path: Path) -> FastCheckpointSaveSpec:
    """Read a spec. Raises HpctlError where the file is accessible to other users, or is not a
    spec."""
    try:
        return msgspec.json.decode(
            _read_file_writable_by_user_only(path, 1 << 20), type=FastCheckpointSaveSpec
        )
    except OSError as error:
        raise HpctlError(
            f"{path}: {error.strerror or error}", "It is made by hpctl sbatch."
        ) from error
    except msgspec.MsgspecError as error:
        raise HpctlError(f"{path}: {error}", "It is made by hpctl sbatch.") from error


def _read_file_writable_by_user_only(path: Path, most: int) -> bytes:
    """Read a file that no other user can have written: its content is trusted. Raises HpctlError,
    OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        mine = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not mine or status.st_mode & 0o077:
            raise HpctlError(
                f"hpctl's file {path} for fast saves belongs to another user, or others may read "
                "or write it",
                "Submit the job again: hpctl sbatch creates the file.",
            )
        return file.read(most)


def write_fast_save_spec(spec: FastCheckpointSaveSpec, path: Path) -> None:
    """Write a spec for this user only, completely or not at all. Raises OSError, and HpctlError
    where another user can write to the directory."""
    with suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    if not is_directory_writable_by_user_only(path.parent):
        raise HpctlError(
            f"hpctl's directory {path.parent} for fast saves belongs to another user, or others "
            "may read or write it",
            "Remove the directory and submit again: hpctl creates it.",
        )
    _replace_file_atomically(path, msgspec.json.encode(spec))


def is_directory_writable_by_user_only(directory: Path) -> bool:
    """Return whether no other user can put anything there: a user who may write next to it can
    create it first. Raises OSError."""
    status = os.lstat(directory)
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return mine and not status.st_mode & 0o077


def _replace_file_atomically(path: Path, raw: bytes) -> None:
    made = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    made.unlink(missing_ok=True)
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(handle, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(handle)
    made.rename(path)


_MOST = 64 << 20


class FastSavedFile(Struct, frozen=True):
    """One file of a step. `origin` is the node whose rank wrote it.

    `mtime_ns` is its time on that node, by which it is recognized; `written_ns` the same by the
    clock of the node that judged the step, so that files of several nodes can be compared.
    """

    path: str
    size: int
    mtime_ns: int
    written_ns: int
    origin: str

    def same(self, size: int, mtime_ns: int) -> bool:
        """Return whether a file of that size and time is this one, or one that hpctl restored from
        it."""
        return size == self.size and mtime_ns in (self.mtime_ns, self.written_ns)


class FastSavedStep(Struct, frozen=True):
    """A step that was proved complete over the files of all nodes. `hosts`: the nodes of that
    start, in order. `seen_s`: when it was proved."""

    name: str
    step: int | None
    format: str
    hosts: tuple[str, ...]
    files: tuple[FastSavedFile, ...]
    seen_s: float

    @property
    def order(self) -> tuple[int, float]:
        """Return the sort key: newer is larger."""
        return (-1 if self.step is None else self.step, self.seen_s)

    def of(self, origin: str) -> tuple[FastSavedFile, ...]:
        """Return what one node's ranks wrote of it."""
        return tuple(f for f in self.files if f.origin == origin)

    def list_origin_nodes(self) -> tuple[str, ...]:
        """Return the nodes whose ranks wrote any of it, in order."""
        wrote = {f.origin for f in self.files}
        return tuple(host for host in self.hosts if host in wrote)


def load_step_ledger(path: Path) -> dict[str, FastSavedStep]:
    """Return the rows by name. A missing or damaged ledger is empty: other nodes have it too."""
    try:
        rows = msgspec.json.decode(
            _read_file_writable_by_user_only(path, _MOST), type=list[FastSavedStep]
        )
    except (OSError, HpctlError, msgspec.MsgspecError):
        return {}
    return {row.name: row for row in rows}


def store_step_ledger(rows: dict[str, FastSavedStep], path: Path) -> None:
    """Write the ledger, completely or not at all. Raises OSError."""
    _replace_file_atomically(path, msgspec.json.encode(list(rows.values())))
