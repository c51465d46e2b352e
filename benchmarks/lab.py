"""A live sandbox under measurement: what slurmctld did when, by its own log, seen at once.

slurmctld's log is followed instead of asking scontrol again and again: a command forked every
few milliseconds would take the processor from what is being measured. Each line that is waited
for is checked against scontrol afterwards.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hpctl.engine.adapters import make_slurm_command_client, open_journal_reader
from hpctl.engine.config import read_config_file
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.journal.store import JournalStore
from hpctl.sandbox.api import Sandbox
from hpctl.sandbox.faults import append_node_kmsg_record, format_xid_line
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob

T = TypeVar("T")
LOOK_S = 0.001
JOB = """#!/bin/sh
#SBATCH --job-name=bench
#SBATCH --nodes=2
#SBATCH --gres=gpu:8
#SBATCH --requeue
#SBATCH --output=/dev/null
srun sleep 600
"""


def records(nodes: int, size: int) -> str:
    """The lines of slurm.conf that bring `nodes` to `size`, by nodes that are powered down and have
    a partition of their own."""
    if size <= nodes:
        return ""
    lines = ["PrivateData=cloud"]
    for at in range(nodes, size, 250):
        end = min(at + 250, size)
        address = f"127.64.{at // 250}.[1-{end - at}]"
        lines.append(
            f"NodeName=record-[{at + 1}-{end}] NodeAddr={address} Port=9 State=CLOUD CPUs=16"
            " RealMemory=1000 Gres=gpu:8"
        )
    lines.append(f"PartitionName=records Nodes=record-[{nodes + 1}-{size}] State=UP")
    return "\n".join(lines) + "\n"


class NotSeen(Exception):
    """What a benchmark waited for did not come."""


class Log:
    """The lines that slurmctld writes from now on."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._file.seek(0, 2)
        self._rest = ""

    def wait(self, pattern: str, timeout_s: float) -> float:
        """The wall clock when a line that matches was there to be read. Raises NotSeen."""
        limit = time.time() + timeout_s
        wanted = re.compile(pattern)
        while time.time() < limit:
            text = self._rest + self._file.read()
            now = time.time()
            *lines, self._rest = text.split("\n")
            for at, line in enumerate(lines):
                if wanted.search(line):
                    # What follows it may be waited for next.
                    self._rest = "\n".join([*lines[at + 1 :], self._rest])
                    return now
            time.sleep(LOOK_S)
        raise NotSeen(f"slurmctld's log has no {pattern!r} within {timeout_s:g} s")

    def close(self) -> None:
        self._file.close()


class Lab:
    """One sandbox, its Slurm and its daemon's journal."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._config = read_config_file(sandbox.config_path)
        self._scheduler = make_slurm_command_client(self._config)
        self._script = sandbox.state_dir / "bench.sbatch"
        self._script.write_text(JOB)

    def configure(self, line: str) -> None:
        """Add a line to slurmctld's slurm.conf and have it read again."""
        with self.sandbox.spec.layout.slurm_conf.open("a") as conf:
            conf.write(f"{line}\n")
        self.sandbox.scontrol("reconfigure")
        key, _, value = line.partition("=")
        shown = self.sandbox.scontrol("show", "config")
        if not re.search(rf"^{key}\s*= {value}$", shown, re.MULTILINE):
            raise NotSeen(f"slurmctld did not take {line}")

    def log(self) -> Log:
        """slurmctld's log, from here on."""
        return Log(self.sandbox.spec.layout.logs / "slurmctld.log")

    def view(self) -> SchedulerView:
        return self._scheduler.view()

    def job(self, number: int) -> SlurmJob:
        return self.view().jobs[JobId(number)]

    def submit(self) -> int:
        done = self.sandbox.run(["sbatch", "--parsable", str(self._script)])
        return int(done.stdout.strip())

    def cancel(self, number: int) -> None:
        self.sandbox.run(["scancel", str(number)])

    def started(self, log: Log, number: int, timeout_s: float) -> float:
        """When slurmctld started the job, as the main or the backfill pass logs it."""
        at = log.wait(rf"(Allocate|Started) JobId={number}\b", timeout_s)
        job = self.job(number)
        if job.state != "RUNNING":
            raise NotSeen(f"job {number} was started and is {job.state}")
        return at

    def break_gpu(self, node: str) -> float:
        """Have the node's kernel log an Xid 79; the wall clock just before the write."""
        line = format_xid_line(79)
        at = time.time()
        append_node_kmsg_record(self.sandbox.spec.layout, node, line)
        return at

    def last_words(self) -> str:
        """The ends of slurmctld's and the daemon's logs."""
        logs = self.sandbox.spec.layout.logs
        ends = []
        for name in ("slurmctld.log", "slurmctld.out", "daemon.out"):
            text = (logs / name).read_text(errors="replace") if (logs / name).exists() else ""
            ends.append("\n".join([f"--- {name}", *text.splitlines()[-15:]]))
        return "\n".join(ends)

    def until(self, test: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for something that nobody measures."""
        limit = time.monotonic() + timeout_s
        while not test():
            if time.monotonic() > limit:
                raise NotSeen(f"not within {timeout_s:g} s: {what}")
            time.sleep(0.2)

    def state(self) -> EngineState:
        """What the journal amounts to now."""
        return self._ask(lambda store: replay_events(store.events()))

    def follow(self, state: EngineState) -> None:
        """Fold into `state` what the journal has got since the last time."""

        def fold(store: JournalStore) -> None:
            for event in store.events(state.events):
                state.fold(event)

        self._ask(fold)

    def health(self, node: str) -> NodeHealth:
        """What the head node has stored of a node's agent."""
        return self._ask(lambda store: store.health()[NodeName(node)])

    def complete(self) -> bool:
        """The head node has heard every agent: a cluster that has just come up is another thing."""
        return len(self._ask(lambda store: store.health())) == len(self.sandbox.nodes)

    def healed(self) -> bool:
        """No recovery is open, and every node takes work."""
        state = self.state()
        if state.open_nodes or state.open_jobs:
            return False
        nodes = self.view().nodes
        return all(nodes[n].responding and nodes[n].in_service for n in self.sandbox.nodes)

    def _ask(self, question: Callable[[JournalStore], T]) -> T:
        store = open_journal_reader(self._config)
        try:
            return question(store)
        finally:
            store.close()
