"""The programs a sandbox needs, found before anything is started."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from msgspec import Struct

from hpctl.toolkit.errors import HpctlError

# program -> Debian package
_SLURM = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "scontrol": "slurm-client",
    "sinfo": "slurm-client",
    "sbatch": "slurm-client",
}
_OTHERS = {"munged": "munge"}
_NETNS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}

_SYSTEM_DIRS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


class SandboxPrograms(Struct, frozen=True):
    """Where each program is, and which Slurm this is, as (major, minor, patch)."""

    paths: Mapping[str, str]
    version: tuple[int, int, int]
    prefix: str = ""

    @property
    def release(self) -> str:
        """Return the release as Slurm writes it: 22.05.8."""
        major, minor, patch = self.version
        return f"{major}.{minor:02}.{patch}"

    def __getitem__(self, name: str) -> str:
        """Return the program's path."""
        return self.paths[name]


def find_sandbox_programs(prefix: str = "", *, netns: bool = False) -> SandboxPrograms:
    """Find every program a sandbox needs.

    `prefix` is a Slurm installation with bin and sbin. Daemons lie in sbin, which an ordinary
    user's PATH lacks, so the system's own directories are looked at after PATH, unless PATH is
    empty. Raises HpctlError naming what is missing and the command that installs it.
    """
    path = os.environ.get("PATH", "")
    if path:
        path = os.pathsep.join([path, *_SYSTEM_DIRS])
    own = os.pathsep.join([f"{prefix}/bin", f"{prefix}/sbin"]) if prefix else path
    wanted = {**_SLURM, **_OTHERS, **(_NETNS if netns else {})}
    paths: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name, package in wanted.items():
        found = shutil.which(name, path=own if name in _SLURM else path) if path or prefix else None
        if found:
            paths[name] = found
        else:
            missing[name] = package
    if missing:
        _raise_missing_programs_error(missing, prefix)
    return SandboxPrograms(paths, read_slurm_version(paths["slurmctld"]), prefix)


def _raise_missing_programs_error(missing: Mapping[str, str], prefix: str) -> None:
    names = ", ".join(missing)
    if prefix and any(name in _SLURM for name in missing):
        raise HpctlError(
            f"the sandbox needs programs that it cannot find: {names} (it looked for Slurm's in "
            f"{prefix}/bin and {prefix}/sbin)",
            "Give --slurm-prefix the directory that holds bin/scontrol and sbin/slurmctld.",
        )
    packages = " ".join(sorted(set(missing.values())))
    raise HpctlError(
        f"the sandbox needs programs that are not installed: {names}",
        f"Install them: sudo apt-get install -y --no-install-recommends {packages}",
    )


def read_slurm_version(slurmctld: str) -> tuple[int, int, int]:
    """Return the release that `slurmctld -V` names (`slurm-wlm 22.05.8`, `slurm 25.11.7`)."""
    done = subprocess.run(
        [slurmctld, "-V"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", done.stdout)
    if match is None:
        raise HpctlError(
            f"cannot read Slurm's release from the output of `{slurmctld} -V`: "
            f"{(done.stdout + done.stderr).strip()!r}"
        )
    major, minor, patch = (int(part) for part in match.groups())
    return major, minor, patch
