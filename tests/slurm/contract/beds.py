"""The Schedulers under one suite: a Slurm in memory, and each adapter on a real Slurm."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from hpctl.sandbox.api import Sandbox
from hpctl.slurm.cli import CliScheduler
from hpctl.slurm.pyslurm import PySlurmScheduler
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.ports import Scheduler
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode
from tests.fakes.scheduler import SimSlurm
from tests.waiting import PATIENCE_S

SLOW_EPILOG_S = 6.0


class Bed(Protocol):
    """A Scheduler, the people and the daemons around it, and a way to wait."""

    scheduler: Scheduler
    real: bool

    @property
    def nodes(self) -> list[str]: ...
    def submit(self, size: int = 1, **options) -> int: ...
    def fail_job(self, job: int) -> None: ...
    def cancel(self, job: int) -> None: ...
    def operator_drain(self, node: str, reason: str) -> None: ...
    def operator_fail(self, node: str, reason: str) -> None: ...
    def slow_epilog(self, on: bool) -> None: ...
    def stop_slurmd(self, node: str) -> None: ...
    def start_slurmd(self, node: str) -> None: ...
    def stop_controller(self) -> None: ...
    def set_topology(self, leaves: dict[str, str]) -> None: ...
    def start_controller(self) -> None: ...
    def wait_for_a_second_to_begin(self, after_s: float = 0.0) -> None: ...
    def until(self, what: str, done: Callable[[], object], timeout: float = 20.0) -> float: ...


def job_of(bed: Bed, job: int) -> SlurmJob:
    """The job as the scheduler's view has it now."""
    return bed.scheduler.view().jobs[job]


def node_of(bed: Bed, node: str) -> SlurmNode:
    """The node as the scheduler's view has it now."""
    return bed.scheduler.view().nodes[node]


class FakeBed:
    """SimSlurm, with time that passes while somebody waits."""

    real = False

    def __init__(self) -> None:
        self._time = datetime(2026, 3, 1, tzinfo=UTC)
        self._dead: set[str] = set()
        self._boots: dict[str, int] = {}
        names = [f"n{i}" for i in range(1, 5)]
        self.scheduler = SimSlurm(
            names,
            lambda: self._time,
            lambda node: node not in self._dead,
            lambda node: str(self._boots.get(node, 0)),
        )

    @property
    def nodes(self) -> list[str]:
        return list(self.scheduler.nodes)

    def submit(self, size: int = 1, *, exclude: Sequence[str] = (), **options) -> int:
        return self.scheduler.submit(size, 3600, exclude=tuple(map(NodeName, exclude)), **options)

    def fail_job(self, job: int) -> None:
        self.scheduler.fail_job(self.scheduler.jobs[job])

    def cancel(self, job: int) -> None:
        self.scheduler.cancel(self.scheduler.jobs[job])

    def operator_drain(self, node: str, reason: str) -> None:
        self.scheduler.operator(node, drain=reason)

    def operator_fail(self, node: str, reason: str) -> None:
        self.scheduler.operator(node, fail=reason)

    def slow_epilog(self, on: bool) -> None:
        self.scheduler.epilog_s = SLOW_EPILOG_S if on else 0.2

    def stop_slurmd(self, node: str) -> None:
        self._dead.add(node)

    def start_slurmd(self, node: str) -> None:
        self._dead.discard(node)
        self._boots[node] = self._boots.get(node, 0) + 1

    def set_topology(self, leaves: dict[str, str]) -> None:
        self.scheduler.topology = leaves

    def stop_controller(self) -> None:
        self.scheduler.away = True

    def start_controller(self) -> None:
        self.scheduler.away = False

    def wait_for_a_second_to_begin(self, after_s: float = 0.0) -> None:
        self.until("a second begins", lambda: self._time.microsecond == 0)
        self.until("a part of it", lambda: self._time.microsecond >= after_s * 1e6)

    def until(self, what: str, done: Callable[[], object], timeout: float = 20.0) -> float:
        begin = self._time
        while not done():
            self._time += timedelta(seconds=0.2)
            self.scheduler.tick()
            waited = (self._time - begin).total_seconds()
            assert waited <= timeout, f"not within {timeout} s: {what}"
        return (self._time - begin).total_seconds()


class Cluster(Struct):
    """A sandbox, a place for files, and the slurmds that tests started in it."""

    sandbox: Sandbox
    files: Path
    slurmds: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def close(self) -> None:
        """End the slurmds that are ours."""
        for slurmd in self.slurmds.values():
            slurmd.kill()
            slurmd.wait()


class RealBed:
    """A sandbox's slurmctld and slurmds, used by one adapter."""

    real = True

    def __init__(self, cluster: Cluster, scheduler: Scheduler) -> None:
        self.sandbox, self._files, self._slurmds = cluster.sandbox, cluster.files, cluster.slurmds
        self.scheduler = scheduler
        self._stopped: set[str] = set()

    @property
    def nodes(self) -> list[str]:
        return list(self.sandbox.nodes)

    def submit(
        self,
        size: int = 1,
        *,
        requeue: bool = True,
        exclude: Sequence[str] = (),
        comment: str = "",
        name: str = "job",
        no_kill: bool = False,
        least: int = 0,
        per_node: int = 0,
        options: Sequence[str] = (),
        script: str = "",
    ) -> int:
        fail = self._files / "fail"
        body = script or f'while [ ! -e "{fail}-$SLURM_JOB_ID" ]; do sleep 0.1; done; exit 3'
        path = self._files / f"job-{time.monotonic_ns()}.sh"
        path.write_text(f"#!/bin/sh\n{body}\n")
        nodes = f"{least}-{size}" if least else str(size)
        args = ["sbatch", "--parsable", f"--nodes={nodes}", "--exclusive", f"--job-name={name}"]
        args += ["--no-kill"] * no_kill + [f"--ntasks-per-node={per_node}"] * bool(per_node)
        args += [f"--output={self._files}/out-%j", f"--chdir={self._files}"]
        args.append("--requeue" if requeue else "--no-requeue")
        if exclude:
            args.append(f"--exclude={','.join(exclude)}")
        if comment:
            args.append(f"--comment={comment}")
        output = self.sandbox.run([*args, *options, str(path)]).stdout
        return int(output.strip().split(";")[0])

    def fail_job(self, job: int) -> None:
        (self._files / f"fail-{job}").touch()
        self.until("the job has ended", lambda: not job_of(self, job).running)

    def fix_job(self, job: int) -> None:
        """Its next run does not fail by itself."""
        (self._files / f"fail-{job}").unlink()

    def cancel(self, job: int) -> None:
        self.sandbox.run(["scancel", str(job)])

    def operator_drain(self, node: str, reason: str) -> None:
        self.sandbox.scontrol("update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def operator_fail(self, node: str, reason: str) -> None:
        self.sandbox.scontrol("update", f"NodeName={node}", "State=FAIL", f"Reason={reason}")

    def slow_epilog(self, on: bool) -> None:
        flag = self._files / "slow"
        flag.touch() if on else flag.unlink(missing_ok=True)

    def stop_slurmd(self, node: str) -> None:
        ours = self._slurmds.pop(node, None)
        if ours is None:
            self.sandbox.inject(node, "kill-slurmd")
        else:
            ours.kill()
            ours.wait()
        self._stopped.add(node)

    def start_slurmd(self, node: str) -> None:
        """Start it by hand as the instance would, without rebooting the instance."""
        conf = str(self.sandbox.node_dir(node) / "slurm.conf")
        slurmd = shutil.which("slurmd", path=f"{self.sandbox.env['PATH']}:/usr/sbin")
        assert slurmd
        null = subprocess.DEVNULL
        self._slurmds[node] = subprocess.Popen(
            [slurmd, "-D", "-b", "-N", node, "-f", conf],
            env={**self.sandbox.env, "SLURM_CONF": conf},
            stdout=null,
            stderr=null,
        )
        self._stopped.discard(node)

    def set_topology(self, leaves: dict[str, str]) -> None:
        """Have slurmctld begin with topology/tree; with no leaves, as it was."""
        conf = self.sandbox.spec.layout.slurm_conf
        lines = [x for x in conf.read_text().splitlines() if not x.startswith("TopologyPlugin")]
        conf.write_text("\n".join([*lines, *["TopologyPlugin=topology/tree"] * bool(leaves), ""]))
        text = [
            f"SwitchName={leaf} Nodes={','.join(node for node in leaves if leaves[node] == leaf)}"
            for leaf in sorted(set(leaves.values()))
        ]
        text.append(f"SwitchName=top Switches={','.join(sorted(set(leaves.values())))}")
        (conf.parent / "topology.conf").write_text("\n".join([*text, ""]) if leaves else "")
        self.stop_controller()
        self.start_controller()
        self.until("it answers", lambda: self.scheduler.view().nodes, 30)

    def stop_controller(self) -> None:
        # At SIGTERM it saves its state. Else a job that has just begun is lost with it, and its
        # number is given out again, which slurmd refuses (seen on 24.11.5).
        self.sandbox.signal_service("slurmctld", "SIGTERM")
        ping = ["scontrol", "ping"]
        self.until("down", lambda: "DOWN" in self.sandbox.run(ping, check=False).stdout)
        self.sandbox.kill_slurmctld()

    def start_controller(self) -> None:
        self.sandbox.start_slurmctld()

    def wait_for_a_second_to_begin(self, after_s: float = 0.0) -> None:
        time.sleep(1 - time.time() % 1 + after_s)

    def until(self, what: str, done: Callable[[], object], timeout: float = PATIENCE_S) -> float:
        begin = time.monotonic()
        # A second or less is a look whether something comes, and no wait for it.
        patience_s = max(timeout, PATIENCE_S) if timeout > 1 else timeout
        while not done():
            waited = time.monotonic() - begin
            assert waited <= patience_s, f"not within {patience_s} s: {what}"
            time.sleep(0.05)
        return time.monotonic() - begin

    def quiet(self) -> None:
        """Leave an idle cluster to the next test."""
        self.slow_epilog(False)
        for node in list(self._stopped):
            self.start_slurmd(node)
        run = self.sandbox.run
        run(["scancel", "--full", "--signal=KILL", f"--user={os.getuid()}"], check=False)
        run(["scancel", f"--user={os.getuid()}"], check=False)
        self.until("no jobs", lambda: not run(["squeue", "-h"]).stdout.strip(), 60)
        for node in self.nodes:
            run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)
        self.until("nodes idle", self._idle, 60)

    def close(self) -> None:
        """End what the adapter keeps running."""
        if isinstance(self.scheduler, PySlurmScheduler):
            self.scheduler.close()

    def _idle(self) -> bool:
        states = self.sandbox.run(["sinfo", "-h", "-N", "-o", "%T"]).stdout.split()
        return set(states) == {"idle"}


def cli(sandbox: Sandbox) -> CliScheduler:
    """The CLI adapter on this sandbox."""
    from hpctl.slurm.run import SlurmCommandRunner

    prefix = sandbox.spec.prefix
    conf = Path(sandbox.exports["SLURM_CONF"])
    return CliScheduler(SlurmCommandRunner(conf, Path(prefix) / "bin" if prefix else None))
