"""Clean machines: a Debian root made once, and for each test a layer over it that goes again.

Mounts and processes of a machine are in namespaces of its own: when its first process ends, with
the test or without it, they are gone. systemd is installed and does not run, as while an image is
made: units are enabled and masked, and nothing is started.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.process import run_text

SUITE = platform.freedesktop_os_release().get("VERSION_CODENAME", "bookworm")
"""The release of the tests' own machine, whose Python the wheels in a bundle are for."""
HERE = platform.python_version().rpartition(".")[0]
PYTHON = {"bookworm": "3.11", "trixie": "3.13"}.get(SUITE, HERE)
"""The version of that release's python3."""
WRONG_PYTHON = "" if HERE == PYTHON else f"the machines have {PYTHON}, these wheels are for {HERE}"
"""Why the wheels that are installed here do not fit the machines; empty where they do."""
PACKAGES = (
    "python3,systemd,openssh-client,openssh-server,logrotate,slurmctld,slurmd,slurmdbd,slurm-client,"
    "munge,mariadb-server,libpam-slurm-adopt,procps,iproute2,ca-certificates"
)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpctl/lifecycle-root"
BUILD_S = 600
MACHINE_S = 280


def missing() -> str:
    """Why no machine can be made here; empty where one can."""
    if os.geteuid() != 0:
        return "only root can make a machine"
    needed = ("debootstrap", "unshare", "nsenter", "chroot")
    return ", ".join(f"no {name}" for name in needed if shutil.which(name) is None)


def base() -> Path:
    """The root that all machines share, made by debootstrap the first time (a minute or two)."""
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with CACHE.with_name(f".{CACHE.name}.lock").open("w") as lock:
        # Files of tests run side by side: one makes it, and takes none away that others stand on.
        fcntl.flock(lock, fcntl.LOCK_EX)
        key = f"{SUITE} {PACKAGES}"
        mark = CACHE / ".hpctl-root-key"
        if not mark.exists() or mark.read_text() != key:
            _make(key)
    return CACHE


# systemd's package looks for /proc when it is configured, so that debootstrap cannot install it.
BUILD = """
set -e
root=$1 packages=$2 suite=$3
shift 3
debootstrap --variant=minbase "$suite" "$root" "$@"
printf '#!/bin/sh\\nexit 101\\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
mount -t proc proc "$root/proc"
export DEBIAN_FRONTEND=noninteractive
chroot "$root" apt-get --quiet update
chroot "$root" apt-get --quiet --yes --no-install-recommends install \
    $(echo "$packages" | tr , ' ')
chroot "$root" apt-get clean
rm "$root/usr/sbin/policy-rc.d"
"""


def _make(key: str) -> None:
    building = CACHE.with_name(f".{CACHE.name}-{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)  # of a run that was stopped
    building.mkdir(parents=True)
    # What it mounts goes with it, also where it is killed: nothing is removed through a mount.
    args = ["unshare", "--mount", "--fork", "--kill-child", "sh", "-c", BUILD, "sh"]
    args += [str(building), PACKAGES, SUITE]
    try:
        done = run_text([*args, *_mirror()], timeout=BUILD_S)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        (building / ".hpctl-root-key").write_text(key)
        shutil.rmtree(CACHE, ignore_errors=True)
        building.rename(CACHE)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _mirror() -> list[str]:
    """The mirror that this machine's apt uses; debootstrap has a default of its own."""
    output = run_text(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    )
    return [line.rstrip("/") for line in output.stdout.splitlines() if "security" not in line][:1]


MOUNTS = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs tmpfs "$1/root/run"
mount -t tmpfs tmpfs "$1/root/tmp"
echo ready
exec sleep "$3"
"""


class Machine:
    """One clean machine, from entering the block to its end."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._inside = scratch / "root"
        self._holder = subprocess.Popen(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", MOUNTS),
                *("sh", str(scratch), str(base()), str(MACHINE_S)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout.readline() == "ready\n"
        pid = self._holder.pid
        self._first = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        self.files = Path(f"/proc/{self._first}/root{self._inside}")

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, kind, error, trace):
        self._holder.kill()
        self._holder.wait(60)
        self._holder.stdout.close()

    def enter(self) -> list[str]:
        """What goes before a command that is to run on the machine."""
        into = ["nsenter", "--target", self._first, "--mount", "--root", "--pid", "--"]
        return [*into, "chroot", str(self._inside)]

    def path(self, absolute: str) -> Path:
        """A file of the machine, as it is reached from here."""
        return self.files / absolute.lstrip("/")

    def write(self, absolute: str, text: str, mode: int = 0o644) -> None:
        """Give the machine a file."""
        path = self.path(absolute)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def start(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """A command as the machine's root, its output in one pipe."""
        inside = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **(env or {})}
        return subprocess.Popen(
            [
                *(*self.enter(), "env", "-i"),
                *(f"{name}={value}" for name, value in inside.items()),
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Exit code and output of a command."""
        with self.start(*command, env=env) as process:
            out, _ = process.communicate(timeout=120)
        return process.returncode, out

    def says(self, *command: str) -> str:
        """What a command prints that must succeed."""
        code, out = self.run(*command)
        assert code == 0, out
        return out.strip()

    def kill_everything(self) -> None:
        """Power off: every process but the machine's first is gone at once."""
        self.run("sh", "-c", "kill -KILL -1")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            names = [p.name for p in self.path("/proc").iterdir() if p.name.isdigit()]
            if names == ["1"] or not [n for n in names if n != "1" and self._alive(n)]:
                return
            time.sleep(0.01)
        raise AssertionError("something survived SIGKILL")

    def _alive(self, pid: str) -> bool:
        try:
            return ") Z " not in self.path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False


if __name__ == "__main__":  # `make test-slurm`: before the tests, which have less time
    if not missing():
        base()
