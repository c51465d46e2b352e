"""What the helpers of one job know: who they are, where the saves lie, and what is kept of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
from msgspec import Struct

from hpctl.errors import HpctlError

META = ".hpctl-fast"
"""Beside the saves, on each node and in the checkpoint directory: what is hpctl's own."""
ENVIRONMENT = "HPCTL_FAST_SPEC"
"""Names the file with the job's Spec, for the preamble, `hpctl run` and the launchers."""
HELPER = "HPCTL_HELPER"
"""Set in a process of the job that is hpctl's own, and none of its ranks."""


class FastSaves(Struct, frozen=True, omit_defaults=True):
    """What a job asks for, as it stands in its Comment. `dir` may hold placeholders there.

    `memory`: the directory lies in the nodes' memory, and `size` bytes is what saves and copies may
    take of it on each; 0: what there is. `flush_s`: from one flush to the next. `replicas`: copies
    on other nodes. `rate`: bytes a second that a node fetches. `keep`: what lies on the nodes stays
    there when the job has ended.
    """

    dir: str
    memory: bool = False
    size: int = 0
    flush_s: int = 900
    replicas: int = 1
    rate: int = 1 << 30
    keep: bool = False


class Spec(Struct, frozen=True, forbid_unknown_fields=True):
    """One start of a job. Directories are absolute, without placeholders.

    `saves.dir` lies on each node's own disk or in its memory; `shared` is the checkpoint directory.
    `hosts` are the allocation's nodes in Slurm's order, `addresses` theirs, `domains` their leaf
    switches or blocks, "" where unknown. `suspects` never hold a copy. `secret` is known to the
    job's owner alone. `job` is the array's with the task's number for an array's, `id` Slurm's own;
    `restarts` counts its starts before this. `steps` are kept.
    """

    job: str
    secret: str
    saves: FastSaves
    shared: str
    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    domains: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    steps: int = 2
    id: str = ""
    restarts: int = 0

    def partners(self, host: str, living: tuple[str, ...]) -> tuple[str, ...]:
        """Which living hosts hold a copy of what this one saves, of another domain first."""
        at = self.hosts.index(host)
        ring = (*self.hosts[at + 1 :], *self.hosts[:at])
        fit = [h for h in ring if h in living and h not in self.suspects]
        mine = self.domain(host)
        fit.sort(key=lambda h: not mine or self.domain(h) == mine)
        return tuple(fit[: self.saves.replicas])

    def domain(self, host: str) -> str:
        """What fails together with it, "" where unknown."""
        return dict(zip(self.hosts, self.domains, strict=False)).get(host, "")

    def address(self, host: str) -> str:
        """Where its helper listens."""
        return dict(zip(self.hosts, self.addresses, strict=False)).get(host, host)


def read(path: Path) -> Spec:
    """Raises HpctlError where the file is not this user's alone, or no Spec."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            mine = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if not mine or status.st_mode & 0o077:
                raise HpctlError(f"{path} is not this user's alone", "It is made by hpctl sbatch.")
            return msgspec.json.decode(file.read(1 << 20), type=Spec)
    except OSError as error:
        raise HpctlError(
            f"{path}: {error.strerror or error}", "It is made by hpctl sbatch."
        ) from error
    except msgspec.MsgspecError as error:
        raise HpctlError(f"{path}: {error}", "It is made by hpctl sbatch.") from error


def write(spec: Spec, path: Path) -> None:
    """For this user alone, whole or not at all. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    made = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(handle, "wb") as file:
        file.write(msgspec.json.encode(spec))
        file.flush()
        os.fsync(handle)
    made.rename(path)
