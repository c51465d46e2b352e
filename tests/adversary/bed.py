"""The besieged cluster: who attacks it, whom it must heal meanwhile, and what must hold after."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.process import room

STRANGER = pwd.getpwnam("games")
"""A user without any right, on every Debian. Slurm 26.05 refuses `nobody`."""
HEALED_WITHIN_S = 60.0
"""From a node's fault to its job running elsewhere, on a machine that three tests share. What it
takes beside what it takes undisturbed is measured by `python -m benchmarks attack`."""
MEMORY_BAR_MB = 300.0
_SOURCE = Path(__file__).with_name("stranger.py").read_text()


def drop(user: pwd.struct_passwd = STRANGER) -> dict[str, Any]:
    """What makes subprocess run something as a user; nothing where we are no root ourselves."""
    if os.geteuid() != 0:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def python() -> str:
    """The interpreter below our environment, which other users may not be able to read."""
    return os.path.realpath(sys.executable)


class Attack(Struct):
    """A program of the stranger's that runs."""

    process: subprocess.Popen[str]

    def result(self, timeout: float = 120):
        """What came of it. It never was root."""
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, err
        output = json.loads(out.splitlines()[-1])
        assert os.geteuid() != 0 or output["uid"] == STRANGER.pw_uid
        return output["done"]

    def ready(self) -> None:
        """Wait until it says that it is in place."""
        line = self.process.stdout.readline()
        assert line == "ready\n", line


def begin(do: str, env: dict[str, str] | None = None, network_of: int = 0, **how) -> Attack:
    """Start one function of stranger.py as the stranger; `network_of`: of which process's network
    namespace, where it is another's."""
    command, user = [python(), "-I", "-"], drop()
    if network_of:
        ids = f"--reuid={STRANGER.pw_uid}", f"--regid={STRANGER.pw_gid}", "--clear-groups"
        command = [
            *("nsenter", f"--net=/proc/{network_of}/ns/net", "--", "setpriv", *ids, "--"),
            *command,
        ]
        user = {}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd="/", env=env or {"PATH": os.environ["PATH"]},
        **user,
    )  # fmt: skip
    asked = json.dumps({"do": do, **how})
    process.stdin.write(f"{_SOURCE}\nmain({asked!r})\n")
    process.stdin.close()
    process.stdin = None
    return Attack(process)


def attack(do: str, **how):
    """Run one function of stranger.py as the stranger: what came of it."""
    return begin(do, **how).result()


class Siege:
    """A live cluster with its daemon, under attack."""

    def __init__(self, live: Chaos) -> None:
        self.live, self.sandbox = live, live.sandbox
        self.pid = self.daemon_pid()
        self.port: int = live.sandbox.spec.ports.intake
        self.munge = str(live.sandbox.munge_socket)
        self.hostile: set[str] = set()
        """Nodes whose root attacks: what hpctl hears of these is theirs to say."""
        self.broken: set[str] = set()
        """Nodes that a test itself has broken: only these may be treated."""
        self.treated: set[int] = set()
        """Jobs that may be treated: the bystanders', and the stranger's own."""

    def as_stranger(self, args, **more):
        """Run a command on the cluster as the stranger."""
        return subprocess.run(
            args, env={"PATH": os.environ["PATH"], **self.sandbox.exports}, capture_output=True,
            timeout=60, check=False, cwd="/tmp", **drop(), **more,
        )  # fmt: skip

    def sbatch(self, *options: str | bytes, wrap: str = "sleep 600", lines: str = "") -> int:
        """Submit a job of the stranger's, which hpctl may treat. Its number."""
        common = ["sbatch", "--parsable", "--requeue", "--chdir=/tmp", "--output=/dev/null"]
        script = f"#!/bin/sh\n{lines}{wrap}\n".encode()
        done = self.as_stranger([*common, *options], input=script)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        number = int(done.stdout)
        self.treated.add(number)
        return number

    def heals(self) -> float:
        """A node faults under somebody else's job: the seconds until that runs elsewhere."""
        live = self.live
        elsewhere = [f"--exclude={','.join(sorted(self.hostile))}"] if self.hostile else []
        job = live.start("sleep 600", "--time=10", *elsewhere)
        self.treated.add(job)
        (node,) = live.job(job).nodes
        self.broken.add(str(node))
        begun = time.monotonic()
        live.xid(str(node))
        until(lambda: live.running(job, 1), HEALED_WITHIN_S, f"job {job} runs elsewhere")
        taken = time.monotonic() - begun
        assert node not in live.job(job).nodes
        self.sandbox.run(["scancel", str(job)])
        return taken

    def daemon_pid(self) -> int:
        return int(self.sandbox.status()["services"]["daemon"])

    def holds(self) -> None:
        """The daemon is the one that it was, small, and treats nothing that nobody broke."""
        assert self.daemon_pid() == self.pid, self.live.log()[-3000:]
        assert self.live.daemon().trouble == ""
        assert memory_mb(self.pid) <= MEMORY_BAR_MB
        nodes = {str(r.node) for r in self.live.node_recoveries()}
        assert nodes <= self.broken, f"{nodes - self.broken} were never broken"
        jobs = {int(r.attempt.job) for r in self.live.job_recoveries()}
        assert jobs <= self.treated, f"jobs {jobs - self.treated} were never hit"
        self.live.check_calls()

    def stands(self) -> None:
        """All of that, and the bystander is healed in time."""
        assert self.heals() <= HEALED_WITHIN_S
        self.holds()

    def restarted(self) -> None:
        """The daemon was ended by a test itself, and is another from here on."""
        self.pid = self.daemon_pid()

    def job(self, number: int):
        return self.live.scheduler.view().jobs[number]

    def node(self, name: str):
        return self.live.scheduler.view().nodes[name]


def memory_mb(pid: int) -> float:
    """Resident memory of a process and of all below it, in MB; what they share counts once, for a
    child that is to run a program is its parent's copy for a moment."""
    total, below = 0.0, [pid]
    while below:
        one = below.pop()
        try:
            shares = Path(f"/proc/{one}/smaps_rollup").read_text()
            for children in Path(f"/proc/{one}/task").glob("*/children"):
                below += [int(child) for child in children.read_text().split()]
        except OSError:  # one that has ended meanwhile holds nothing
            continue
        held = shares.partition("Pss:")[2].split()
        total += int(held[0]) / 1024 if held else 0.0
    return total


@contextmanager
def besieged(**settings):
    """Eight nodes in mode own, with the daemon."""
    with cluster(nodes=8, **settings) as live:
        yield Siege(live)


@contextmanager
def public_directory():
    """A directory that the stranger owns."""
    with room() as path:
        if os.geteuid() == 0:
            shutil.chown(path, STRANGER.pw_uid, STRANGER.pw_gid)
        yield path
