"""One size of cluster, in a process of its own: its cycles, its reading, its memory, as JSON.

`python -m benchmarks.cycle_at NODES`. A process a size, because memory that was once taken
would hide what the next size needs.
"""

import gc
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# All that a daemon imports counts as its memory, used here or not.
import hpctl.daemon.main  # noqa: F401
from benchmarks import scontrol_text
from benchmarks.table import median, seconds_of
from benchmarks.world import CAREFUL, CLOCK, GENEROUS, World, WorldProvider, WorldScheduler
from hpctl.daemon.kinds import KINDS
from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.config import Config
from hpctl.engine.execute import StepExecutor, StepExecutorPorts
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import RecoveryLoop
from hpctl.engine.loop_port import RecoveryLoopAccess
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.observe import ClusterObserver, ObserverSources
from hpctl.engine.request_intake import OperatorRequestHandler
from hpctl.faults.catalogue import build_fault_rules
from hpctl.jobs.report_intake import JobReportHandler
from hpctl.sagemaker.provider import SageMakerProvider
from hpctl.slurm.read import SlurmCommandReader
from hpctl.slurm.run import SlurmCommandRunner
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.policy import RecoveryPolicy
from tests.reports import Rows

QUIET_RUNS = 41
SICK_RUNS = 9
LOADS_RUNS = READ_RUNS = 7
SICK = 100
RULES = build_fault_rules()


def _nothing(_: Sequence[NodeHealth] = ()) -> None:
    return


class Bench:
    """The real loop, executor, observer, book and journal over a made-up world."""

    def __init__(self, world: World, directory: Path, sick: int = 0) -> None:
        clock = CLOCK
        self.store = JournalStore(f"sqlite:///{directory}/journal.db")
        self.store.take_lease(
            DaemonIdentity("bench", 1, "0", "own", ""), self.store.daemon(), clock.now(), 3600
        )
        self.scheduler, provider = WorldScheduler(world), WorldProvider(world)
        self.health = NodeHealthStore(world.health(sick), Rows(), _nothing, clock)
        cloud = CloudPoller(provider, _nothing, 30)
        cloud.read()
        live = LiveConfig(Config(kill_switch=directory / "STOP"))
        sources = ObserverSources(self.scheduler, cloud, self.health)
        watch = ClusterObserver(sources, live, clock)
        self.memory = memory = JournaledState(self.store)
        executor = StepExecutor(StepExecutorPorts(self.scheduler, provider), memory, clock)
        port = RecoveryLoopAccess(watch, memory, clock, _nothing)
        requests = OperatorRequestHandler(self.store, port, live)
        jobs = JobReportHandler(self.store, port, live)
        self.loop = RecoveryLoop(memory, executor, watch, requests, clock, KINDS, jobs)

    def cycle(self, policy: RecoveryPolicy) -> float:
        gc.collect()
        (seconds,) = seconds_of(lambda: self.loop.cycle(policy, RULES), 1)
        return seconds


def _quiet(world: World) -> float:
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as directory:
        bench = Bench(world, Path(directory))
        taken = [bench.cycle(CAREFUL) for _ in range(QUIET_RUNS)]
        assert not bench.loop.state.events, "a quiet cycle writes nothing"
        bench.store.close()
        return median(taken)


def _sick(world: World, policy: RecoveryPolicy) -> tuple[float, int, int]:
    """The one cycle that first sees a hundred sick nodes; how many it opened and held."""
    taken = []
    for _ in range(SICK_RUNS):
        with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as directory:
            bench = Bench(world, Path(directory), SICK)
            taken.append(bench.cycle(policy))
            state = bench.loop.state
            opened, held = len(state.open_nodes), len(state.holds)
            assert opened + held == SICK
            assert bench.scheduler.drained == opened
            bench.store.close()
    return median(taken), opened, held


def _read(world: World) -> float:
    """Read Slurm through its text as a daemon does: the memory that this takes, and its seconds."""
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as directory:
        runner = SlurmCommandRunner(bin_dir=scontrol_text.install(world, Path(directory)))
        reader = SlurmCommandReader(runner, CLOCK.now)
        before = reader.view()
        seen = reader.view()
        assert len(before.nodes) == len(seen.nodes) == len(world.slurm.nodes)
        assert seen.jobs.keys() == world.slurm.jobs.keys()
        return median(seconds_of(reader.view, READ_RUNS))


def _loads(world: World) -> float:
    """The rival: reading the same nodes as JSON, which any program that looks at them must."""
    documents = [scontrol_text.as_json(lines) for lines in scontrol_text.texts(world).values()]
    return median(seconds_of(lambda: [json.loads(d) for d in documents], LOADS_RUNS))


def peak_mb() -> float:
    """The most memory that this process ever held. Not ru_maxrss: that remembers the parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def measure(nodes: int) -> dict[str, Any]:
    """All figures of one size; `empty_mb` is the process before it knows any node."""
    provider = SageMakerProvider("bench", region="us-east-1", endpoint_url="http://127.0.0.1:9")
    empty = peak_mb()
    world = World(nodes, nodes // 10)
    quiet = _quiet(world)
    held_s, _, held = _sick(world, CAREFUL)
    opened_s, opened, _ = _sick(world, GENEROUS)
    read_s = _read(world)
    peak = peak_mb()
    # After the peak was taken: the rival's memory is not ours.
    json_s = _loads(world)
    del provider
    return {
        "nodes": nodes,
        "quiet_s": quiet,
        "sick_held_s": held_s,
        "held": held,
        "sick_opened_s": opened_s,
        "opened": opened,
        "read_s": read_s,
        "json_s": json_s,
        "empty_mb": empty,
        "peak_mb": peak,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
