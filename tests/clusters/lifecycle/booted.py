"""Clean machines that are switched on: systemd as first process, addresses, a network between them.

Each is the root of tests/clusters/lifecycle/chroot.py under a layer of its own, in namespaces of
its own:
mounts, processes, names, network, and a part of the kernel's second cgroup tree. Nothing of it is
left when this process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

from tests.clusters.lifecycle import chroot
from tests.process import run_text

BOOT_S = 60.0
GATEWAY = "10.9.0.1"
"""Where nobody is: what a machine sends beyond its network goes nowhere, as in a closed VPC."""

SWITCH_ON = """
set -e
echo $$ >"$5/cgroup.procs"
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
ip link set lo up
while :; do
    setpriv --pdeathsig KILL unshare --mount --pid --ipc --cgroup --fork --kill-child \
        sh -c "$6" sh "$1" "$2" "$4" "$3" || sleep 0.2
done
"""
"""Machine, its root, name, what stands for file systems in the network, cgroup, and what boots it.
A machine that ends, by `systemctl reboot` say, is booted again, with its disk and its network."""

BOOT = """
set -e
cd "$1"
mount -t overlay overlay -o "lowerdir=$2,upperdir=upper,workdir=work" root
cd root
mount -t proc proc proc
# systemd-sysctl would set values of this machine's kernel (fs.protected_regular, for one).
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty autofs; do
    [ -e "/dev/$name" ] || continue
    : >"dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount --bind "$3" srv
# What a cloud's image would not have: nothing but munge is enabled, and nobody looks for updates.
for unit in slurmctld slurmd slurmdbd mariadb; do
    [ -e root/.booted ] || rm -f "etc/systemd/system/multi-user.target.wants/$unit.service"
done
rm -rf etc/systemd/system/timers.target.wants
: >root/.booted
echo "$4" >etc/hostname
# Nobody answers there, at once: the one of the machine that made the root is out of reach.
echo nameserver 127.0.0.1 >etc/resolv.conf
mkdir -p run/old
pivot_root . run/old
umount -l /run/old
mount --make-rshared /
exec env -i container=hpctl /lib/systemd/systemd --unit=multi-user.target --show-status=false
"""


def cgroups() -> Path | None:
    """Where the kernel's second cgroup tree is mounted here; None where it is not."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return Path(before.split()[4])
    return None


def missing() -> str:
    """Why no machine can be booted here; empty where one can."""
    why = chroot.missing()
    if why:
        return why
    tree = cgroups()
    if tree is None:
        return "no cgroup2 is mounted: systemd would have nowhere to keep its services"
    probe = tree / f"hpctl-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        return f"no cgroup can be made in {tree}: {error.strerror}"
    spaces = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup")
    args = ["unshare", *spaces, "--fork", "mount", "-t", "cgroup2", "cgroup2", "/mnt"]
    tried = run_text(args)
    return tried.stderr.strip()


class Booted(chroot.Machine):
    """A machine that runs, from entering the block to its end."""

    def __init__(self, scratch: Path, address: str, shared: Path) -> None:
        tree = cgroups()
        assert tree is not None
        scratch.mkdir(parents=True)
        shared.mkdir(exist_ok=True)
        self.address = address
        self.name = "ip-" + address.replace(".", "-")
        self._cgroup = tree / f"hpctl-{os.getpid()}-{self.name}"
        self._cgroup.mkdir()
        output = scratch.with_name(scratch.name + ".log").open("w")
        self._holder = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--uts"),
                *("sh", "-c", SWITCH_ON, "sh", str(scratch), str(chroot.base()), self.name),
                *(str(shared), str(self._cgroup), BOOT),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        output.close()
        try:
            self.wait_for_boot()
        except BaseException:  # who did not enter the block does not leave it
            self.__exit__(None, None, None)
            raise

    def __exit__(self, kind, error, trace):
        self._holder.kill()
        self._holder.wait(60)
        deadline = time.monotonic() + 20
        while self._cgroup.exists() and time.monotonic() < deadline:
            for place in sorted(self._cgroup.rglob("*/"), reverse=True):
                _remove(place)
            _remove(self._cgroup)
            time.sleep(0.02)

    @property
    def files(self) -> Path:
        """The machine's root, as it is reached from here."""
        return Path(f"/proc/{self.first}/root")

    @property
    def first(self) -> int:
        """The process id of its systemd, here."""
        (between,) = _children(self._holder.pid)
        return _children(between)[0]

    def enter(self) -> list[str]:
        """What goes before a command that is to run on the machine."""
        return ["nsenter", "--target", str(self.first), "--all", "--root", "--wd"]

    def wait_for_boot(self) -> None:
        """Wait until systemd has started all that it starts."""
        deadline = time.monotonic() + BOOT_S
        output = ""
        while time.monotonic() < deadline:
            try:
                output = self.run("systemctl", "is-system-running", "--wait")[1].strip()
            except (OSError, ValueError, IndexError):
                output = "no first process"
            if output in ("running", "degraded"):
                return
            assert self._holder.poll() is None, "the machine went out while it booted"
            time.sleep(0.1)
        raise AssertionError(f"not booted in {BOOT_S} s: {output}")

    def reboot(self) -> None:
        """Switch it off as an operator does, and wait until it is up again."""
        before = self.first
        self.run("systemctl", "reboot")
        deadline = time.monotonic() + BOOT_S
        while Path(f"/proc/{before}").exists():
            assert time.monotonic() < deadline, "it has not gone down"
            time.sleep(0.05)
        self.wait_for_boot()

    def switch(self) -> None:
        """Make this machine's network the one that others are plugged into."""
        self._ip("link", "add", "eth0", "type", "bridge")
        self._own_address()

    def plug_into(self, other: Booted) -> None:
        """Connect to the machine that is the switch."""
        port = "p" + self.address.replace(".", "")
        mine = str(self._holder.pid)
        other._ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", mine)
        other._ip("link", "set", port, "master", "eth0", "up")
        self._own_address()

    def _own_address(self) -> None:
        self._ip("address", "add", f"{self.address}/16", "dev", "eth0")
        self._ip("link", "set", "eth0", "up")
        self._ip("route", "add", "default", "via", GATEWAY)

    def _ip(self, *args: str) -> None:
        into = ("nsenter", "--target", str(self._holder.pid), "--net", "ip")
        done = run_text([*into, *args])
        assert done.returncode == 0, f"ip {' '.join(args)}: {done.stderr}"


def _children(pid: int) -> list[int]:
    args = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(word) for word in args]


def _remove(cgroup: Path) -> None:
    with contextlib.suppress(OSError):  # its processes are still going
        cgroup.rmdir()
