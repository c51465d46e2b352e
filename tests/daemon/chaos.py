"""What the chaos tests share: a cluster with room for many faults, and what must always hold."""

import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import yaml

from hpctl.engine.adapters import open_journal_reader
from hpctl.engine.journal.rows import DaemonLeaseInfo
from hpctl.engine.world_reader import read_world_once
from hpctl.faults.hma_marks import find_hma_reason_mark
from hpctl.sandbox.api import Sandbox
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from tests.left_behind import left_behind
from tests.live import EAGER, FAST, Live, until
from tests.process import room

Settings = dict[str, Any]
REPLACE = "BatchReplaceClusterNodes"

# Many unrelated faults follow each other in one cluster; the gates have tests of their own.
ROOMY: Settings = {
    **FAST,
    "budgets": {
        "open_min": 8, "partition_min": 8, "per_hour": 1000, "correlated_min": 100,
        "offender_recoveries": 100, "launch_failures": 100,
    },
}  # fmt: skip


def merged(base: Settings, over: Settings) -> Settings:
    """`base` with the keys of `over` laid over it, section by section."""
    both = dict(base)
    for key, value in over.items():
        below = both.get(key)
        both[key] = {**below, **value} if isinstance(below, dict) else value
    return both


class Chaos(Live):
    """A live cluster that many tests share, each with victims of its own."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox)
        self.first_config = sandbox.config_path.read_text()
        self._turn = 0
        self._before: Counter[str] = Counter()

    def victims(self, count: int) -> list[str]:
        """The next nodes that are in service with nothing on them, in turn."""
        view = self.scheduler.view().nodes
        names = self.sandbox.nodes
        order = [names[(self._turn + i) % len(names)] for i in range(len(names))]
        fine = [n for n in order if view[n].state == "IDLE" and view[n].in_service]
        assert len(fine) >= count, f"only {fine} of {names} are fit for a test"
        self._turn = names.index(fine[count - 1]) + 1
        return fine[:count]

    def all_idle(self) -> bool:
        """Whether every node is in service with nothing on it, and answers."""
        nodes = self.scheduler.view().nodes.values()
        return all(n.state == "IDLE" and n.in_service and n.responding for n in nodes)

    def xid(self, *nodes: str, code: int = 79) -> None:
        self.mark(*nodes)
        for node in nodes:
            self.sandbox.inject(node, "xid", code=code)

    def order(self, verb: str, *nodes: str) -> None:
        """`hpctl replace`, `reboot` or `undrain`, as an operator would."""
        self.mark(*nodes)
        sure = [] if verb == "undrain" else ["--yes", "--now"]
        self.hpctl(verb, *nodes, *sure)

    def mark(self, *nodes: str) -> None:
        """From here on `of` and `returned` speak of these nodes' new recoveries."""
        before = Counter(str(r.node) for r in self.node_recoveries())
        self._before.update({n: before[n] - self._before[n] for n in nodes})

    def start(self, body: str, *options: str, **more: str) -> int:
        """A job that runs, and whose script has begun."""
        job = self.submit(body, *options, **more)
        until(lambda: self.running(job), 20, f"job {job} runs")
        until(lambda: self.begun(job), 20, f"the script of job {job} begins")
        return job

    def of(self, node: str) -> list[NodeRecovery]:
        """The node's recoveries since it was last broken."""
        return [r for r in self.node_recoveries() if r.node == node][self._before[node] :]

    def last(self, node: str) -> NodeRecovery:
        return self.of(node)[-1]

    def of_job(self, job: int) -> list[JobRecovery]:
        return [r for r in self.job_recoveries() if r.attempt.job == job]

    def phase(self, node: str) -> str:
        found = self.of(node)
        return found[-1].phase if found else ""

    def returned(self, node: str, timeout_s: float = 40) -> NodeRecovery:
        """Wait for the node's recovery to end as it should."""
        until(lambda: bool(self.of(node)), 20, f"a recovery of {node}")
        until(lambda: self.last(node).ended, timeout_s, f"{node}'s recovery ends")
        recovery = self.last(node)
        assert recovery.phase == "returned", recovery.trail
        return recovery

    def asked(self, instance: str, operation: str = REPLACE) -> list[dict[str, Any]]:
        """The calls that named an instance."""
        calls = self.sandbox.calls(operation)
        return [c for c in calls if instance in c["request"].get("NodeIds", ())]

    def accepted(self, instance: str, operation: str = REPLACE) -> int:
        """How often the service took that order for an instance, its reply lost or not."""
        calls = self.asked(instance, operation)
        return sum(instance in ((c["response"] or {}).get("Successful") or ()) for c in calls)

    def daemon(self) -> DaemonLeaseInfo:
        store = open_journal_reader(self.config)
        try:
            info = store.daemon()
        finally:
            store.close()
        assert info is not None
        return info

    def daemon_sees(self, job: int) -> bool:
        """Whether the daemon has read of a job that it runs."""
        world = read_world_once(self.config, datetime.now(UTC))
        return not world.computed and world.slurm is not None and world.slurm.jobs[job].running

    def daemon_knows(self, job: int, state: str) -> bool:
        """Whether the daemon that runs now has read of a job in a state."""
        world = read_world_once(self.config, datetime.now(UTC))
        return (
            not world.computed and world.slurm is not None and world.slurm.jobs[job].state == state
        )

    def log(self, name: str = "daemon.out") -> str:
        return (self.sandbox.spec.layout.logs / name).read_text(errors="replace")

    def reconfigure(self, **sections) -> None:
        """Lay keys over the daemon's first file, and have it read that."""
        wanted = merged(yaml.safe_load(self.first_config), sections)
        self.rewrite(yaml.safe_dump(wanted, sort_keys=False))

    def rewrite(self, text: str) -> None:
        """Have the daemon read this text, which must be a good file."""
        if self.sandbox.config_path.read_text() == text:
            return
        before = self.log().count("configuration reloaded")
        self.sandbox.config_path.write_text(text)
        self.sandbox.signal_service("daemon", "SIGHUP")
        until(lambda: self.log().count("configuration reloaded") > before, 10, "reloaded")

    def second_daemon(self) -> subprocess.CompletedProcess[str]:
        """`hpctl daemon run` beside, or in place of, the sandbox's own."""
        args = ["-m", "hpctl", "daemon", "run", "--config", str(self.sandbox.config_path)]
        return self.sandbox.run([sys.executable, *args], check=False, timeout=30)

    def settle(self) -> None:
        """End what is broken, let every recovery end, and check the invariants."""
        self.sandbox.inject_api("clear")
        self.rewrite(self.first_config)
        for job in self.scheduler.view().jobs.values():
            if job.running or job.state == "PENDING":
                self.sandbox.run(["scancel", str(job.id)], check=False)
        until(lambda: not self.state().open_nodes, 60, "every node recovery ends")
        until(lambda: not self.state().open_jobs, 60, "every job recovery ends")
        self.check_calls()
        self.check_nodes()

    def check_calls(self) -> None:
        """No instance was replaced twice, and only instances that were being treated."""
        recoveries = self.node_recoveries()
        treated = {r.opened_for.instance for r in recoveries}
        treated |= {r.generation.instance for r in recoveries}
        treated |= {s.target for r in recoveries for s in r.steps}
        taken: Counter[str] = Counter()
        for call in self.sandbox.calls(REPLACE):
            assert set(call["request"]["NodeIds"]) <= treated, call
            taken.update((call["response"] or {}).get("Successful") or ())
        assert all(count == 1 for count in taken.values()), taken

    def check_nodes(self) -> None:
        """A node is closed only by a recovery that has not given it back, or by somebody else."""
        state = self.state()
        for name, node in self.scheduler.view().nodes.items():
            assert not find_hma_reason_mark(node), f"{name} is left with HyperPod's mark"
            owner = parse_recovery_id_from_reason(node.reason) if node.closed else None
            if owner is not None:
                assert state.nodes[owner].node == name
                assert state.nodes[owner].phase in ("escalated", "cancelled"), name

    def put_back(self, *nodes: str) -> None:
        """Give nodes back as an operator would, and see them come back."""
        self.order("undrain", *nodes)
        for node in nodes:
            self.returned(node)


@contextmanager
def cluster(config=None, files=None, **settings):
    """A cluster in mode own with its daemon. `files` are scripts; `{base}` is where they lie."""
    with room() as base:
        for name, text in (files or {}).items():
            (base / name).write_text(text.replace("{base}", str(base)))
            (base / name).chmod(0o755)
        given = {"nodes": 8, "mode": "own", "daemon": True, "boot_time": 0.5, **settings}
        conf = EAGER + str(given.get("slurm_conf", ""))
        given["slurm_conf"] = conf.replace("{base}", str(base))
        given["config"] = merged(ROOMY, config or {})
        with Sandbox("chaos", state_dir=base / "s", **given) as sandbox:
            live = Chaos(sandbox)
            try:
                yield live
            except BaseException:
                # Here, because the report of the failed test is made when the cluster is gone.
                for title, text in left_behind(live).items():
                    print(f"--- {title} ---\n{text}", file=sys.stderr)
                raise


def stays(test, for_s: float, what: str) -> None:
    """Something must hold all the time for a while."""
    limit = time.monotonic() + for_s
    while time.monotonic() < limit:
        with suppress(
            ServiceUnavailable
        ):  # a slurmctld that did not answer in time says nothing of it
            assert test(), what
        time.sleep(0.2)
