"""Several helpers on one machine, each with an address and a directory of its own: "nodes"."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from hpctl.checkpoints import search
from hpctl.checkpoints.fast import spec as specs
from hpctl.checkpoints.fast.lead import find_file_locations, list_node_steps, restore_fast_saves
from hpctl.checkpoints.fast.peer import PeerConnection
from hpctl.checkpoints.fast.spec import FastCheckpointSaveSpec, FastSavedFile
from hpctl.checkpoints.fast.union import PeerConnections
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions
from tests.checkpoints.checkpoint_files import dcp_files
from tests.process import ended
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
LOOK_OFTEN = "helpers.LOOK_S = 0.1\n"
HELPER = f"""
import sys
from pathlib import Path
from hpctl.checkpoints.fast import helpers, spec
from msgspec.structs import replace
{LOOK_OFTEN}given = spec.read_fast_save_spec(Path(sys.argv[1]))
helpers.supervise_helper(replace(given, saves=replace(given.saves, dir=sys.argv[3])), sys.argv[2])
"""


class Nodes:
    """A context manager. A node's disk is a directory, and it dies with the node."""

    def __init__(self, place: Path, count: int, **given) -> None:
        self.place, self.shared = place, place / "shared"
        self.shared.mkdir(parents=True)
        self.said: list[str] = []
        self.spec = FastCheckpointSaveSpec(
            job=str(os.getpid()),
            secret=os.urandom(32).hex(),
            saves=FastCheckpointSaveOptions("", **{"flush_s": 3600, "keep": True, **given}),
            shared=str(self.shared),
            hosts=tuple(f"n{n}" for n in range(count)),
            addresses=tuple(f"127.0.9.{n + 1}" for n in range(count)),
        )
        self.processes: dict[str, subprocess.Popen] = {}
        self.environ = {**os.environ, "SLURM_CONF": str(place / "none")}

    def __enter__(self):
        for host in self.spec.hosts:
            self.start(host)
        return self

    def __exit__(self, *_):
        for host in list(self.processes):
            self.kill(host)

    def disk(self, host: str) -> Path:
        """Where its ranks save."""
        return self.place / host

    def start(self, host: str) -> None:
        """Its helper; the disk is as it was left."""
        path = self.shared / specs.META / "spec.json"
        specs.write_fast_save_spec(self.spec, path)
        command = [sys.executable, "-c", HELPER, str(path), host, str(self.disk(host))]
        with (self.place / f"{host}.log").open("ab") as log:
            self.processes[host] = subprocess.Popen(command, stderr=log, cwd=ROOT, env=self.environ)

    def restart(self, *hosts: str) -> None:
        """The job starts again, on these."""
        for host in list(self.processes):
            self.kill(host)
        addresses = tuple(f"127.0.9.{int(host[1:]) + 1}" for host in hosts)
        secret = os.urandom(32).hex()
        self.spec = replace(self.spec, hosts=hosts, addresses=addresses, secret=secret)
        for host in hosts:
            self.start(host)

    def restart_as_job_7(self) -> None:
        """The helpers start again, as those of job 7; they see the test's `scontrol`."""
        self.spec, self.environ = replace(self.spec, id="7"), dict(os.environ)
        self.restart(*self.spec.hosts)

    def signal(self, host: str, number: signal.Signals) -> None:
        """To the helper's processes."""
        process = self.processes[host]
        for pid in (process.pid, *children(process.pid)):
            with suppress(ProcessLookupError):  # it has died with its parent
                os.kill(pid, number)

    def kill(self, host: str) -> None:
        """The helper alone."""
        helpers = children(self.processes[host].pid)
        self.signal(host, signal.SIGKILL)
        self.processes.pop(host).wait(PATIENCE_S)
        # A helper that still dies writes to the disk that goes next, and holds its port.
        for pid in helpers:
            assert ended(pid)

    def lose(self, host: str) -> None:
        """The node with its disk."""
        self.kill(host)
        shutil.rmtree(self.disk(host))

    def peer(self, host: str):
        """A connection to its helper, to be closed."""
        return closing(PeerConnection(self.spec, host))

    def end(self) -> None:
        """SIGTERM to all, as at the end of a job."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(2 * PATIENCE_S)
        self.processes.clear()

    def log(self) -> str:
        """What all helpers said."""
        return "".join(p.read_text() for p in sorted(self.place.glob("*.log")))

    def resume(
        self, gone=lambda hosts: (), wait_s: float = PATIENCE_S
    ) -> search.CheckpointSearchResult:
        """As a start of the job does."""
        self.said.clear()
        others = search.find_newest_complete_checkpoint_in_tiers(self.shared)
        return restore_fast_saves(self.spec, others, self.said.append, gone, wait_s)

    def safe(self, name: str, limit_s: float = PATIENCE_S, copies: int = 2) -> None:
        """Wait until so many living nodes hold each file of a step."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if is_held(self.spec, list(self.processes), name, copies):
                return
            time.sleep(0.05)
        alive = {host: process.poll() for host, process in self.processes.items()}
        raise AssertionError(f"{name} is not safe: {alive} {self.log()[-2000:]}")


def is_held(spec: FastCheckpointSaveSpec, living: Sequence[str], name: str, copies: int) -> bool:
    """Return whether so many of the living nodes hold each file of a step."""
    with closing(PeerConnections(spec)) as peers:
        steps, answered = list_node_steps(peers, list(living), 0)
        found = peers.each("inventory", answered)
    for each in steps:
        held = find_file_locations(each.row, found).values()
        if each.row.name == name and all(len({host for host, _ in w}) >= copies for w in held):
            return True
    return False


def children(pid: int) -> list[int]:
    """The processes that one has started."""
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []


def shown(state, *, number=7, restarts=0, end="2026-01-01T01:00:00", code="0:0", reason="None"):
    """Return a job as slurmctld 22.05 shows it on one line."""
    return (
        f"JobId={number} ArrayJobId=7 JobName=t JobState={state} Reason={reason} Requeue=1"
        f" Restarts={restarts} BatchFlag=1 ExitCode={code} EndTime={end} Deadline=N/A"
    )


def scontrol(place: Path, monkeypatch) -> Path:
    """Make a program of that name that prints what a file holds; return the file."""
    (place / "bin").mkdir()
    (place / "bin/scontrol").write_text(f"#!/bin/sh\ncat {place}/shown\n")
    (place / "bin/scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}/bin:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return place / "shown"


def saved_file(path: Path, name: str, origin: str) -> dict:
    """A file as a request names it."""
    status = path.stat()
    when = status.st_mtime_ns
    return msgspec.to_builtins(FastSavedFile(name, status.st_size, when, when, origin))


def content(directory: Path) -> dict[str, bytes]:
    """The files of a step."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def wait_for(path: Path, limit_s: float = 60.0) -> None:
    """Until it is there."""
    deadline = time.monotonic() + limit_s
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


def save(nodes: Nodes, name: str, files: dict[str, bytes], owners: dict[str, str]) -> None:
    """Ranks on several nodes save one step; those whose name sorts last come last."""
    for path, raw in files.items():
        target = nodes.disk(owners[path]) / name / path
        with suppress(FileExistsError):
            target.parent.mkdir(parents=True)
        target.write_bytes(raw)


def owners(nodes: Nodes, files: dict[str, bytes], last: str = ".metadata") -> dict[str, str]:
    """Round robin, but for what the first rank writes last."""
    names = sorted(files, key=lambda name: name == last)
    return {name: nodes.spec.hosts[n % len(nodes.spec.hosts)] for n, name in enumerate(names)}


def saved(nodes: Nodes, number: int) -> tuple[str, dict[str, bytes]]:
    """A step whose files differ from every other's; its name and its files."""
    files, name = dcp_files(step=number), f"step-{number}"
    save(nodes, name, files, owners(nodes, files))
    return name, files
